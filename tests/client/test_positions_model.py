"""Watches, scans and consumers against what they are told: each goes on where it was, whatever is cut off.

Streams and nodes are fakes that serve a history from where they are asked, and end when a seed says so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from oncegate import Code, OperationFailed
from oncegate.gateway.client import consume, scan, watch
from oncegate.gateway.client.event_stream import Event
from oncegate.gateway.client.results import Change, Row

SEEDS = 150


def asked(path: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}


# Watches


class History:
    """Transactions of some changes each, by the commit numbers after them; between them nothing changes for a while."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.head = self.seen = 0
        self.together: list[list[Change]] = []
        number = 0
        for _ in range(dice.randint(1, 8)):
            before = number = number + dice.randint(0, 3)
            until = before + dice.choice((1, 1, 2, 5))
            changes = []
            for number in range(before + 1, until + 1):
                deleted = dice.random() < 0.2
                value = None if deleted else dice.choice((number, "Ynl0ZXM=", None))
                encoding = "base64" if isinstance(value, str) else ""
                cause = "ttl end" if deleted and dice.random() < 0.5 else ""
                told = until if number == until else before
                made = Change(f"k{number % 3}", told, value, deleted, cause, until, number, encoding=encoding)
                changes.append(made)
            self.together.append(changes)
        self.end = number
        self.asked: list[dict[str, str]] = []

    def changes(self, after: int) -> list[Change]:
        return [change for changes in self.together if changes[-1].until > after for change in changes]

    def check(self, found: list[Change], wanted: list[Change]) -> None:
        """The same changes; their commit numbers are of the state after them, or of one that a transaction began on."""
        plain = [msgspec.structs.replace(one, commit=0, encoding="") for one in found]
        assert plain == [msgspec.structs.replace(one, commit=0, encoding="") for one in wanted]
        ends = [0, *(changes[-1].until for changes in self.together)]
        for one, other in zip(found, wanted, strict=True):
            before = max(end for end in ends if end < one.version)
            assert before <= one.commit <= other.commit, "a state that a later watch may go on from"
            assert one.commit == other.commit or one.version < one.until

    async def events(self, path: Callable[[], str]) -> AsyncGenerator[Event, None]:
        dice = self.dice
        while True:
            self.asked.append(asked(path()))
            assert len(self.asked) < 1000, "it does not get on"
            after = int(self.asked[-1].get("from", self.head))
            if "from" not in self.asked[-1]:
                yield Event("progress", b'{"commit":%d}' % after)
            for changes in [one for one in self.together if one[-1].until > after]:
                if dice.random() < 0.15:
                    break  # cut off: another node goes on
                if dice.random() < 0.3:
                    yield Event("progress", b'{"commit":%d}' % (changes[0].version - 1))
                yield Event("changes", self._sent(changes))
            else:
                if dice.random() < 0.5:
                    yield Event("progress", b'{"commit":%d}' % self.end)
                    return
                if dice.random() < 0.3:
                    yield Event("of another build", b"?")

    def _sent(self, changes: list[Change]) -> bytes:
        told = []
        for one in changes:
            body: dict[str, Any] = {"key": one.key, "commit": one.version}
            if isinstance(one.value, bytes):
                body |= {"value": "Ynl0ZXM=", "encoding": "base64"}
            elif one.value is not None:
                body["value"] = one.value
            body |= {"deleted": True} if one.deleted else {}
            told.append(body | ({"cause": one.cause} if one.cause else {}))
        return msgspec.json.encode({"commit": changes[-1].until, "changes": told})

    def saw(self, commit: int) -> None:
        """Later reads of the client reflect it."""
        self.seen = max(self.seen, commit)


def watched(patch: pytest.MonkeyPatch, history: History, **options: Any) -> watch.Watch:
    class Stream:
        def __init__(self, connection: Any, path: Callable[[], str], timeout_s: float | None) -> None:
            self._path = path
            assert timeout_s == 7

        def events(self) -> AsyncGenerator[Event, None]:
            return history.events(self._path)

    patch.setattr(watch, "EventStream", Stream)
    given = {"prefix": "p/", "key": None, "from_commit": None, **options}
    return watch.Watch(history, "rows", timeout_s=7, **given)  # type: ignore[arg-type]


async def some(one: watch.Watch, count: int) -> list[Change]:
    """Read so many changes, or all, and leave."""
    found: list[Change] = []
    source: Any = aiter(one)
    async for change in source:
        found.append(change)
        if len(found) == count:
            break
    await source.aclose()
    return found


def test_watch_tells_each_change_once_however_often_its_stream_or_its_reader_breaks_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(seed: int) -> None:
        history = History(dice := random.Random(seed))
        begin = dice.choice((0, 0, history.together[0][-1].until, history.end))
        one = watched(monkeypatch, history, from_commit=begin)
        found: list[Change] = []
        while len(found) < len(history.changes(begin)) or dice.random() < 0.3:
            before = one.commit
            found += await some(one, dice.choice((1, 2, 3, 99)))
            assert one.commit is not None
            assert before is not None
            assert one.commit >= before, "it never falls"
        history.check(found, history.changes(begin))
        assert history.seen == max((change.until for change in found), default=0)
        assert all(query["prefix"] == "p/" for query in history.asked)
        assert {query["from"] for query in history.asked[:1]} <= {str(begin)}, "0 is a commit number too"

    for seed in range(SEEDS):
        asyncio.run(play(seed))


def test_later_watch_from_any_change_tells_the_rest_and_no_transaction_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(seed: int) -> None:
        history = History(dice := random.Random(seed))
        count = dice.randint(1, len(history.changes(0)))
        earlier = watched(monkeypatch, history, from_commit=0)
        found = await some(earlier, count)
        for position in (found[-1].commit, earlier.commit):
            later = watched(monkeypatch, history, from_commit=position)
            rest = await some(later, 0)
            whole = sum(change.until < found[-1].until for change in found)
            if found[-1].version == found[-1].until:
                whole = len(found)
            history.check(rest, history.changes(0)[whole:])
            assert later.commit == history.end

    for seed in range(SEEDS):
        asyncio.run(play(seed))


def test_watch_without_a_beginning_goes_on_behind_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(seed: int) -> None:
        history = History(random.Random(seed))
        history.head = history.together[0][-1].until
        one = watched(monkeypatch, history, key="k", prefix="")
        assert one.commit is None
        history.check(await some(one, 0), history.changes(history.head))
        assert "from" not in history.asked[0]
        assert all(query["key"] == "k" and "prefix" not in query for query in history.asked)

    for seed in range(SEEDS):
        asyncio.run(play(seed))


# Scans


class Nodes:
    """A client's connection to nodes of which some keep too little, or know no pages at one commit number."""

    def __init__(self, dice: random.Random, rows: int) -> None:
        self.rows = [Row(f"k{at:02}", at, at + 1) for at in range(rows)]
        self.router = self
        self.endpoints = ["leader", "a", "b"]
        self.turn = 0
        self.refused = False
        self.asked: list[dict[str, Any]] = []
        self.dice = dice
        self.kept_by: set[str] = {*self.endpoints}
        self.seen = 0

    def saw(self, commit: int) -> None:
        self.seen = max(self.seen, commit)

    async def ask(self, path: str, shape: Any, query: dict[str, Any], *, anywhere: bool, timeout_s: float) -> Any:
        assert (path, timeout_s) == ("/v1/tables/rows/rows", 7)
        assert query["limit"] == 4
        self.asked.append(query)
        self.turn += 1
        assert anywhere == self.refused, "the leader first: it has the newest state"
        self.refused = True
        node = self.endpoints[self.turn % 3] if anywhere else "leader"
        if node not in self.kept_by:
            raise OperationFailed(Code.RETENTION_EXCEEDED)
        self.refused = False
        first = int(query.get("page", 0))
        page = str(first + 4) if first + 4 < len(self.rows) else None
        assert page is not None or "page" in query or "prefix" in query
        found = [msgspec.structs.asdict(row) for row in self.rows[first : first + 4]]
        return msgspec.convert({"rows": found, "page": page, "commit": 50}, shape)


def test_scan_goes_on_at_any_node_that_has_its_state_and_tells_each_row_once() -> None:
    async def play(seed: int) -> None:
        nodes = Nodes(dice := random.Random(seed), dice.choice((0, 1, 4, 5, 30)))
        one = scan.Scan(nodes, "rows", {"prefix": "k"}, 4, 7)  # type: ignore[arg-type]
        assert getattr(one, "commit", 0) is None
        found = []
        async for row in one:
            found.append(row)
            assert one.commit == nodes.seen == 50
            if len(found) % 4 == 1:
                nodes.kept_by = {dice.choice(nodes.endpoints)}
        assert found == nodes.rows
        assert one.commit == 50

    for seed in range(SEEDS):
        asyncio.run(play(seed))


@pytest.mark.parametrize("wrong", ["past", "other"])
def test_scan_that_no_node_serves_says_why(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(random.Random(0), 9)
    if wrong == "past":
        nodes.kept_by = set()
    else:

        async def overloaded(_: str, __: Any, query: dict[str, Any], **___: Any) -> Any:
            nodes.asked.append(query)
            raise OperationFailed(Code.OVERLOADED)

        monkeypatch.setattr(nodes, "ask", overloaded)

    async def read() -> None:
        async for _ in scan.Scan(nodes, "rows", {"prefix": "k"}, 4, 7):  # type: ignore[arg-type]
            pass

    with pytest.raises(OperationFailed) as refused:
        asyncio.run(read())
    codes = {"past": Code.RETENTION_EXCEEDED, "other": Code.OVERLOADED}
    assert refused.value.code is codes[wrong]
    assert len(nodes.asked) == (1 if wrong == "other" else 4), "the leader, and then each node, unless that is no use"


# Consumers


class Flow:
    """A flow with one consumer, as the cluster keeps it."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.last = dice.randint(1, 6)
        self.cursor = self.fence = 0
        self.moves: list[int] = []
        self.after: list[int] = []

    async def send(self, method: str, path: str, shape: Any, body: dict[str, Any], timeout_s: float) -> Any:
        assert (method, timeout_s) == ("POST", 7)
        if path.endswith("/attach"):
            self.fence += 1
            return msgspec.convert({"fence": self.fence, "cursor": self.cursor}, shape)
        assert path.endswith("/cursor")
        if body["fence"] != self.fence:
            raise OperationFailed(Code.FENCED)
        self.moves.append(body["batch"])
        self.cursor = max(self.cursor, body["batch"])
        return msgspec.convert({"cursor": self.cursor}, shape)

    async def events(self, path: Callable[[], str]) -> AsyncGenerator[Event, None]:
        while self.last < 12:
            self.after.append(int(asked(path())["after"]))
            told = self.after[-1]
            if self.dice.random() < 0.3 and told:
                yield Event("sealed", b'{"batch":%d}' % self.dice.randint(1, told))  # once more, or an older one
            while told < self.last and self.dice.random() < 0.7:
                told = self.dice.randint(told + 1, self.last)
                yield Event("progress", b"?")
                yield Event("sealed", b'{"batch":%d}' % told)
                assert self.cursor >= told, "all that is sealed is given out before anything else is awaited"
            self.last += self.dice.choice((0, 1, 3))


def test_consumer_gets_each_batch_in_order_and_its_cursor_follows_what_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read_batch(flow: Any, name: str, number: int, timeout_s: float) -> Any:
        assert (name, timeout_s) == ("orders", 7)
        assert number <= flow.last
        return [number]

    class Stream:
        def __init__(self, flow: Any, path: Callable[[], str], timeout_s: float | None) -> None:
            assert timeout_s == 7
            self.events = lambda: flow.events(path)

    monkeypatch.setattr(consume, "EventStream", Stream)
    monkeypatch.setattr(consume, "read_batch", read_batch)

    async def play(seed: int) -> None:
        flow = Flow(dice := random.Random(seed))
        done, lives = 0, 0
        while flow.last < 12 and lives < 50:
            lives += 1
            one = consume.Consumption(flow, "orders", "c", 7)  # type: ignore[arg-type]
            assert getattr(one, "cursor", 0) is None
            source: Any = aiter(one)
            async for batch in source:
                assert (batch.number, batch.items) == (done + 1, [done + 1]), "in order, and again what was not done"
                assert one.cursor == flow.cursor == done, "nothing is done before it was given out and its body has run"
                if dice.random() < 0.2:
                    break  # the process ends, and the batch comes again
                if dice.random() < 0.4:
                    await batch.done()
                    assert flow.cursor == batch.number
                    await batch.done()
                done += 1
            await source.aclose()
            assert all(at >= 0 for at in flow.after)
        assert flow.moves == [*range(1, done + 1)]

    for seed in range(SEEDS):
        asyncio.run(play(seed))


def test_consumer_that_was_replaced_is_told_so_and_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        flow = Flow(random.Random(0))
        first = consume.Consumption(flow, "orders", "c", 7)  # type: ignore[arg-type]
        batches: Any = aiter(first)
        batch = await anext(batches)
        await flow.send("POST", "x/attach", consume._Attached, {}, 7)
        for _ in range(2):
            with pytest.raises(OperationFailed, match="FENCED"):
                await batch.done()
        with pytest.raises(OperationFailed, match="FENCED"):
            await anext(batches)
        assert flow.cursor == 0

    class Stream:
        def __init__(self, flow: Any, path: Callable[[], str], timeout_s: float | None) -> None:
            self.events = lambda: flow.events(path)

    async def read_batch(*_: Any) -> Any:
        return []

    monkeypatch.setattr(consume, "EventStream", Stream)
    monkeypatch.setattr(consume, "read_batch", read_batch)
    asyncio.run(play())
