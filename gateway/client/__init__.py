"""The async SDK: ``Client``, ``Session``, typed results and errors.

Start at :class:`Client`. Errors: :class:`OncegateError` and below. Logs go to ``oncegate.client``;
``ONCEGATE_LOG=debug`` (or ``info``, ``warning``) shows them on standard error without any further set-up.
"""

import logging
import os

from oncegate.gateway.client.client import Client
from oncegate.gateway.client.failures import (
    DeadlineExceeded,
    MalformedAnswer,
    OperationFailed,
    OutcomeUnknown,
    PartialFailure,
)
from oncegate.gateway.client.outbox_file import OutboxDamaged, OutboxEntry
from oncegate.gateway.client.recovery import OutboxUnresolved, Recovered
from oncegate.gateway.client.results import (
    ClusterInfo,
    Consumer,
    FlowInfo,
    Json,
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
from oncegate.gateway.client.session import Session
from oncegate.gateway.client.settings import Tuning
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import RequestId

_LOG = logging.getLogger("oncegate.client")
_LOG.addHandler(logging.NullHandler())
if os.environ.get("ONCEGATE_LOG", "").upper() in ("DEBUG", "INFO", "WARNING", "ERROR"):
    _SHOWN = logging.StreamHandler()
    _SHOWN.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    _LOG.addHandler(_SHOWN)
    _LOG.setLevel(os.environ["ONCEGATE_LOG"].upper())

__all__ = [
    "Client",
    "ClusterInfo",
    "Code",
    "Consumer",
    "DeadlineExceeded",
    "FlowInfo",
    "Json",
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
