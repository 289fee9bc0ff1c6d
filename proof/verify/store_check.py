"""The store against the batches: every row that delivered items make is there, newer or equal.

Owns: which items count (those of batches up to a consumer's cursor), and what a row in the store must be. Reads only:
SQLite files are opened so, and of Cassandra only ``get`` and ``tables`` are asked. Read next:
:mod:`oncegate.spark_sink.rows`, :mod:`oncegate.stores.claimed`.

The store must be this cluster's: rows that it adopted from another log count for nothing. A row that was derived with a
write timestamp *t* must be in the store with a timestamp of *t* or more: with *t*, it has the same values; with more, a
newer item has replaced it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa

from oncegate.flows import segment
from oncegate.flows.flow import FlowDeclaration
from oncegate.proof.verify.findings import Difference, Report, Undecided
from oncegate.proof.verify.node_files import NodeFiles, Replay
from oncegate.spark_sink import contacts, rows
from oncegate.spark_sink.dead_letters import DEAD_LETTERS, letters
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.stores import layout
from oncegate.stores.claimed import ClaimedStore, place_of
from oncegate.stores.errors import StoreError
from oncegate.stores.sqlite import statements as sqlite_statements
from oncegate.stores.store import Store, open_store
from oncegate.stores.stream_rows import STREAM_ROWS, rows_of
from oncegate.stores.tables import WRITE_TS, StoreTable

_ROWS_AT_ONCE = 100_000
Look = Callable[[StoreTable, Mapping[str, Any]], dict[str, Any] | None]


class StoreWanted(NamedTuple):
    """Which store, which consumer's work, and the contacts that its job used: None for rows of a stream table."""

    url: str
    flow: str
    consumer: str
    contacts: Path | None


def check_store(wanted: StoreWanted, replays: list[Replay], report: Report) -> None:
    """Look every derived row up; raises Difference or Undecided.

    Args:
        wanted: what to look at.
        replays: machines at the end of the committed log; the newest cursor counts, and any node's file of a batch.
        report: what was looked at is counted there.
    """
    newest = max(replays, key=lambda replay: replay.index)
    flow = next((one for one in newest.machine.flows.all() if one.declaration.name == wanted.flow), None)
    if flow is None:
        raise Undecided(f"no flow {wanted.flow}: there are {', '.join(newest.machine.flows.names()) or 'none'}")
    consumers = {state.name: state.cursor for state in flow.consumers.all()}
    if wanted.consumer not in consumers:
        known = ", ".join(consumers) or "none"
        raise Undecided(f"flow {wanted.flow} has no consumer {wanted.consumer}: there are {known}")
    cursor = consumers[wanted.consumer]
    if flow.batches.first > 1:
        report.notes.append(
            f"batches below {flow.batches.first} of {wanted.flow} are dropped: their rows are not checked"
        )
    nodes = [replay.node for replay in replays]
    if not newest.machine.identity:
        raise Undecided("the cluster has no identity yet, so no store can say that it is its: start it once")
    try:
        known_contacts = None if wanted.contacts is None else contacts.load(wanted.contacts)
        with ExitStack() as stack:
            raw = cast(Store, _reader(wanted.url, stack))
            look = ClaimedStore(raw, place_of(wanted.url), newest.machine.identity).get
            for number in range(flow.batches.first, cursor + 1):
                payload = _payload(nodes, wanted.flow, number)
                for table, expected in _derived(payload, flow.declaration, number, wanted.consumer, known_contacts):
                    _check_rows(wanted, look, table, expected, number, report)
    except (StoreError, OSError, sqlite3.Error) as fault:
        raise Undecided(f"the store {wanted.url} cannot be read: {fault}") from None


def _payload(nodes: list[NodeFiles], flow: str, number: int) -> bytes:
    for node in nodes:
        if (payload := node.batch(flow, number)) is not None:
            return payload
    raise Undecided(f"batch {number} of {flow} is in none of the directories")


def _derived(
    payload: bytes, flow: FlowDeclaration, number: int, consumer: str, known: rows.Contacts | None
) -> Iterator[tuple[StoreTable, pa.RecordBatch]]:
    for items in segment.read_table(payload).to_batches():
        if known is None:
            for piece in rows_of(items, flow.source, _ROWS_AT_ONCE):
                yield STREAM_ROWS, piece
            continue
        posts, errors = rows.decode(items)
        for piece in rows.pieces(posts, known, _ROWS_AT_ONCE):
            yield rows.TIMELINE, rows.fan_out(piece, known)
        yield DEAD_LETTERS, letters(FlowBatch(flow.name, number, items), consumer, errors)


def _check_rows(
    wanted: StoreWanted, look: Look, table: StoreTable, expected: pa.RecordBatch, number: int, report: Report
) -> None:
    for row in expected.to_pylist():
        report.store_rows += 1
        key = {name: row[name] for name in table.key}
        found = look(table, key)
        if found is None or found[WRITE_TS] < row[WRITE_TS] or (found[WRITE_TS] == row[WRITE_TS] and found != row):
            what = f"{table.name} {_text(key)}, batch {number} of {wanted.flow}, commit {row[WRITE_TS]}"
            raise Difference("store", wanted.url, what, _text(row), "no row" if found is None else _text(found))


def _text(row: Mapping[str, Any]) -> str:
    return msgspec.json.encode(row).decode()


class _Reader(Protocol):
    """What a `ClaimedStore` asks of a store that is only read."""

    def tables(self) -> list[str]: ...
    def get(self, table: StoreTable, key: Mapping[str, Any]) -> dict[str, Any] | None: ...


class _SqliteFiles:
    """The files of an embedded store, opened to be read only."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        try:
            self._shards = int(msgspec.json.decode((directory / "store.json").read_bytes())["shards"])
        except (OSError, KeyError, ValueError, msgspec.DecodeError) as fault:
            raise Undecided(f"{directory} holds no store: {fault}") from None
        self._connections: list[sqlite3.Connection | None] = []
        for shard in range(self._shards):
            file = directory / f"shard-{shard:02d}.sqlite"
            connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True) if file.exists() else None
            if connection is not None:
                stack.callback(connection.close)
            self._connections.append(connection)

    def tables(self) -> list[str]:
        there = [connection for connection in self._connections if connection is not None]
        return sorted({name for one in there for (name,) in one.execute(sqlite_statements.TABLES)})

    def get(self, table: StoreTable, key: Mapping[str, Any]) -> dict[str, Any] | None:
        one = pa.RecordBatch.from_pylist([{**key, WRITE_TS: 1}], schema=table.key_schema)
        connection = self._connections[int(layout.shard_of(table, one, self._shards)[0])]
        if connection is None:
            return None
        query = sqlite_statements.select_one(table)
        found = connection.execute(query, [key[name] for name in table.key]).fetchone()
        return None if found is None else dict(zip(table.schema.names, found, strict=True))


def _reader(url: str, stack: ExitStack) -> _Reader:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return _SqliteFiles(Path(unquote(parts.path)), stack)
    return stack.enter_context(open_store(url))
