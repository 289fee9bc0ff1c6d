"""Reads of a store that fails, changes hands and is wiped, against a dictionary: a row, its absence, or "try again".

Nothing is called absent that the store cannot know to be, whatever an earlier connection had found; and a read that
nobody waits for any more keeps its place until the store has ended it.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from oncegate.flows.lookup import FoundWrite
from oncegate.gateway.node import stream_store
from oncegate.gateway.node.stream_store import RETRY_S, THREADS, StreamStore
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.stores.errors import LostRow, StoreCode, StoreError
from oncegate.stores.stream_rows import ROWS_CONSUMER, STREAM_ROWS
from oncegate.stores.tables import WRITE_TS

CLUSTER = "a" * 32
TABLES, KEYS = "tu", "kl"


class Database:
    """What all connections see."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], tuple[str, int] | None] = {}
        """None: as a lost write left it."""
        self.began: set[str] = set()
        self.age = 0
        """Connections of an earlier age fail, and always will."""
        self.down = False
        self.opened: list[Connection] = []
        self.go_on = threading.Event()
        self.go_on.set()


class Connection:
    """One connection, of one thread."""

    def __init__(self, database: Database, url: str, identity: str) -> None:
        assert identity == CLUSTER
        if database.down:
            raise ConnectionError("nobody is there")
        self.database, self.age, self.url, self.closed = database, database.age, url, False
        self.thread = threading.get_ident()
        database.opened.append(self)

    def looked_at(self) -> None:
        self.database.go_on.wait()
        assert (self.thread, self.closed) == (threading.get_ident(), False)
        if self.database.down or self.age != self.database.age:
            raise StoreError(StoreCode.STORE_MISMATCH, "it changed hands")

    def get(self, table: Any, key: dict[str, str], *, refuses_lost: bool = False) -> dict[str, Any] | None:
        self.looked_at()
        assert table is STREAM_ROWS
        at = (key["source"], key["key"])
        if at not in self.database.rows:
            return None
        found = self.database.rows[at]
        if found is None:
            if refuses_lost:
                raise LostRow(StoreCode.STORE_MISMATCH, "lost")
            return None
        return {"value": found[0], WRITE_TS: found[1]}

    def began(self, flow: str, consumer: str) -> bool:
        self.looked_at()
        assert consumer == ROWS_CONSUMER
        return flow in self.database.began

    def close(self) -> None:
        assert self.thread == threading.get_ident()
        self.closed = True


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database()
    monkeypatch.setattr(stream_store, "claimed_store", lambda url, identity: Connection(made, url, identity))
    return made


async def answer(store: StreamStore, table: str, key: str) -> FoundWrite | str | None:
    (got,) = await asyncio.gather(store.find(table, key), return_exceptions=True)
    if not isinstance(got, BaseException):
        return got
    assert isinstance(got, OncegateError)
    assert got.outcome is Outcome.NOT_APPLIED
    return f"{got.code} {got.detail}"


def expected(database: Database, table: str, key: str) -> FoundWrite | str | None:
    """Return what a new connection must say."""
    found = database.rows.get((table, key), ("", 0))
    if found is None:
        return "has the row only as a lost write left it"
    if found[1]:
        return FoundWrite(found[1], found[0].encode() or None)
    return None if table in database.began else "is not this cluster's"


@pytest.mark.parametrize("seed", range(6))
async def test_row_is_found_absent_or_to_be_asked_for_again_as_the_dictionary_says(
    seed: int, database: Database
) -> None:
    dice, identity, seen = random.Random(seed), [CLUSTER], Counter[str]()
    store = StreamStore("x://", lambda: identity[0])
    failed = 0
    for number in range(200):
        what = dice.randrange(12)
        table, key = dice.choice(TABLES), dice.choice(KEYS)
        if what == 0:
            # Wiped, or adopted: whoever has it open is refused, once.
            database.age += 1
            database.rows.clear()
            database.began.clear()
        elif what == 1:
            database.down = not database.down
        elif what < 4:
            database.began.add(table)
            database.rows[table, key] = dice.choice((("v", number + 1), ("", number + 1), ("old", 0), None))
        elif what == 4:
            database.began.add(table)
        elif what == 5:
            identity[0] = ""
            assert "no identity" in str(await answer(store, table, key))
            identity[0] = CLUSTER
        stale = any(not one.closed and one.age != database.age for one in database.opened)
        got, wanted = await answer(store, table, key), expected(database, table, key)
        if isinstance(got, str):
            failed += 1
            assert got.startswith(Code.NOT_READY)
            mismatch = (isinstance(wanted, str) and wanted in got) or (stale and "is not this cluster's" in got)
            assert mismatch or database.down
        else:
            assert got == wanted
            assert not database.down
        assert (store.reads, store.failures) == (number + 1 - failed, failed)
        seen[type(got).__name__] += 1
    assert min(seen.values()) > 5
    assert len(seen) == 3
    await store.close()
    assert all(one.closed for one in database.opened)


async def test_reads_that_nobody_waits_for_keep_their_places_until_the_store_has_ended_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = 3 * THREADS
    monkeypatch.setattr(stream_store, "WAITING_MAX", places)
    database.began.add("t")
    store = StreamStore("x://", lambda: CLUSTER)
    for _ in range(3):
        database.go_on.clear()
        reading = [asyncio.create_task(answer(store, "t", "k")) for _ in range(places)]
        for _ in range(3):
            await asyncio.sleep(0)
        for gone in reading[::2]:
            gone.cancel()
        await asyncio.gather(*reading[::2], return_exceptions=True)
        assert str(await answer(store, "t", "k")).startswith(Code.OVERLOADED)
        assert [one.waiting for one in store._readers] == [places // THREADS] * THREADS
        database.go_on.set()
        assert await asyncio.gather(*reading[1::2]) == [None] * (places // 2)
        assert await answer(store, "t", "k") is None
        while any(one.waiting for one in store._readers):
            await asyncio.sleep(0)
    await store.close()
    for _ in range(places + 1):
        assert "stopping" in str(await answer(store, "t", "k")), "a place of the closed store is given back"
    assert [one.waiting for one in store._readers] == [0] * THREADS


async def test_read_that_takes_too_long_is_to_be_asked_for_again_and_keeps_its_place(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_store, "TIMEOUT_S", 0.0)
    monkeypatch.setattr(stream_store, "WAITING_MAX", THREADS)
    store = StreamStore("x://", lambda: CLUSTER)
    database.go_on.clear()
    for _ in range(THREADS):
        assert "does not answer" in str(await answer(store, "t", "k"))
    assert str(await answer(store, "t", "k")).startswith(Code.OVERLOADED)
    database.go_on.set()
    await store.close()


@pytest.mark.parametrize("query", [[], [("a", "b")], [("retry_s", "7")], [("a", "b"), ("retry_s", "0")]])
async def test_store_is_tried_again_shortly_unless_its_url_says_how_long(
    query: list[tuple[str, str]], database: Database
) -> None:
    asks = "&".join("=".join(pair) for pair in query)
    store = StreamStore(f"x://h/p?{asks}" if asks else "x://h/p", lambda: CLUSTER)
    await answer(store, "t", "k")
    parts = urlsplit(database.opened[0].url)
    own = [] if "retry_s" in dict(query) else [("retry_s", str(RETRY_S))]
    assert (parts.netloc, parts.path, parse_qsl(parts.query)) == ("h", "/p", query + own)
    await store.close()
