"""The async SDK: ``Client``, ``Session``, typed results and errors.

Start at :class:`Client`. Errors: :class:`OncegateError` and below. Logs go to ``oncegate.client``.
"""

import logging

from gateway.client.client import Client
from gateway.client.failures import (
    DeadlineExceeded,
    MalformedAnswer,
    OperationFailed,
    OutcomeUnknown,
    PartialFailure,
)
from gateway.client.outbox_file import OutboxDamaged, OutboxEntry
from gateway.client.recovery import OutboxUnresolved, Recovered
from gateway.client.results import (
    ClusterInfo,
    Consumer,
    FlowInfo,
    ManyResult,
    Member,
    Page,
    RequestState,
    Resolution,
    Row,
    RowsPart,
    TableInfo,
    WriteResult,
)
from gateway.client.session import Session
from gateway.client.settings import Tuning
from rifl.errors import Code, OncegateError, Outcome
from rifl.ids import RequestId

logging.getLogger("oncegate.client").addHandler(logging.NullHandler())

__all__ = [
    "Client",
    "ClusterInfo",
    "Code",
    "Consumer",
    "DeadlineExceeded",
    "FlowInfo",
    "MalformedAnswer",
    "ManyResult",
    "Member",
    "OncegateError",
    "OperationFailed",
    "OutboxDamaged",
    "OutboxEntry",
    "OutboxUnresolved",
    "Outcome",
    "OutcomeUnknown",
    "Page",
    "PartialFailure",
    "Recovered",
    "RequestId",
    "RequestState",
    "Resolution",
    "Row",
    "RowsPart",
    "Session",
    "TableInfo",
    "Tuning",
    "WriteResult",
]
