"""The client: connections to a cluster, reads, declarations, and sessions.

Owns: the public calls that belong to no session. Writes: :mod:`oncegate.gateway.client.session`. What is beneath both:
:mod:`oncegate.gateway.client.connection`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self, cast, get_args
from uuid import uuid4

import msgspec

from oncegate.gateway.client import keyed_writes
from oncegate.gateway.client.arguments import (
    KEY_BYTES_MAX,
    NONCE_LENGTH_MAX,
    Encode,
    bad,
    encoder,
    flag,
    key_of,
    name_of,
    one_of,
    seconds,
    text,
    tuned,
    whole,
)
from oncegate.gateway.client.arguments import request_id as checked_id
from oncegate.gateway.client.connection import Connection
from oncegate.gateway.client.consume import Consumption
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.items import Items
from oncegate.gateway.client.paths import (
    CLUSTER,
    FLOWS,
    SESSIONS,
    TABLES,
    consumer_path,
    flow_path,
    session_path,
    table_path,
)
from oncegate.gateway.client.profiles import Profile, settle
from oncegate.gateway.client.recovery import OnUnknown
from oncegate.gateway.client.results import (
    ClusterInfo,
    Consumer,
    FlowInfo,
    Json,
    OpenRequests,
    Page,
    RequestState,
    Resolution,
    Row,
    SessionInfo,
    TableInfo,
    Value,
    WriteResult,
)
from oncegate.gateway.client.scan import Scan, read_rows
from oncegate.gateway.client.session import Session
from oncegate.gateway.client.settings import Consistency, Full, SessionOptions, TableKind, Tuning
from oncegate.gateway.client.tracing import tracing as make_tracing
from oncegate.gateway.client.transaction import Transaction
from oncegate.gateway.client.watch import Watch
from oncegate.rifl.ids import (
    LEASE_MS_DEFAULT,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    RequestId,
    format_client_id,
)

PAGE_ROWS: Final = 500
"""Rows that a scan asks for at once."""
PAGE_ROWS_MAX: Final = 1_000


class _Flows(msgspec.Struct):
    flows: list[FlowInfo]


class _Tables(msgspec.Struct):
    tables: list[TableInfo]
    next: str | None = None


class _Sessions(msgspec.Struct):
    sessions: list[SessionInfo]
    next: str | None = None


TURNS_MAX: Final = 64


class _Turns(msgspec.Struct):
    turns: int


class _Requests(msgspec.Struct):
    requests: list[OpenRequests]
    next: int | None = None


class _Dropped(msgspec.Struct):
    incarnation: int


class _Deleted(msgspec.Struct):
    last_batch: int


class Client:
    """A cluster as seen by an application; use as ``async with Client(["http://127.0.0.1:7400"]) as client``.

    Args:
        endpoints: addresses of some nodes; the others are learned. Without them, and with ``profile``, what is not
            given comes from the environment and the profiles file: see :mod:`oncegate.gateway.client.profiles`.
        profile: which profile.
        timeout_s: total time of a call, retries included, unless the call says otherwise; 30 s by default.
        token: sent as ``Authorization: Bearer``.
        token_file: holds the token instead; read again when it has changed.
        ca_file: certificates (PEM) that https endpoints are checked against; the system's by default.
        prefer_leader: send writes and linearizable reads to the leader when it is known; False takes all endpoints
            in turn and lets them forward.
        tls: context for https endpoints, in place of ``ca_file``.
        tuning: how operations travel.
        tracing: whether calls make OpenTelemetry spans; by default, if the application has imported OpenTelemetry.
        encode: called with each object in a value that JSON has no type for; returns what stands for it, which may hold
            further such objects. ``msgspec.to_builtins`` takes times, UUIDs, decimals, enums, dataclasses and structs;
            :meth:`Row.value_as` brings them back. What it raises is BAD_REQUEST at the call. A transaction of its own
            is given it by ``Transaction(encode=...)``.

    Leaving the context closes all open sessions, as leaving each of them would, then the connections.
    """

    __slots__ = ("_connection",)

    def __init__(
        self,
        endpoints: str | Sequence[str] | None = None,
        *,
        profile: str | None = None,
        timeout_s: float | None = None,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
        ca_file: str | PathLike[str] | None = None,
        prefer_leader: bool = True,
        tls: ssl.SSLContext | None = None,
        tuning: Tuning | None = None,
        tracing: bool | None = None,
        encode: Encode | None = None,
    ) -> None:
        given = Profile(
            [endpoints] if isinstance(endpoints, str) else None if endpoints is None else _endpoints(endpoints),
            token,
            None if token_file is None else _path(token_file, "token_file"),
            None if ca_file is None else _path(ca_file, "ca_file"),
            None if timeout_s is None else seconds(timeout_s),
        )
        self._connection = Connection(
            settle(given, profile),
            tuned(tuning),
            make_tracing(tracing),
            prefer_leader=prefer_leader,
            tls=tls,
            encode=encoder(encode),
        )

    @property
    def timeout_s(self) -> float:
        """Total time of a call that does not say otherwise."""
        return self._connection.timeout_s

    @property
    def highest_commit(self) -> int:
        """Highest commit number that an answer has told this client; its ``session`` reads reflect it."""
        return self._connection.highest_commit

    # Life

    async def __aenter__(self) -> Self:
        await self._connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close(drain=kind is None or issubclass(kind, Exception))

    def session(
        self,
        *,
        lease_ms: int = LEASE_MS_DEFAULT,
        window: int = WINDOW_DEFAULT,
        full: Full = "wait",
        nonce: str | None = None,
        outbox: str | PathLike[str] | None = None,
        on_unknown: OnUnknown | None = None,
        on_lost: Callable[[OperationFailed], None] | None = None,
        renew_lost: bool = False,
        in_order: bool = False,
    ) -> Session:
        """Return a session to be opened with ``async with``.

        Args:
            lease_ms: how long its memory lasts without a sign of life, 1 second to 24 hours.
            window: writes that may be outstanding, 1..4096; the next one waits, or fails with ``full="fail"``.
            full: see ``window``.
            nonce: 1 to 64 characters that name this open; the same nonce opens the same session. Random by default.
            outbox: a file that keeps writes, ids and payloads, from before they travel until their results are
                known. A restart with the same file goes on in the same session: see
                :mod:`oncegate.gateway.client.recovery`. Give a lease that outlives a restart.
            on_unknown: called when entering finds a write of an earlier process whose outcome cannot be known any
                more; when it returns, the write leaves the outbox. May be a coroutine function. Without it entering
                raises :class:`~oncegate.OutboxUnresolved`.
            on_lost: called when the session has ended without being closed, with the reason: its lease expired or
                another process took it over. See also :attr:`Session.lost`.
            renew_lost: for a service that lives longer than a lease may: when the lease has expired, a new session
                follows by itself. A write that was in doubt raises :class:`~oncegate.OutcomeUnknown` and is never sent
                under another id; one that surely was not applied goes on in the new session, up to its deadline. With
                an outbox it needs ``on_unknown``, which receives what was in doubt as after a restart. A session that
                another process took over does not come back.
            in_order: all effects of the session's calls come in the order of the calls, whatever their rows, through
                retries, refusals for now, failover and renewals: SEMANTICS, *Order*. One request is under way at a
                time, and a write in doubt holds up those behind it until its fate is known. Without ``outbox``, and
                without ``idempotency_key`` in its calls.

        Raises:
            OperationFailed: BAD_REQUEST for an argument out of its bounds.
        """
        for callback, what in ((on_unknown, "on_unknown"), (on_lost, "on_lost")):
            if callback is not None and not callable(callback):
                raise bad(f"{what} is a function")
        if flag(renew_lost, "renew_lost") and outbox is not None and on_unknown is None:
            raise bad("a session with an outbox that opens anew by itself needs on_unknown")
        if flag(in_order, "in_order") and outbox is not None:
            raise bad(
                "a session in_order has no outbox: a write in doubt stays in that, and in_order waits for its end"
            )
        if nonce is not None and not (1 <= len(text(nonce, "nonce", 256)) <= NONCE_LENGTH_MAX and nonce.isprintable()):
            raise bad(f"a nonce has 1 to {NONCE_LENGTH_MAX} printable characters")
        options = SessionOptions(
            lease_ms=whole(lease_ms, "lease_ms", LEASE_MS_MIN, LEASE_MS_MAX),
            window=whole(window, "window", 1, WINDOW_MAX),
            full=cast(Full, one_of(full, "full", get_args(Full))),
            outbox=None if outbox is None else _path(outbox, "outbox"),
            on_unknown=on_unknown,
            on_lost=on_lost,
            renew_lost=renew_lost,
            in_order=in_order,
        )
        return Session(self._connection, options, nonce)

    # Reads

    async def get(
        self,
        table: str,
        key: str,
        *,
        consistency: Consistency = "linearizable",
        min_commit: int | None = None,
        held: Row | None = None,
        timeout_s: float | None = None,
    ) -> Row | None:
        """Read a row.

        Args:
            table: a declared table.
            key: its key.
            consistency: ``linearizable``; ``session``: any node that has applied ``min_commit``; ``stale``: any node.
            min_commit: for ``session``; by default the highest commit number this client has read. A session's own
                :meth:`Session.get` gives what that session has seen.
            held: the row as it was read before from this table: if that is its newest version, its value does not
                travel again, and what is returned is ``held`` with the commit number of this answer.
            timeout_s: total time.

        Returns:
            The row, or None if there is none.

        Raises:
            OperationFailed: NOT_FOUND if there is no such table, or why it could not be read.
        """
        floor = self.highest_commit if min_commit is None else min_commit
        return (await self._connection.look(table, key, consistency, floor, timeout_s, held))[0]

    async def scan(
        self,
        table: str,
        *,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Page:
        """Read one page of rows in key order; pass ``next`` of a page as ``after`` to read on."""
        query: dict[str, str | int] = {"prefix": prefix} if prefix else {}
        if after is not None:
            query["after"] = after
        if limit is not None:
            query["limit"] = limit
        page = await self._connection.ask(f"{table_path(table)}/rows", Page, query, timeout_s=timeout_s)
        self._connection.saw(page.commit)
        return page

    def rows(
        self,
        table: str,
        *,
        prefix: str = "",
        start: str = "",
        end: str = "",
        reverse: bool = False,
        commit: int | None = None,
        page_rows: int = PAGE_ROWS,
        timeout_s: float | None = None,
    ) -> Scan:
        """Read the rows of a resident table in key order, all as they were at one commit number.

        ``async for row in client.rows("seats", prefix="14"): ...``

        Args:
            table: a resident table.
            prefix: only keys that begin with it.
            start: only this key and greater ones.
            end: only keys below it; empty: all.
            reverse: against key order.
            commit: the state at this commit number; by default that of the first page, which is linearizable.
            page_rows: rows that are asked for at once, at most 1000.
            timeout_s: total time of each page.

        Raises:
            OperationFailed: BAD_REQUEST for an argument out of its bounds; while it is read: NOT_FOUND, BAD_REQUEST,
                RETENTION_EXCEEDED if so much has changed meanwhile that no node knows the state any more: begin again.
        """
        keys = {
            "prefix": text(prefix, "prefix", KEY_BYTES_MAX),
            "from": text(start, "start", KEY_BYTES_MAX),
            "to": text(end, "end", KEY_BYTES_MAX),
        }
        query: dict[str, str | int] = {name: key for name, key in keys.items() if key}
        if commit is not None:
            query["commit"] = whole(commit, "commit", 0)
        if flag(reverse, "reverse"):
            query["reverse"] = "true"
        if timeout_s is not None:
            seconds(timeout_s)
        return Scan(self._connection, table, query, whole(page_rows, "page_rows", 1, PAGE_ROWS_MAX), timeout_s)

    async def get_many(
        self,
        rows: Sequence[tuple[str, str]],
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> list[Row | None]:
        """Read several rows of resident tables, (table, key) each, all at one commit number; None for an absent one.

        Raises:
            OperationFailed: NOT_FOUND, BAD_REQUEST; PAYLOAD_TOO_LARGE for more than 256 rows or 4 MiB of values.
        """
        level = one_of(consistency, "consistency", get_args(Consistency))
        query: dict[str, str | int] = {} if level == "linearizable" else {"consistency": level}
        if level == "session":
            query["min_commit"] = self.highest_commit
        return await read_rows(self._connection, rows, query, timeout_s)

    # Changes

    def watch(
        self,
        table: str,
        *,
        prefix: str = "",
        key: str | None = None,
        from_commit: int | None = None,
        timeout_s: float | None = None,
    ) -> Watch:
        """Follow the changes of a resident table's rows, in commit order, each once.

        ``async for change in client.watch("seats", prefix="14"): ...`` goes on at another node when one fails. A
        program that keeps :attr:`Change.commit` with what it has done goes on from there after a restart.

        Args:
            table: a resident table.
            prefix: only rows whose keys begin with it.
            key: this row alone.
            from_commit: changes above this commit number; by default from now on. With that of :meth:`rows` the rows
                and the watch leave nothing out.
            timeout_s: how long no node may answer before it gives up.

        Raises:
            OperationFailed: while it is read: RETENTION_EXCEEDED if no node keeps the changes from ``from_commit`` on;
                NOT_FOUND, BAD_REQUEST, FORBIDDEN; OVERLOADED is tried again.
        """
        if key is not None and prefix:
            raise bad("give key or prefix, not both")
        key = None if key is None else key_of(key)
        prefix = text(prefix, "prefix", KEY_BYTES_MAX)
        from_commit = None if from_commit is None else whole(from_commit, "from_commit", 0)
        return Watch(self._connection, table, prefix=prefix, key=key, from_commit=from_commit, timeout_s=timeout_s)

    def consume(self, flow: str, consumer: str, *, timeout_s: float | None = None) -> Consumption:
        """Read a flow's batches in order as one of its consumers: ``async for batch in client.consume(flow, name)``.

        The first step attaches, which fences every other instance. The consumer's cursor moves when the next batch is
        asked for, or with ``await batch.done()``: see :mod:`oncegate.gateway.client.consume`.

        Args:
            flow: its name.
            consumer: its name; made if it is not there.
            timeout_s: total time of each call; how long no node may answer before it gives up.

        Raises:
            OperationFailed: while it is read: FENCED once another instance has attached; RETENTION_EXCEEDED if the
                batch was dropped, NOT_FOUND.
        """
        return Consumption(self._connection, flow, consumer, timeout_s)

    def items(
        self,
        flow: str,
        *,
        from_batch: int | None = None,
        from_commit: int | None = None,
        timeout_s: float | None = None,
    ) -> Items:
        """Read what a flow retains, in commit order, without being a consumer: ``async for item in client.items(…)``.

        A stream table's own flow has the table's name: so this is the scan of a stream table. It reads a batch at a
        time, and ends with the last that was sealed when it began; a write is sealed at most ``linger_ms`` of cluster
        time after it was acknowledged (the flow's own, 0.5 s by default). To go on later, give ``items.batch + 1``.

        Args:
            flow: its name.
            from_batch: the first batch to read; by default the oldest that is retained. There is nothing behind the
                last one.
            from_commit: only items above this commit number, instead; reads as many batches to find them as the
                number of those retained has binary digits.
            timeout_s: total time of each call.

        Raises:
            OperationFailed: while it is read: RETENTION_EXCEEDED, with the first that is kept, if the batch was
                dropped, or items above ``from_commit`` may have been; NOT_FOUND, FORBIDDEN.
        """
        if from_batch is not None and from_commit is not None:
            raise bad("give from_batch or from_commit, not both")
        batch = None if from_batch is None else whole(from_batch, "from_batch")
        commit = None if from_commit is None else whole(from_commit, "from_commit", 0)
        return Items(self._connection, flow, batch, commit, timeout_s)

    async def turns(self, table: str, *, prefix: str, count: int = 1, wait_s: float = 20.0) -> int:
        """Wait until rows come under a prefix, and share them with all others who wait: a row gives one turn, to one.

        A turn is a hint to look or to take (:meth:`Transaction.take`): another may be faster. Rows that are there give
        turns at once, and rows that lie for a second give them again, so nothing waits for those who had a turn and
        died. Nothing is written for it, and a row that comes costs nothing for those who do not get it.

        Args:
            table: a resident table.
            prefix: not empty.
            count: turns that are asked for, 1 to 64.
            wait_s: how long to wait, up to 30 s.

        Returns:
            How many turns there are; 0 if no row has come in time, or the leader has changed: ask again.
        """
        count, waits_s = whole(count, "count", 1, TURNS_MAX), min(30.0, max(0.0, seconds(wait_s, "wait_s")))
        query: dict[str, str | int] = {"prefix": key_of(prefix), "count": count, "wait_ms": int(waits_s * 1000)}
        path, timeout_s = f"{table_path(table)}/turns", waits_s + self._connection.timeout_s
        return (await self._connection.ask(path, _Turns, query, timeout_s=timeout_s, waits_s=waits_s)).turns

    async def request(self, client_id: int, sequence: int, *, timeout_s: float | None = None) -> RequestState:
        """Ask what became of a request id, such as that of an :class:`~oncegate.OutcomeUnknown`."""
        return await self._connection.request(client_id, sequence, timeout_s)

    async def resolve(self, request_id: RequestId | str, *, timeout_s: float | None = None) -> Resolution:
        """End the doubt about a request id: it ran, or it never will.

        Args:
            request_id: from an error or a result, or written as ``client_id/sequence``.
            timeout_s: total time.

        Raises:
            NotKnownYet: the cluster could not be asked: ask again.
            NeverKnown: it no longer remembers, or never had such a session.
        """
        request = checked_id(request_id)
        known = self._connection.remembered(request)
        return known or await self._connection.settle(request, {}, timeout_s)

    async def sessions(self, *, timeout_s: float | None = None) -> list[SessionInfo]:
        """Describe the live sessions of the token's tenant, oldest first; ``timeout_s`` is that of a page."""
        found: list[SessionInfo] = []
        query: dict[str, str | int] = {"limit": 1000}
        while True:
            page = await self._connection.ask(SESSIONS, _Sessions, query, timeout_s=timeout_s)
            found += page.sessions
            if page.next is None:
                return found
            query["after"] = page.next

    async def open_requests(self, client_id: int, *, timeout_s: float | None = None) -> list[OpenRequests]:
        """Tell what a session has not acknowledged: what is recorded, and which numbers below the highest were never
        seen.

        Raises:
            OperationFailed: NOT_FOUND, SESSION_EXPIRED, or FORBIDDEN for another tenant's session.
        """
        found: list[OpenRequests] = []
        query: dict[str, str | int] = {"limit": 1000}
        path = f"{session_path(format_client_id(whole(client_id, 'client_id')))}/requests"
        while True:
            page = await self._connection.ask(path, _Requests, query, timeout_s=timeout_s)
            found += page.requests
            if page.next is None:
                return found
            query["after"] = page.next

    async def cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """Return the cluster as one of its nodes sees it."""
        return await self._connection.ask(CLUSTER, ClusterInfo, timeout_s=timeout_s)

    # Writes that need no session, because they bring a name of their own

    async def new_idempotency_key(self, name: str | None = None, *, timeout_s: float | None = None) -> str:
        """Return a new key that stays safe for ever: once the cluster has forgotten it, it is refused, not executed.

        It names the cluster's time, ``oncegate-<ms>-<name>``. Keep it before the write is sent: a retry needs the same.

        Args:
            name: what follows the time, printable ASCII, another one for each write; 32 random digits by default.
            timeout_s: total time.
        """
        return keyed_writes.naming((await self.cluster(timeout_s=timeout_s)).cluster_time_ms, name)

    async def put(
        self,
        table: str,
        key: str,
        value: Value,
        *,
        idempotency_key: str,
        if_absent: bool = False,
        if_version: int | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Write a row once for this key; see :meth:`transact`."""
        one = Transaction(encode=self._connection.encode).put(
            table, key, value, if_absent=if_absent, if_version=if_version
        )
        return await keyed_writes.send_one(self._connection, one, idempotency_key, timeout_s)

    async def delete(
        self,
        table: str,
        key: str,
        *,
        idempotency_key: str,
        if_version: int | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Delete a row once for this key; see :meth:`transact`."""
        one = Transaction(encode=self._connection.encode).delete(table, key, if_version=if_version)
        return await keyed_writes.send_one(self._connection, one, idempotency_key, timeout_s)

    async def increment(
        self,
        table: str,
        key: str,
        by: int = 1,
        *,
        idempotency_key: str,
        floor: int | None = None,
        ceiling: int | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult[int]:
        """Add to a row's number once for this key; see :meth:`transact`."""
        one = Transaction(encode=self._connection.encode).increment(table, key, by, floor=floor, ceiling=ceiling)
        return await keyed_writes.send_one(self._connection, one, idempotency_key, timeout_s)

    async def append(
        self, table: str, key: str, item: Value, *, idempotency_key: str, timeout_s: float | None = None
    ) -> WriteResult:
        """Add an item to a row's list once for this key; see :meth:`transact`."""
        one = Transaction(encode=self._connection.encode).append(table, key, item)
        return await keyed_writes.send_one(self._connection, one, idempotency_key, timeout_s)

    async def transact(
        self, transaction: Transaction, *, idempotency_key: str, timeout_s: float | None = None
    ) -> WriteResult:
        """Do a transaction once for this key, whichever process or session it comes from.

        Args:
            transaction: what is to be done.
            idempotency_key: the name of the event that asks for it, such as the id of a webhook or a message: 1 to 255
                printable characters of ASCII. A key that names its time (:meth:`new_idempotency_key`) is refused rather
                than executed again once it is forgotten.
            timeout_s: total time.

        Returns:
            The result, new or replayed; ``memory_ms_left`` is how long the cluster will remember the key.

        Raises:
            OperationFailed: PAYLOAD_MISMATCH if the key was used for another content; as
                :meth:`oncegate.gateway.client.Session.put`.
        """
        return await keyed_writes.send(self._connection, transaction, idempotency_key, timeout_s)

    # Declarations

    async def declare_table(
        self, /, name: str, *, kind: TableKind = "resident", timeout_s: float | None = None, **options: Json
    ) -> TableInfo:
        """Declare a table; declaring it again as it is changes nothing.

        Raises:
            OperationFailed: CONFLICT if it is declared differently.
        """
        info = await self._connection.declare(table_path(name), TableInfo, {"kind": kind, **options}, timeout_s)
        self._connection.kinds.known[name_of(name)] = info.kind
        return info

    async def table(self, name: str, *, timeout_s: float | None = None) -> TableInfo:
        """Describe a table."""
        info = await self._connection.ask(table_path(name), TableInfo, timeout_s=timeout_s)
        self._connection.kinds.known[name_of(name)] = info.kind
        return info

    async def tables(self, *, timeout_s: float | None = None) -> list[TableInfo]:
        """Describe all tables that the token may read, in the order of their names; ``timeout_s`` is that of a page."""
        found: list[TableInfo] = []
        query: dict[str, str | int] = {"limit": 1000}
        while True:
            page = await self._connection.ask(TABLES, _Tables, query, timeout_s=timeout_s)
            found += page.tables
            if page.next is None:
                return found
            query["after"] = page.next

    async def drop_table(
        self, name: str, *, incarnation: int | None = None, force: bool = False, timeout_s: float | None = None
    ) -> int:
        """Drop a table; returns its incarnation. A later declaration of the name is another table.

        Args:
            name: of the table.
            incarnation: that the caller has seen (:meth:`table`); by default that of now, asked for first.
            force: with its rows, and although consumers have attached to its own flow.
            timeout_s: total time.

        Raises:
            OperationFailed: CONFLICT for another incarnation, for flows on the table or to it, and, without ``force``,
                if it has rows or consumers.
        """
        seen = (await self.table(name, timeout_s=timeout_s)).incarnation if incarnation is None else incarnation
        path = f"{table_path(name)}?incarnation={whole(seen, 'incarnation')}{'&force=true' if force else ''}"
        await self._connection.send("DELETE", path, _Dropped, None, timeout_s)
        self._connection.kinds.known.pop(name_of(name), None)
        return seen

    async def declare_flow(
        self, /, name: str, *, source: str, timeout_s: float | None = None, **options: Json
    ) -> FlowInfo:
        """Declare a flow on a table; declaring it again as it is changes nothing.

        Raises:
            OperationFailed: CONFLICT if it is declared differently or would close a cycle.
        """
        return await self._connection.declare(flow_path(name), FlowInfo, {"source": source, **options}, timeout_s)

    async def flow(self, name: str, *, timeout_s: float | None = None) -> FlowInfo:
        """Describe a flow: its batches and its consumers with their lag."""
        return await self._connection.ask(flow_path(name), FlowInfo, timeout_s=timeout_s)

    async def flows(self, *, timeout_s: float | None = None) -> list[FlowInfo]:
        """Describe all flows, in order of declaration."""
        return (await self._connection.ask(FLOWS, _Flows, timeout_s=timeout_s)).flows

    async def alter_flow(
        self, /, name: str, *, version: int | None = None, timeout_s: float | None = None, **changes: Json
    ) -> FlowInfo:
        """Change a flow's ``retention_ms``, ``consumers``, ``consumer_expiry_ms``, ``max_items``, ``max_bytes`` or
        ``linger_ms``.

        A consumer that is not required any more and has never attached is removed; what nobody waits for is dropped.

        Args:
            name: of the flow.
            version: that the caller has seen; by default that of now, asked for first.
            timeout_s: total time.
            changes: the fields that change.

        Raises:
            OperationFailed: CONFLICT if the flow has another version by now, BAD_REQUEST for what cannot change.
        """
        body = {"version": await self._version(name, version, timeout_s), **changes}
        return await self._connection.send("PATCH", flow_path(name), FlowInfo, body, timeout_s)

    async def delete_flow(
        self, name: str, *, version: int | None = None, force: bool = False, timeout_s: float | None = None
    ) -> int:
        """Delete a flow with its batches; returns the number of its last batch, above which the name begins again.

        Args:
            name: of the flow; not the own flow of a stream table, which keeps its rows.
            version: as with :meth:`alter_flow`.
            force: although consumers have attached.
            timeout_s: total time.

        Raises:
            OperationFailed: CONFLICT for another version, or if consumers have attached.
        """
        seen = await self._version(name, version, timeout_s)
        path = f"{flow_path(name)}?version={seen}{'&force=true' if flag(force, 'force') else ''}"
        return (await self._connection.send("DELETE", path, _Deleted, None, timeout_s)).last_batch

    async def start_consumer(
        self,
        flow: str,
        consumer: str,
        *,
        start: Literal["beginning", "now", "cursor"] | None = None,
        batch: int | None = None,
        time_ms: int | None = None,
        ago_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Consumer:
        """Place a consumer's cursor and fence every instance that has attached; exactly one of the four says where.

        Args:
            flow: its name.
            consumer: its name; made if it is not there, unless it is to start at its cursor.
            start: the oldest batch that is retained, what is sealed from now on, or where its cursor stands, which
                only fences.
            batch: the batch to read next.
            time_ms: a cluster time: what was applied then or later is read.
            ago_ms: the same, counted back from now.
            timeout_s: total time.

        Returns:
            Its new fence, and its cursor.

        Raises:
            OperationFailed: RETENTION_EXCEEDED if what is asked for may have been dropped; BAD_REQUEST, NOT_FOUND.
        """
        asked = {"start": start, "batch": batch, "time_ms": time_ms, "ago_ms": ago_ms}
        body = {"nonce": uuid4().hex, **{name: value for name, value in asked.items() if value is not None}}
        return await self._connection.send("POST", f"{consumer_path(flow, consumer)}/start", Consumer, body, timeout_s)

    async def remove_consumer(
        self, flow: str, consumer: str, *, version: int | None = None, timeout_s: float | None = None
    ) -> FlowInfo:
        """Remove a consumer, required or not, and fence its job; ``version`` as with :meth:`alter_flow`.

        Raises:
            OperationFailed: NOT_FOUND; CONFLICT for another version.
        """
        seen = await self._version(flow, version, timeout_s)
        path = f"{consumer_path(flow, consumer)}?version={seen}"
        return await self._connection.send("DELETE", path, FlowInfo, None, timeout_s)

    async def _version(self, flow: str, version: int | None, timeout_s: float | None) -> int:
        return (await self.flow(flow, timeout_s=timeout_s)).version if version is None else whole(version, "version")


def _endpoints(endpoints: Any) -> list[str]:
    if not isinstance(endpoints, Iterable):
        raise bad("endpoints are addresses of nodes")
    return [text(endpoint, "an endpoint", 1024) for endpoint in endpoints]


def _path(path: Any, what: str) -> str:
    try:
        return os.fsdecode(path)
    except (TypeError, ValueError) as refused:
        raise bad(f"{what} is a path: {refused}") from refused
