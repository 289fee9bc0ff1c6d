"""What requests about flows order, field by field, and which of them order nothing; what watchers of a flow are told.

The log decides. So what a handler leaves out of a command, or does not refuse, nobody puts right behind it.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.http.event_streams import EventStreams
from oncegate.gateway.http.identity import ANONYMOUS, Identity, Scope
from oncegate.gateway.http.routes import flows
from oncegate.gateway.http.routing import JSON_LINES
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import flow_commands as fc
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.lagging_node import Asked, LaggingNode, refusal, told

MINE = Identity("n", "ann", frozenset(Scope), within=dict.fromkeys(Scope, ("a.",)))
"""A token for the tables and flows that begin with ``a.``."""
VALUES: dict[str, Any] = {
    "consumers": ["c", "d"], "consumer_expiry_ms": 5, "retention_ms": 6, "retention_bytes": 7, "event_time": "at",
    "shed_lag_bytes": 8, "max_items": 9, "max_bytes": 10, "linger_ms": 11,
}  # fmt: skip
"""What builds of an earlier level leave out, and so may not be told of."""


class Ordered(Exception):
    pass


class Recording(LaggingNode):
    """Notes what is ordered, and decides nothing of it."""

    async def submit(self, command: Any, size: int) -> Any:
        self.ordered.append((command, size))
        raise Ordered


async def ordered(handler: Any, body: Any = None, **how: Any) -> Any:
    """Return the command that a request orders, or the code of its refusal."""
    node = Recording()
    try:
        await handler(Asked(node, body, **how))
    except OncegateError as refused:
        assert not node.ordered
        return refused.code
    except Ordered:
        pass
    [(command, size)] = node.ordered
    assert size > 0
    return command


@pytest.mark.parametrize("field", VALUES)
async def test_a_declaration_and_a_change_carry_each_field(
    field: str,
) -> None:
    fields = {field: VALUES[field]}
    declared = await ordered(flows.declare, {"source": "t", **fields}, flow="f")
    altered = await ordered(flows.alter, {"version": 3, **fields}, flow="f")
    assert type(declared) is fc.DeclareFlow
    assert type(altered) is fc.AlterFlow
    sent = json.loads(declared.declaration)
    assert (sent["name"], sent["source"], sent[field]) == ("f", "t", VALUES[field])
    assert (altered.flow, altered.version, json.loads(altered.changes)) == ("f", 3, fields)
    bad: Any
    for bad in (-1, None, {}, [""], "x" * 300):
        for handler, more in ((flows.declare, {"source": "t"}), (flows.alter, {"version": 3})):
            assert await ordered(handler, {**more, field: bad}, flow="f") is Code.BAD_REQUEST


async def test_a_declaration_is_of_the_flow_of_its_path_and_of_tables_within_the_token() -> None:
    ok: dict[str, Any] = {"source": "a.s", "target": ["a.t", "a.u"]}
    command = await ordered(flows.declare, ok, flow="a.f", identity=MINE)
    assert type(command) is fc.DeclareFlow
    changed: dict[str, Any]
    for changed in ({"source": "b.s"}, {"target": ["a.t", "b.u"]}, {"target": "b.t"}):
        assert await ordered(flows.declare, {**ok, **changed}, flow="a.f", identity=MINE) is Code.FORBIDDEN
        assert isinstance(await ordered(flows.declare, {**ok, **changed}, flow="a.f"), fc.DeclareFlow)
    for changed in ({"name": "g"}, {"sauce": 1}, {"target": "no name"}, {"target": ["t", "no name"]}, {"source": ""}):
        assert await ordered(flows.declare, {**ok, **changed}, flow="f") is Code.BAD_REQUEST
    assert isinstance(await ordered(flows.declare, {**ok, "name": "f"}, flow="f"), fc.DeclareFlow)
    for length, fits in ((15_900, True), (16_500, False)):
        fields = {"name": "f", "source": "s" * length}
        if fits:
            assert len(flows.declaration_text(fields)) <= 16 * 1024
        else:
            with pytest.raises(OncegateError, match="16 KiB"):
                flows.declaration_text(fields)


NONCE = "nonce"
BOX: dict[str, Any] = {"flow": "f", "name": "c"}
STARTS: list[tuple[dict[str, Any], tuple[str, int] | None]] = [
    *(({"start": where}, (where, 0)) for where in ("beginning", "now", "cursor")),
    *(({field: n}, (where, n)) for field, where in (("time_ms", "time"), ("ago_ms", "ago"), ("event_ms", "event"))
      for n in (0, 1, 2**53 - 1)),
    *(({"batch": n}, ("batch", n)) for n in (1, 2**53 - 1)),
    ({"batch": 0}, None), ({"batch": 2**53}, None), ({"ago_ms": -1}, None), ({}, None),
    ({"start": "now", "batch": 1}, None), ({"time_ms": 0, "event_ms": 0}, None),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "expected"), STARTS)
async def test_a_consumer_starts_at_the_one_place_that_is_given(
    sent: dict[str, Any], expected: tuple[str, int] | None
) -> None:
    command = await ordered(flows.start, {"nonce": NONCE, **sent}, **BOX)
    assert command == (Code.BAD_REQUEST if expected is None else fc.StartConsumer("f", "c", NONCE, *expected))  # type: ignore[arg-type]


ORDERS: list[tuple[Any, Any, str, dict[str, str], Any]] = [
    (flows.attach, {"nonce": NONCE}, "", BOX, fc.Attach("f", "c", NONCE)),
    (flows.attach, {"nonce": ""}, "", BOX, Code.BAD_REQUEST),
    (flows.start, {"nonce": "", "start": "now"}, "", BOX, Code.BAD_REQUEST),
    (flows.remove, None, "version=4", BOX, fc.RemoveConsumer("f", "c", 4)),
    (flows.remove, None, "", BOX, Code.BAD_REQUEST),
    (flows.delete, None, "version=4", {"flow": "f"}, fc.DeleteFlow("f", 4, False)),
    (flows.delete, None, "version=4&force=false", {"flow": "f"}, fc.DeleteFlow("f", 4, False)),
    (flows.delete, None, "version=4&force=true", {"flow": "f"}, fc.DeleteFlow("f", 4, True)),
    (flows.delete, None, "version=4&force=1", {"flow": "f"}, Code.BAD_REQUEST),
    (flows.delete, None, "force=true", {"flow": "f"}, Code.BAD_REQUEST),
    (flows.alter, {"version": 0, "linger_ms": 1}, "", {"flow": "f"}, Code.BAD_REQUEST),
    *((flows.cursor, {"batch": n, "fence": 7, "replay": again}, "", BOX, fc.MoveCursor("f", "c", n, 7, again))
      for n in (0, 5) for again in (False, True)),
    (flows.cursor, {"batch": -1, "fence": 7}, "", BOX, Code.BAD_REQUEST),
    (flows.cursor, {"batch": 2**53, "fence": 7}, "", BOX, Code.BAD_REQUEST),
    (flows.cursor, {"batch": 5, "fence": 0}, "", BOX, Code.BAD_REQUEST),
    *((handler, None, "", {**BOX, part: "no name"}, Code.BAD_REQUEST)
      for handler in (flows.attach, flows.start, flows.remove, flows.cursor, flows.cascade) for part in BOX),
    *((handler, {}, "version=1", {"flow": "no name"}, Code.BAD_REQUEST)
      for handler in (flows.declare, flows.alter, flows.delete, flows.describe, flows.watch, flows.dead_letters)),
]  # fmt: skip


async def test_each_change_of_a_flow_or_consumer_orders_what_its_path_query_and_body_say() -> None:
    for handler, body, query, path, expected in ORDERS:
        assert await ordered(handler, body, query=query, **path) == expected, (handler.__name__, body, query, path)


async def test_a_part_of_a_cascade_needs_the_right_to_write_each_of_its_tables_and_is_charged_for_all_writes() -> None:
    writes = [{"op": "put", "table": f"a.{at % 2}", "key": "k", "value": at} for at in range(5)]
    sent = {"batch": 2, "part": 3, "fence": 4, "last": True, "writes": writes}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    command = await ordered(flows.cascade, sent, identity=MINE, headers={"traceparent": trace}, **BOX)
    assert isinstance(command, c.Cascade)
    given = command.flow, command.consumer, command.batch, command.part, command.fence, command.last
    assert (given, command.traceparent) == (("f", "c", 2, 3, 4, True), trace)
    assert [(op.table, op.value) for op in command.ops] == [(f"a.{at % 2}", b"%d" % at) for at in range(5)]
    beyond = {**sent, "writes": [*writes, {"op": "delete", "table": "b", "key": "k"}]}
    assert await ordered(flows.cascade, beyond, identity=MINE, **BOX) is Code.FORBIDDEN
    reads = Identity("n", "ann", frozenset({Scope.FLOWS, Scope.READ}))
    assert await ordered(flows.cascade, sent, identity=reads, **BOX) is Code.FORBIDDEN
    for body, charged in ((sent, 5), ({**sent, "writes": []}, 1)):
        asked = Asked(Recording(), body, **BOX)
        with pytest.raises(Ordered):
            await flows.cascade(asked)  # type: ignore[arg-type]
        assert asked.charged == [charged]


async def test_flows_are_told_as_they_are_in_the_log_and_only_those_that_the_token_may_read() -> None:
    node = LaggingNode()
    node.commit(c.DeclareTable("t", "resident", 1 << 20))
    for name in ("a.f", "b.f", "a.g"):
        node.commit(fc.DeclareFlow(msgspec.json.encode({"name": name, "source": "t"})))
    stale = await told(flows.list_all, node, query="consistency=stale")
    assert (stale.body, stale.headers[wire.H_AGE_MS]) == ({"flows": []}, "7")
    assert (await refusal(flows.describe, node, query="consistency=stale", flow="a.f")).code is Code.NOT_FOUND
    assert (await told(flows.describe, node, flow="a.f")).body["flow"] == "a.f"
    node.commit(fc.DeclareFlow(msgspec.json.encode({"name": "a.h", "source": "t"})))
    for identity, names in ((ANONYMOUS, ["a.f", "b.f", "a.g", "a.h"]), (MINE, ["a.f", "a.g", "a.h"])):
        assert [one["flow"] for one in (await told(flows.list_all, node, identity=identity)).body["flows"]] == names


async def test_dead_letters_are_told_as_the_store_has_them_up_to_the_bound() -> None:
    node, asked = LaggingNode(), list[tuple[str, int]]()
    node.commit(c.DeclareTable("t", "stream", 1 << 20))
    node.catch_up()
    letter = {"job": "j", "batch": 1, "commit": 2, "item_key": "k", "error": "e", "time_ms": 3}

    shown_letter = {"key" if name == "item_key" else name: value for name, value in letter.items()}

    async def letters(flow: str, limit: int) -> Any:
        asked.append((flow, limit))
        return SimpleNamespace(letters=[letter], found=9, whole=False)

    node.stream_store = None  # type: ignore[attr-defined]
    none = {"store": False, "letters": [], "found": 0, "whole": True}
    assert (await told(flows.dead_letters, node, flow="t")).body == none
    node.stream_store = SimpleNamespace(dead_letters=letters)  # type: ignore[attr-defined]
    for query, limit in (("", 50), ("limit=1", 1), ("limit=1000", 1000), ("limit=1001", 1000)):
        shown = (await told(flows.dead_letters, node, flow="t", query=query)).body
        assert shown == {"store": True, "letters": [shown_letter], "found": 9, "whole": False}
        assert asked.pop() == ("t", limit)
    for query, flow, code in (("limit=0", "t", Code.BAD_REQUEST), ("", "u", Code.NOT_FOUND)):
        assert (await refusal(flows.dead_letters, node, flow=flow, query=query)).code is code
    assert not asked


async def test_a_batch_is_named_by_its_checksum_and_told_in_the_form_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = LaggingNode()

    async def batch(name: str, number: int) -> tuple[bytes, str]:
        assert (name, number) == ("f", 3)
        return b"arrow", "abc"

    node.reads.batch = batch
    monkeypatch.setattr(flows, "to_json_lines", lambda payload: [b"lines of ", payload])
    for accept, kind, body in (
        ("", wire.ARROW, b"arrow"), ("*/*", wire.ARROW, b"arrow"),
        (wire.JSON, JSON_LINES, b"lines of arrow"), (JSON_LINES, JSON_LINES, b"lines of arrow"),
    ):  # fmt: skip
        for held, status in ((None, 200), ('"abc"', 304), ('"abd"', 200)):
            headers = {"Accept": accept} | ({} if held is None else {"If-None-Match": held})
            answer: Any = await flows.batch(Asked(node, headers=headers, flow="f", n="3"))  # type: ignore[arg-type]
            assert (answer.status, answer.headers["ETag"]) == (status, '"abc"')
            assert "immutable" in answer.headers["Cache-Control"]
            if status == 200:
                assert (answer.content_type, answer.body) == (kind, body)
    assert (await refusal(flows.batch, node, flow="f", n="0")).code is Code.BAD_REQUEST


class Stream:
    """A response whose client reads all; ``written``: by the piece."""

    def __init__(self, headers: Any) -> None:
        self.headers, self.written = headers, list[bytes]()

    async def prepare(self, request: Any) -> None:
        pass

    async def write(self, data: bytes) -> None:
        self.written.append(data)


def told_in(piece: bytes) -> list[int]:
    events = [event.split("\n") for event in piece.decode().split("\n\n")[:-1]]
    numbers = [int(event[0].removeprefix("id: ")) for event in events]
    assert all(
        event[1:] == ["event: sealed", f'data: {{"batch":{at}}}'] for event, at in zip(events, numbers, strict=True)
    )
    return numbers


class Watched(LaggingNode):
    """A flow with batches 4..9 that seals three more, one at each wait; then ``end`` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged = False
        batches = SimpleNamespace(first=4, last=9)
        self.flow = SimpleNamespace(batches=batches)
        self.flows = {"f": self.flow}
        found: Any = SimpleNamespace(get=self.flows.__getitem__, find=self.flows.get)
        self.machine: Any = SimpleNamespace(flows=found, commit=77)
        self.reads.next_seal = self.next_seal
        self.waits, self.end = 0, self.damage

    def damage(self) -> None:
        self.damaged = True

    async def next_seal(self, name: str, told: int) -> None:
        if told >= self.flow.batches.last:
            self.waits += 1
            assert self.waits < 9, "it goes on behind its end"
            self.flow.batches.last += 1
            if self.waits == 3:
                self.end()


async def watched(node: Watched, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Stream:
    streams: EventStreams = {}
    made: list[Stream] = []

    def begun(headers: Any) -> Stream:
        made.append(Stream(headers))
        return made[0]

    monkeypatch.setattr(web, "StreamResponse", begun)
    asked = Asked(node, flow="f", **how)
    asked.app[flows._watchers] = streams
    drained: Any = SimpleNamespace(drain=lambda: node.reach("stale", 0))
    asked.writer = drained  # type: ignore[attr-defined]
    await flows.watch(asked)  # type: ignore[arg-type]
    assert not streams, "who is told nothing more takes no place"
    return made[0]


POSITIONS = [
    ("", None, [[10], [11]]), ("after=9", None, [[10], [11]]), ("after=7", None, [[8, 9], [10], [11]]),
    ("after=0", None, [[4, 5, 6], [7, 8, 9], [10], [11]]), ("after=3", None, [[4, 5, 6], [7, 8, 9], [10], [11]]),
    ("after=1", "8", [[9], [10], [11]]), ("", "6", [[7, 8, 9], [10], [11]]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "last_event", "expected"), POSITIONS)
async def test_watcher_is_told_each_retained_batch_behind_its_position_once_and_so_many_at_a_time(
    query: str, last_event: str | None, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "TOLD_MAX", 3)
    headers = {} if last_event is None else {"Last-Event-ID": last_event}
    stream = await watched(Watched(), monkeypatch, query=query, headers=headers)
    assert [told_in(piece) for piece in stream.written] == expected
    assert stream.headers[wire.H_COMMIT] == "77"


@pytest.mark.parametrize("how", ["damage", "flow", "token"])
async def test_watch_ends_with_its_flow_its_token_and_a_sound_state(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node, gone = Watched(), list[str]()
    node.end = {"damage": node.damage, "flow": node.flows.clear, "token": lambda: gone.append("f")}[how]
    monkeypatch.setattr(f"{flows.__name__}.is_still_known", lambda request, scope, name: name not in gone)
    assert len((await watched(node, monkeypatch)).written) == 2
    assert node.waits == 3


async def test_watchers_of_a_tenant_are_as_many_as_it_leaves_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "WATCHERS_MAX", 8)
    monkeypatch.setattr(f"{flows.__name__}.is_still_known", lambda *_: False)
    monkeypatch.setattr(web, "StreamResponse", Stream)
    bob = Asked(Watched(), identity=MINE._replace(tenant="bob"))
    for others, own, fits in ((0, 3, True), (0, 4, False), (4, 1, True), (4, 2, False)):
        asked = Asked(Watched(), identity=MINE, flow="f")
        watching = [bob] * others + [asked] * own
        asked.app[flows._watchers] = {at: SimpleNamespace(request=one) for at, one in enumerate(watching)}
        if fits:
            await flows.watch(asked)  # type: ignore[arg-type]
            assert len(asked.app[flows._watchers]) == len(watching)
            continue
        with pytest.raises(OncegateError) as refused:
            await flows.watch(asked)  # type: ignore[arg-type]
        assert (refused.value.code, refused.value.retry_after_ms) == (Code.OVERLOADED, 1000)
