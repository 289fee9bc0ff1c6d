"""oncegate: writes that are applied exactly once. The public names, and nothing else.

Start at :class:`Client`; without ``await`` at :mod:`oncegate.sync`. Tests: :mod:`oncegate.testing`; idempotency keys
for a web service: :mod:`oncegate.middleware`. Errors are below :class:`OncegateError`; each says its ``outcome``.

Importing this costs nothing: a name is imported from the package that owns it when it is first used. Whatever else lies
below ``oncegate`` is internal and may change without notice.
"""

from typing import TYPE_CHECKING

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
    "middleware",
    "sync",
    "testing",
]

if TYPE_CHECKING:
    from oncegate import middleware, sync, testing
    from oncegate.gateway.client import (
        Client,
        ClusterInfo,
        Code,
        Consumer,
        DeadlineExceeded,
        FlowInfo,
        Json,
        MalformedAnswer,
        ManyResult,
        Member,
        OncegateError,
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
        TableInfo,
        Tuning,
        WriteResult,
    )
else:

    def __getattr__(name: str) -> object:
        """Import a public name on its first use (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        if name in ("middleware", "sync", "testing"):
            return import_module(f"{__name__}.{name}")
        found = globals()[name] = getattr(import_module("oncegate.gateway.client"), name)
        return found

    def __dir__() -> list[str]:
        return [*__all__, "__doc__", "__name__", "__path__"]
