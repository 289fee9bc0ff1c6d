"""Right traffic of every kind raises no alarm, and one that is applied twice does: a node, its machine and its windows.

Requests of sessions and under keys, single and many, with transactions of several rows, sent again at any time; answers
come in any order; rows end by themselves, also some of before. Which rows are sampled is chosen anew for each run.
"""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from oncegate.gateway.answers import Answer, answer
from oncegate.gateway.live_check.checker import LiveChecker
from oncegate.gateway.live_check.recorder import RowSample
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.ids import ClusterTimeMs, Fingerprint, SequenceNumber
from oncegate.rifl.key_table import NO_TIME
from tests.live_check.test_windows_model import Nobody

KEYS = "abcd"
SESSIONS = (1, 2)


class Traffic:
    """Requests to one node that is its cluster; every answer is told in the end."""

    def __init__(self, seed: int, *, ends: float = 0.0) -> None:
        """``ends``: share of the puts whose rows end."""
        self.dice, self.machine, self.ends = random.Random(seed), Machine(), ends
        opened = [c.OpenSession(f"n{one}", 10**9, 512) for one in SESSIONS]
        self.index = 0
        self.sequence = dict.fromkeys(SESSIONS, 0)
        self.apply([c.DeclareTable("t", "resident", 1 << 20), *opened])
        if ends and self.dice.random() < 0.5:
            for number, key in enumerate(KEYS, 1):
                put = self._lasting(self._put(SequenceNumber(number)))
                more_ms = (put.options or c.NO_OPTIONS).ttl_ms + 9_000
                put = c.with_options(msgspec.structs.replace(put, key=key, test=int(c.Test.NONE)), ttl_ms=more_ms)
                self.apply([c.Operate(1, 1, SequenceNumber(1), [put])])
            self.sequence[1] = len(KEYS)
            self.ends = self.dice.choice((0.0, ends))
        share = self.dice.choice((1.0, 0.5))
        self.check = LiveChecker("n1", share, seed, 1_000, Nobody(), list, ends=lambda: self.machine.ends.used)
        self.keys = 0
        self.sent: list[c.AnyOperate] = []
        self.open: list[tuple[asyncio.Future[Answer], Answer]] = []

    def apply(self, commands: list[c.Command]) -> list[object]:
        self.index += 1
        return apply(self.machine, self.index, 1, c.encode_entry(1_000 * self.index, commands))

    def end_rows(self) -> None:
        """Propose what is due, as a leader does."""
        if rows := self.machine.ends.due(1_000 * self.index, c.END_MAX):
            self.apply([c.EndRows(rows)])

    def _op(self, sequence: int) -> c.Op | c.Transaction:
        number = SequenceNumber(sequence)
        if self.dice.random() < 0.5:
            return self._write(number)
        writes = [self._write(number) for _ in range(self.dice.randint(1, 3))]
        conditions = []
        if self.dice.random() < 0.3:
            conditions.append(c.Condition("t", self.dice.choice(KEYS), int(c.Test.ABSENT), None))
        return c.Transaction(number, Fingerprint(sequence), conditions, writes)

    def _write(self, number: SequenceNumber) -> c.Op:
        kind = self.dice.choice((c.OpKind.PUT, c.OpKind.INCREMENT, c.OpKind.DELETE))
        if kind == c.OpKind.PUT:
            put = self._put(number)
            return self._lasting(put) if self.dice.random() < self.ends else put
        by = self.dice.randint(1, 3) if kind == c.OpKind.INCREMENT else 0
        return c.Op(number, int(kind), "t", self.dice.choice(KEYS), Fingerprint(number), None, by=by)

    def _put(self, number: SequenceNumber) -> c.Op:
        test = self.dice.choice((c.Test.NONE, c.Test.NONE, c.Test.ABSENT))
        value = b"%d" % self.dice.randint(0, 9)
        return c.Op(number, int(c.OpKind.PUT), "t", self.dice.choice(KEYS), Fingerprint(number), value, test=int(test))

    def _lasting(self, put: c.Op) -> c.Op:
        return c.with_options(put, ttl_ms=1_000 * self.dice.choice((1, 2, 20)))

    def ask(self) -> None:
        """Send a new request, or one of before again, as it was."""
        if self.sent and self.dice.random() < 0.3:
            command = self.dice.choice(self.sent)
        elif self.dice.random() < 0.3:
            self.keys += 1
            command = c.Keyed(60_000, [c.KeyedOp(f"key{self.keys}", ClusterTimeMs(NO_TIME), self._op(1))])
        else:
            session, ops = self.dice.choice(SESSIONS), []
            for _ in range(self.dice.randint(1, 3)):
                self.sequence[session] += 1
                ops.append(self._op(self.sequence[session]))
            command = c.Operate(session, 1, SequenceNumber(1), ops)
        self.sent.append(command)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.check.recorder.watch(command, future)
        (result,) = self.apply([command])
        self.open.append((future, answer(command, result, self.machine)))

    def read(self) -> None:
        recorder, key = self.check.recorder, self.dice.choice(KEYS)
        if recorder.has("t", key):
            floor, row = recorder.read_floor(linearizable=True), self.machine.tables["t"].rows.get(key)
            seen = (0, None) if row is None else (row.version, row.value)
            recorder.read("t", key, self.machine.commit, floor, *seen)

    async def tell(self) -> None:
        future, told = self.open.pop(self.dice.randrange(len(self.open)))
        future.set_result(told)
        await asyncio.sleep(0)

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            self.end_rows()
            what = self.dice.choice(("ask", "ask", "tell", "tell", "read", "window"))
            if what == "ask":
                self.ask()
            elif what == "read":
                self.read()
            elif what == "tell" and self.open:
                await self.tell()
            elif what == "window":
                await self.check.check_window()
        while self.open:
            await self.tell()
        await self.check.check_window()


@pytest.mark.parametrize("ends", [0.0, 0.04, 0.3])
@pytest.mark.parametrize("seed", range(40))
async def test_right_traffic_raises_no_alarm_however_it_is_sent_again(seed: int, ends: float) -> None:
    traffic = Traffic(seed, ends=ends)
    await traffic.run(120)
    assert traffic.check.first_anomaly == ""
    found = (await traffic.check.report()).cluster
    assert found.first_anomaly == ""
    if all(traffic.check.recorder.has("t", key) for key in KEYS):
        assert (traffic.check.verdict, found.verdict) == ("ok", "ok")


@pytest.mark.parametrize("writes", [1, 2, 3])
async def test_a_transaction_that_is_executed_twice_is_an_alarm(writes: int) -> None:
    """The second time is that of another request, whose answer is told under the id of the first."""
    traffic = Traffic(3)
    traffic.check.recorder._choice = RowSample(1.0, 0)
    await traffic.run(40)
    answers: list[Answer] = []
    for number in map(SequenceNumber, (500, 501)):
        puts = [c.Op(number, int(c.OpKind.PUT), "t", key, Fingerprint(0), b"1") for key in KEYS[:writes]]
        command = c.Operate(1, 1, SequenceNumber(1), [c.Transaction(number, Fingerprint(0), [], puts)])
        (result,) = traffic.apply([command])
        answers.append(answer(command, result, traffic.machine))
        (told,) = answers[-1].body.results
        assert told.status == "applied"
        told.sequence = 500
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        traffic.check.recorder.watch(command, future)
        future.set_result(answers[-1])
        await asyncio.sleep(0)
        await traffic.check.check_window()
        assert bool(traffic.check.anomalies) == (number == 501)
    assert "executed twice" in traffic.check.first_anomaly
