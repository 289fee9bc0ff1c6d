"""What a node records of its traffic, and what its windows find, against a plain reading of the same history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer, answer
from oncegate.gateway.http import request_bodies
from oncegate.gateway.live_check.checker import LiveChecker
from oncegate.gateway.live_check.recorder import (
    READ,
    VALUE_BYTES_MAX,
    RowSample,
    Seen,
    WindowRecorder,
    of_read,
    of_result,
)
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.ids import Fingerprint, SequenceNumber
from tests.live_check.test_order import true_history

PUT = {"op": "put", "table": "t", "key": "r/1", "value": 1}
TAKE = {"op": "take", "table": "t", "key": "r/", "to": "x/", "count": 1, "bound": True}


class Nobody:
    """No other nodes."""

    async def call(self, peer_id: str, payload: bytes, *, timeout_s: float) -> bytes:
        raise AssertionError


def checker(others: Sequence[str] = ()) -> LiveChecker:
    return LiveChecker("n1", 1.0, 7, 1_000, Nobody(), lambda: others)


class Traffic:
    """Requests at one node whose answers come in any order; notes of each which answers came before it was asked."""

    def __init__(self, seed: int) -> None:
        self.dice, self.recorder, self.machine = random.Random(seed), WindowRecorder(RowSample(1.0, 7)), Machine()
        session = c.OpenSession("n", 60_000, 512)
        apply(self.machine, 1, 1, c.encode_entry(0, [c.DeclareTable("t", "resident", 1 << 20), session]))
        self.number, self.told, self.read_told = 0, 0, 0
        self.open: list[tuple[asyncio.Future[Answer], Answer, int]] = []
        self.floors: dict[str, int] = {}
        self.reads: list[tuple[int, int]] = []

    def ask(self) -> None:
        ops = []
        for _ in range(self.dice.randint(1, 3)):
            self.number += 1
            op = wire.Operation(
                self.number, self.dice.choice(("put", "increment", "get")), "t", self.dice.choice("abc")
            )
            if op.op == "put":
                op.value = self.number
            ops.append(op)
            self.floors[f"{1:016x}/{self.number}"] = self.told
        command = request_bodies.operations(wire.OperationsRequest(f"{1:016x}", 1, 1, ops))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.recorder.watch(command, future)
        (result,) = apply(self.machine, self.number + 1, 1, c.encode_entry(0, [command]))
        self.open.append((future, answer(command, result, self.machine), self.machine.commit))

    async def tell(self) -> None:
        if self.open:
            future, told, commit = self.open.pop(self.dice.randrange(len(self.open)))
            future.set_result(told)
            await asyncio.sleep(0)
            self.told = max(self.told, commit)

    def read(self) -> None:
        linearizable = self.dice.random() < 0.5
        floor = self.recorder.read_floor(linearizable=linearizable)
        assert floor == (self.told if linearizable else self.read_told)
        # A weaker read may be of an older state than one before it: what this node has told does not go back with it.
        commit = self.machine.commit - (0 if linearizable else self.dice.randint(0, min(3, self.machine.commit)))
        self.recorder.read("t", "a", commit, floor, 0, None)
        self.reads.append((commit, floor))
        self.told, self.read_told = max(self.told, commit), max(self.read_told, commit)


@pytest.mark.parametrize("seed", range(15))
async def test_floor_of_each_operation_is_the_newest_commit_answered_before_it_was_asked_for(seed: int) -> None:
    traffic, seen = Traffic(seed), list[Seen]()
    for _ in range(60):
        what = traffic.dice.choice(("ask", "ask", "tell", "tell", "tell", "read", "take"))
        if what == "ask":
            traffic.ask()
        elif what == "tell":
            await traffic.tell()
        elif what == "read":
            traffic.read()
        else:
            seen += traffic.recorder.take()
    while traffic.open:
        await traffic.tell()
    seen += traffic.recorder.take()
    assert {one.request: one.floor for one in seen if one.logged} == traffic.floors
    assert sorted((one.commit, one.floor) for one in seen if one.what == READ) == sorted(traffic.reads)
    assert any(traffic.floors.values())


def _again(history: list[Seen], dice: random.Random) -> tuple[list[Seen], str]:
    """An operation is applied a second time, behind the others."""
    one = dice.choice([seen for seen in history if seen.writes])
    last = history[-1].commit
    twice = msgspec.structs.replace(one, commit=last + 1, version=last + 1, floor=0)
    return [*history, twice], "was executed twice"


def _late(history: list[Seen], dice: random.Random) -> tuple[list[Seen], str]:
    """An operation is asked for when a later one has been answered."""
    at = dice.choice([at for at, seen in enumerate(history) if seen.commit > 1 and not seen.replayed])
    older = msgspec.structs.replace(history[at], floor=history[at].commit + 1)
    return [*history[:at], older, *history[at + 1 :]], "it is older than what was known"


def _unborn(history: list[Seen], dice: random.Random) -> tuple[list[Seen], str]:
    """A read is told a version that was not there yet."""
    at = dice.choice([at for at, seen in enumerate(history) if seen.what == READ])
    wrong = msgspec.structs.replace(history[at], version=history[at].commit + 5)
    return [*history[:at], wrong, *history[at + 1 :]], "which did not exist yet"


def _windows(history: list[Seen], dice: random.Random) -> Iterator[list[Seen]]:
    at = 0
    while at < len(history):
        size = dice.randint(1, 60)
        yield history[at : at + size]
        at += size


@pytest.mark.parametrize("spoil", [_again, _late, _unborn])
@pytest.mark.parametrize("seed", range(6))
async def test_windows_of_a_node_and_the_look_at_all_nodes_find_each_kind_of_anomaly(seed: int, spoil: object) -> None:
    dice, history = random.Random(seed), true_history(seed)
    spoilt, words = spoil(history, dice)  # type: ignore[operator]
    for told, alarms in ((history, ""), (spoilt, words)):
        one = checker()
        for window in _windows(told, dice):
            one.recorder.seen, one.recorder._floor = list(window), history[-1].commit + 1
            await one.check_window()
        assert (one.verdict, bool(one.anomalies)) == (("anomaly", True) if alarms else ("ok", False))
        assert alarms in one.first_anomaly
        all_nodes = checker()
        all_nodes._kept.extend(told)
        found = (await all_nodes.report()).cluster
        assert found.verdict == ("anomaly" if alarms else "ok")
        assert alarms in found.first_anomaly


@pytest.mark.parametrize("left_at", range(1, 4))
async def test_what_others_did_before_they_were_removed_raises_no_alarm_after(left_at: int) -> None:
    """What this node recorded never was all that was done, and never will be."""
    others = ["n2", "n3"]
    check = checker(others)
    for window in range(4):
        await check.check_window()
        assert not check.complete
        if window + 1 == left_at:
            others.clear()
    alone = checker()
    await alone.check_window()
    assert alone.complete


async def test_rows_may_have_moved_from_the_first_take_on() -> None:
    """A row that was taken lies elsewhere: no later command makes what is known of all rows whole again."""
    recorder = WindowRecorder(RowSample(1.0, 7))
    for writes, moves in (((PUT,), False), ((PUT, TAKE), True), ((PUT,), True)):
        sent = msgspec.json.encode({"writes": writes})
        operation = msgspec.structs.replace(request_bodies.transaction(sent, wire.JSON), sequence=1)
        recorder.watch(c.Operate(1, 1, 1, [operation]), asyncio.get_running_loop().create_future())
        assert recorder.moves == moves


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("replayed", [False, True])
def test_a_record_says_whether_it_was_replayed_and_keeps_values_up_to_the_bound(over: int, *, replayed: bool) -> None:
    text = b'"' + bytes([120]) * (VALUE_BYTES_MAX - 2 + over) + b'"'
    op = c.Op(SequenceNumber(4), c.OpKind.PUT, "t", "k", Fingerprint(1), text)
    seen = of_result(op, 1, 3, wire.OperationResult(4, "applied", 9, 9, replayed=replayed))
    kept = text if over <= 0 else None
    assert seen == Seen("t", "k", "put", 9, 3, f"{1:016x}/4", replayed=replayed, version=9, argument=kept)
    assert of_read("t", "k", 9, 3, 9, text) == Seen("t", "k", READ, 9, 3, version=9, value=kept)
