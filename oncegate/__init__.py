"""oncegate: writes that are applied exactly once. The public names, and nothing else.

Start at :class:`Client`; without ``await`` at :mod:`oncegate.sync`. Locks, queues and the like:
:mod:`oncegate.recipes`. Tests: :mod:`oncegate.testing`; idempotency keys for a web service:
:mod:`oncegate.middleware`; Spark jobs: :mod:`oncegate.spark`. Errors are below
:class:`OncegateError`; each says its ``outcome``.

Importing this costs nothing: a name is imported from the package that owns it when it is first used. Whatever else lies
below ``oncegate`` is internal and may change without notice.
"""

from typing import TYPE_CHECKING

from oncegate.version import __version__ as __version__

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
    "recipes",
    "request_ids",
    "sync",
]
# Not for ``import *``: these need their extras.
_WITH_EXTRAS = ("middleware", "spark", "testing")

if TYPE_CHECKING:
    from oncegate import middleware, recipes, spark, sync, testing  # noqa: F401 - names of the package, though not of import *
    from oncegate.gateway.client import (
        Batch,
        Change,
        Client,
        ClusterInfo,
        Code,
        Consumer,
        DeadlineExceeded,
        FlowInfo,
        FlowItem,
        Json,
        MalformedAnswer,
        ManyResult,
        Member,
        NeverKnown,
        NotKnownYet,
        OncegateError,
        OpenRequests,
        OperationFailed,
        OutboxDamaged,
        OutboxEntry,
        OutboxUnresolved,
        Outcome,
        OutcomeUnknown,
        Page,
        PartialFailure,
        Recovered,
        RequestId,
        RequestState,
        Resolution,
        Row,
        RowsPart,
        Session,
        SessionInfo,
        Submitted,
        TableInfo,
        Transaction,
        Tuning,
        Updated,
        WriteResult,
        request_ids,
    )
else:

    def __getattr__(name: str) -> object:
        """Import a public name on its first use (PEP 562)."""
        if name not in __all__ and name not in _WITH_EXTRAS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        if name in ("recipes", "sync", *_WITH_EXTRAS):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as missing:
                # An AttributeError, so that hasattr() and help() work without the extra.
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {missing}") from missing
        found = globals()[name] = getattr(import_module("oncegate.gateway.client"), name)
        return found

    def __dir__() -> list[str]:
        return [*__all__, *_WITH_EXTRAS, "__doc__", "__name__", "__path__", "__version__"]
