"""The async SDK: ``Client``, ``Session``, typed results and errors.

Start at :class:`Client`. Errors: :class:`OncegateError` and below. Logs go to ``oncegate.client``;
``ONCEGATE_LOG=debug`` (or ``info``, ``warning``) shows them on standard error without any further set-up.
"""

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

_LOG = logging.getLogger("oncegate.client")
_LOG.addHandler(logging.NullHandler())
if os.environ.get("ONCEGATE_LOG", "").upper() in ("DEBUG", "INFO", "WARNING", "ERROR"):
    _SHOWN = logging.StreamHandler()
    _SHOWN.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    _LOG.addHandler(_SHOWN)
    _LOG.setLevel(os.environ["ONCEGATE_LOG"].upper())

__all__ = [
    "Batch",
    "Change",
    "Client",
    "ClusterInfo",
    "Code",
    "Consumer",
    "DeadlineExceeded",
    "FlowInfo",
    "FlowItem",
    "Json",
    "MalformedAnswer",
    "ManyResult",
    "Member",
    "NeverKnown",
    "NotKnownYet",
    "OncegateError",
    "OpenRequests",
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
    "SessionInfo",
    "Submitted",
    "TableInfo",
    "Transaction",
    "Tuning",
    "Updated",
    "WriteResult",
    "request_ids",
]

_OWNERS: Final = (
    "failures",
    "results",
    "settings",
    "outbox_file",
    "recovery",
    "transaction",
    "optimistic",
    "session",
    "consume",
    "client",
)
"""Modules of these names, those that import aiohttp last: an outbox is read and an error is raised without it."""

if TYPE_CHECKING:
    from oncegate.gateway.client.client import Client
    from oncegate.gateway.client.consume import Batch
    from oncegate.gateway.client.failures import (
        DeadlineExceeded,
        MalformedAnswer,
        NeverKnown,
        NotKnownYet,
        OperationFailed,
        OutcomeUnknown,
        PartialFailure,
        request_ids,
    )
    from oncegate.gateway.client.optimistic import Updated
    from oncegate.gateway.client.outbox_file import OutboxDamaged, OutboxEntry
    from oncegate.gateway.client.recovery import OutboxUnresolved, Recovered
    from oncegate.gateway.client.results import (
        Change,
        ClusterInfo,
        Consumer,
        FlowInfo,
        FlowItem,
        Json,
        ManyResult,
        Member,
        OpenRequests,
        Page,
        RequestState,
        Resolution,
        Row,
        RowsPart,
        SessionInfo,
        TableInfo,
        WriteResult,
    )
    from oncegate.gateway.client.session import Session, Submitted
    from oncegate.gateway.client.settings import Tuning
    from oncegate.gateway.client.transaction import Transaction
    from oncegate.rifl.errors import Code, OncegateError, Outcome
    from oncegate.rifl.ids import RequestId
else:

    def __getattr__(name: str) -> object:
        """Import a public name on its first use (PEP 562)."""
        if name in __all__:
            for owner in _OWNERS:
                module = import_module(f"{__name__}.{owner}")
                if hasattr(module, name):
                    found = globals()[name] = getattr(module, name)
                    return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
