"""The SDK for scripts and notebooks: the same names, results and errors, without ``await``.

Owns: the calls of a client. Those of a session: :mod:`oncegate.gateway.client.sync_session`.
:mod:`oncegate.gateway.client.sync_crossing` takes them to an event loop and back. For everything else see
:mod:`oncegate.gateway.client.client` and :mod:`oncegate.gateway.client.session`. Safe to use from several threads.

``with Client(...) as client, client.session() as session: ...``; in a notebook, without ``with``: both open at the
first call and close with :meth:`Client.close`, or when the interpreter ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from oncegate.gateway.client import client as asynchronous
from oncegate.gateway.client.arguments import ClientArguments, SessionArguments
from oncegate.gateway.client.outbox_file import OutboxEntry
from oncegate.gateway.client.results import ClusterInfo, FlowInfo, Json, Page, RequestState, Resolution, Row, TableInfo
from oncegate.gateway.client.settings import Consistency, TableKind
from oncegate.gateway.client.sync_crossing import Crossing, Doubt
from oncegate.gateway.client.sync_session import Session
from oncegate.rifl.ids import WINDOW_DEFAULT, RequestId

__all__ = ["Client", "Doubt", "Session"]

T = TypeVar("T")


class Client:
    """A cluster as seen by a script; arguments as :class:`oncegate.gateway.client.Client`."""

    def __init__(self, endpoints: str | Sequence[str] | None = None, **options: Unpack[ClientArguments]) -> None:
        self._client = asynchronous.Client(endpoints, **options)
        self._crossing = Crossing(self._client)

    @property
    def timeout_s(self) -> float:
        """Total time of a call that does not say otherwise."""
        return self._client.timeout_s

    @property
    def highest_commit(self) -> int:
        """Highest commit number that a read of this client has reflected."""
        return self._client.highest_commit

    # Life

    def __enter__(self) -> Self:
        self._run(_nothing())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._crossing.close(kind, error, trace)

    def close(self) -> None:
        """Close open sessions as leaving them would, then the connections; idempotent."""
        self._crossing.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asynchronous SDK on this client's loop and wait for it."""
        return self._crossing.run(work)

    def session(
        self,
        *,
        on_unknown: Callable[[OutboxEntry], None] | None = None,
        window: int = WINDOW_DEFAULT,
        **options: Unpack[SessionArguments],
    ) -> Session:
        """Return a session; arguments as :meth:`oncegate.gateway.client.Client.session`. ``on_unknown`` runs in a
        thread.
        """

        async def note(entry: OutboxEntry) -> None:
            if on_unknown is not None:
                await asyncio.to_thread(on_unknown, entry)

        session = self._client.session(on_unknown=None if on_unknown is None else note, window=window, **options)
        return Session(self._crossing, session, window, fail=options.get("full") == "fail")

    # Reads and declarations

    def get(
        self,
        table: str,
        key: str,
        *,
        consistency: Consistency = "linearizable",
        min_commit: int | None = None,
        timeout_s: float | None = None,
    ) -> Row | None:
        """Read a row."""
        return self._run(
            self._client.get(table, key, consistency=consistency, min_commit=min_commit, timeout_s=timeout_s)
        )

    def scan(
        self,
        table: str,
        *,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Page:
        """Read one page of rows in key order."""
        return self._run(self._client.scan(table, prefix=prefix, after=after, limit=limit, timeout_s=timeout_s))

    def request(self, client_id: int, sequence: int, *, timeout_s: float | None = None) -> RequestState:
        """Ask what became of a request id."""
        return self._run(self._client.request(client_id, sequence, timeout_s=timeout_s))

    def resolve(self, request_id: RequestId | str, *, timeout_s: float | None = None) -> Resolution:
        """End the doubt about a request id."""
        return self._run(self._client.resolve(request_id, timeout_s=timeout_s))

    def cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """Return the cluster as one of its nodes sees it."""
        return self._run(self._client.cluster(timeout_s=timeout_s))

    def declare_table(
        self, name: str, *, kind: TableKind = "resident", timeout_s: float | None = None, **options: Json
    ) -> TableInfo:
        """Declare a table; declaring it again as it is changes nothing."""
        return self._run(self._client.declare_table(name, kind=kind, timeout_s=timeout_s, **options))

    def table(self, name: str, *, timeout_s: float | None = None) -> TableInfo:
        """Describe a table."""
        return self._run(self._client.table(name, timeout_s=timeout_s))

    def declare_flow(self, name: str, *, source: str, timeout_s: float | None = None, **options: Json) -> FlowInfo:
        """Declare a flow on a table; declaring it again as it is changes nothing."""
        return self._run(self._client.declare_flow(name, source=source, timeout_s=timeout_s, **options))

    def flow(self, name: str, *, timeout_s: float | None = None) -> FlowInfo:
        """Describe a flow."""
        return self._run(self._client.flow(name, timeout_s=timeout_s))


async def _nothing() -> None:
    pass
