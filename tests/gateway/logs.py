"""Logs of random entries for tests of the whole state: seeded, long, of every command, cheap to make."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import msgspec

from oncegate.gateway import wire
from oncegate.gateway.http import range_bodies, request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.flow_commands import Start
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import in_columns
from oncegate.gateway.machine.results import AppliedPart
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ClusterTimeMs
from oncegate.rifl.rule import Applied, OpVerdict, Rejected, Replayed


def told(verdict: OpVerdict) -> tuple[int, Code | None, CompletionRecord | None, bool]:
    """Sequence number, a refusal's code, the record, and whether it was answered from memory."""
    if isinstance(verdict, Rejected):
        return verdict.sequence, verdict.refusal.code, None, False
    return verdict.sequence, None, verdict.record, isinstance(verdict, Replayed)


def apart(verdicts: Iterable[OpVerdict | AppliedPart]) -> Iterator[OpVerdict]:
    """Yield a verdict for each operation, also for those of a run, whose fingerprints are not told."""
    for verdict in verdicts:
        if isinstance(verdict, AppliedPart):
            for at in range(verdict.last - verdict.first + 1):
                yield Applied(verdict.first + at, CompletionRecord(0, verdict.commit + at))
        else:
            yield verdict


START: list[c.Command] = [
    c.DeclareTable("t", "resident", 1 << 20),
    c.DeclareTable("u", "resident", 4_000),
    c.DeclareTable("s", "stream", 1 << 20),
    c.DeclareTable("r", "resident", 1 << 20),
    c.DeclareFlow(b'{"name":"f","source":"t","max_items":40,"consumers":["x"],"retention_ms":500}'),
    c.DeclareFlow(b'{"name":"c","source":"t","max_items":2,"retention_ms":0,"target":["s","r"]}'),
    c.Attach("c", "job", "a"),
    *(c.OpenSession(f"n{number}", 5_000, 16) for number in range(1, 5)),
]


_INCARNATIONS = range(5, 25)
"""Numbers of tables that are declared behind these."""
_STARTS: tuple[Start, ...] = ("beginning", "now", "cursor", "batch", "time", "ago")


class RandomLog:
    """Endless entries; the same for the same seed."""

    def __init__(self, seed: int, keys: int = 40) -> None:
        self.rng = random.Random(seed)
        self.ends = random.Random(seed)  # of its own: which rows end changes nothing else of the log
        self.mixed = random.Random(seed)  # likewise: transactions, and a table that is dropped
        self.transacted: list[c.Command] = []
        self.bursts = random.Random(seed)  # likewise: runs of puts
        self.burst: c.Command = c.ForgetKeys()
        self.keys = keys
        self.now_ms = 0
        self.cascaded = 1
        self.next = dict.fromkeys(range(1, 200), 1)
        self.digests: dict[int, str] = {}
        self.entries: list[bytes] = [c.encode_entry(0, START)]

    def at(self, index: int) -> bytes:
        """Return the entry at ``index``, from 1."""
        while len(self.entries) < index:
            self.now_ms += self.rng.choice((0, 0, 5, 20, 300))
            commands = [self._ending(self._command()) for _ in range(self.rng.randint(0, 4))]
            if self.ends.random() < 0.2:
                keys = [f"k{number}" for number in self.ends.sample(range(self.keys), self.keys // 2)]
                commands.append(c.EndRows({self.ends.choice(("t", "u", "nowhere")): keys}))
            if self.mixed.random() < 0.6:
                commands += self._mixed()
            if self.bursts.random() < 0.4:
                commands.append(self._burst())
            self.entries.append(c.encode_entry(self.now_ms, commands))
        return self.entries[index - 1]

    def applied(self, last: int) -> Machine:
        """Return a machine, all in memory, that has applied entries 1 to ``last``."""
        machine = Machine()
        for index in range(1, last + 1):
            apply(machine, index, 1, self.at(index))
        return machine

    def _key(self) -> str:
        return f"k{self.rng.randrange(self.keys)}" + "\N{SNOWMAN}" * self.rng.randint(0, 1)

    def _operate(self) -> c.Command:
        client = self.rng.randint(1, 6)
        many = []
        for _ in range(self.rng.randint(1, 4)):
            first = self.next[client]
            sequence = max(1, first + self.rng.choice((0, 0, 0, 1, -1)))
            self.next[client] = max(first, sequence + 1)
            kind = self.rng.choice(("put", "put", "delete", "increment", "append", "get"))
            op = wire.Operation(sequence, kind, self.rng.choice(("t", "t", "t", "u", "s", "nowhere")), self._key())
            if kind == "put":
                op.value = self.rng.choice((self.rng.randint(0, 9), "x" * self.rng.randint(0, 400), [1, None]))
            elif kind == "increment":
                op.by = self.rng.choice((1, -3, 2**62))
            elif kind == "append":
                op.item = self.rng.choice((1, "x" * 30))
            if kind != "get" and self.rng.random() < 0.2:
                op.if_ = self.rng.choice(({"absent": True}, {"version": 3}, {"value": 5}))
            many.append(op)
        acked = max(1, self.next[client] - self.rng.randint(1, 12))
        trace = self.rng.choice(("", f"00-{self.rng.getrandbits(127) + 1:032x}-00f067aa0ba902b7-01"))
        return request_bodies.operations(wire.OperationsRequest(f"{client:016x}", 1, acked, many), traceparent=trace)

    def _ending(self, command: c.Command) -> c.Command:
        """Return the same operations, some with a time to live or bound to their session."""
        if not isinstance(command, c.Operate) or self.ends.random() < 0.6:
            return command
        choice, ops = self.ends.choice, []
        for op in command.ops:
            late = {"ttl_ms": choice((0, 1, 300, 5_000)), "bound": choice((False, True))}
            draft = c.with_options(op, **late)
            ops.append(msgspec.structs.replace(draft, fingerprint=c.fingerprint(draft)))
        sent = command.client_id, command.epoch, command.first_incomplete
        return c.Operate(*sent, ops, command.tenant, command.traceparent)

    def _mixed(self) -> list[c.Command]:
        """Return a transaction, of a session or under a key, or what becomes of the table "x"."""
        dice, kind = self.mixed, self.mixed.random()
        if kind < 0.1:
            return [c.DeclareTable("x", "resident", 1 << 20)]
        if kind < 0.15:
            return [c.DropTable("x", number, dice.random() < 0.9) for number in _INCARNATIONS]
        if kind < 0.25:
            return [c.SweepTables(), c.EndRows({"x": [f"k{number}" for number in range(self.keys)]})]
        if kind < 0.4:
            return self.transacted  # sent again
        client = dice.randint(1, 6)
        self.next[client] += 1
        sequence = max(1, self.next[client] - dice.choice((1, 1, 1, 2)))
        sent = wire.OperationsRequest(f"{client:016x}", 1, max(1, sequence - 8), [self._transaction(sequence)])
        command = request_bodies.operations(sent)
        assert isinstance(command, c.Operate)
        keyed = c.KeyedOp(f"m{dice.randrange(40)}", ClusterTimeMs(-1), command.ops[0])
        self.transacted = [command if kind < 0.8 else c.Keyed(500, [keyed])]
        return self.transacted

    def _burst(self) -> c.Command:
        """Return a request with a run of puts, new or sent again, in columns."""
        dice = self.bursts
        if dice.random() < 0.3:
            return self.burst
        client, table, count = dice.randint(1, 6), dice.choice(("t", "t", "u", "s", "nowhere")), dice.randint(7, 11)
        first = max(1, self.next[client] - dice.choice((0, 0, 0, 0, 2)))
        self.next[client] = first + count
        many = [
            wire.Operation(first + at, "put", table, f"k{dice.randrange(self.keys)}", "x" * dice.randint(0, 99))
            for at in range(count)
        ]
        many[-1].op = dice.choice(("put", "increment"))
        if many[-1].op == "increment":
            many[-1].value = msgspec.UNSET
        sent = wire.OperationsRequest(f"{client:016x}", 1, max(1, first - dice.randint(0, 6)), many)
        self.burst = in_columns(request_bodies.operations(sent, traceparent=dice.choice(("", "00-b"))))
        assert isinstance(self.burst, c.Operate)
        return self.burst

    def _transaction(self, sequence: int) -> wire.Operation:
        dice, writes = self.mixed, list[wire.Write]()
        for _ in range(dice.randint(1, 5)):
            kind = dice.choice(("put", "put", "put", "delete", "increment", "append", "get"))
            place = "sum" if kind == "increment" else "list" if kind == "append" else f"k{dice.randrange(self.keys)}"
            table = dice.choice(("t", "u", "x", "s" if kind in ("put", "delete") else "r"))
            write = wire.Write(kind, table, place)
            if kind == "increment":
                write.by, write.floor = dice.choice((1, -2)), -3
            elif kind == "append":
                write.item = 1
            elif kind == "put":
                write.value = dice.choice((1, "x" * dice.randint(0, 200)))
            if kind not in ("delete", "get") and table != "s" and dice.random() < 0.3:
                write.ttl_ms, write.bound = dice.choice((1, 300, 5_000)), dice.random() < 0.5
            writes.append(write)
        test = dice.choice(({"absent": True}, {"version": 3}))
        row = wire.Condition("t", f"k{dice.randrange(self.keys)}", test)
        live = wire.Condition(session=f"{dice.randint(1, 6):016x}")
        conditions = dice.choice(([], [], [row], [live]))
        return wire.Operation(sequence, "transaction", writes=writes, conditions=conditions)

    def _range(self) -> c.Command:
        client, length = self.rng.randint(1, 5), self.rng.randint(1, 6)
        first = self.next[client]
        self.next[client] += length
        columns = wire.RangeBody([self._key() for _ in range(length)], ["1"] * length)
        body = msgspec.msgpack.encode(columns)
        made = range_bodies.range_command("s", client, 1, max(1, first - 4), first, body, wire.MSGPACK)
        return msgspec.structs.replace(made, traceparent=self.rng.choice(("", "00-t")))

    def _keyed(self) -> c.Command:
        operated = self._operate()
        assert isinstance(operated, c.Operate)
        ops = [c.KeyedOp(f"k{self.rng.randrange(200)}", self.rng.choice((-1, -1, 100)), op) for op in operated.ops]
        return c.Keyed(
            self.rng.choice((200, 1_000)), ops, self.rng.choice(("", "", "bob")), self.rng.choice(("", "00-k"))
        )

    def _command(self) -> c.Command:
        kind = self.rng.randrange(18)
        rng = self.rng
        if kind < 7:
            return self._operate()
        if kind < 9:
            return self._range()
        if kind >= 16:
            return self._cascade()
        if kind >= 14:
            return c.ForgetKeys() if rng.random() < 0.2 else self._keyed()
        if kind == 9:
            return c.Seal(rng.choice(("s", "f")), rng.randint(1, 30))
        if kind == 10:
            return rng.choice((c.Attach("f", rng.choice("xy"), rng.choice("ab")), c.Attach("s", "z", "a")))
        if kind == 11:
            return c.MoveCursor(rng.choice(("s", "f")), rng.choice("xyz"), rng.randint(0, 9), 1, rng.random() < 0.2)
        if kind == 12:
            client = rng.randint(1, 8)
            of_one = [c.RenewSession(client, 1), c.TakeOver(client, rng.choice(("n1", "m"))), c.CloseSession(client, 1)]
            return rng.choice(of_one + [c.Resolve(client, self.next[client] + rng.randint(-3, 3) or 1) for _ in "ab"])
        return rng.choice(
            (
                c.OpenSession(f"n{rng.randint(1, 30)}", 5_000, 16),
                c.OpenSession(f"n{rng.randint(1, 30)}", 5_000, 16),
                c.Reap(list(range(1, 9))),
                c.DeclareTable(rng.choice(("v", "w")), "resident", 9_000),
                c.DeclareFlow(b'{"name":"g","source":"u","max_items":3}'),
                self._change_of_a_flow(),
                self._change_of_a_flow(),
                self._change_of_a_flow(),
            )
        )

    def _change_of_a_flow(self) -> c.Command:
        """Return a change of a flow or consumer; some are of the version of now."""
        rng = self.rng
        version = rng.randint(1, 6)
        return rng.choice(
            (
                c.DeclareFlow(b'{"name":"h","source":"t","max_items":5,"consumers":["x"],"consumer_expiry_ms":900}'),
                c.DeclareFlow(b'{"name":"h","source":"t","max_items":5,"consumers":["x"],"consumer_expiry_ms":900}'),
                c.AlterFlow("f", version, b'{"consumers":["%s"],"max_items":%d}' % (rng.choice((b"x", b"y")), 40)),
                c.AlterFlow("h", version, b'{"retention_ms":%d}' % rng.choice((0, 500))),
                c.DeleteFlow(rng.choice("gh"), version, True),
                c.StartConsumer(rng.choice("fh"), rng.choice("xyz"), rng.choice("cd"), rng.choice(_STARTS), 3),
                c.RemoveConsumer(rng.choice("fh"), rng.choice("xyz"), version),
                c.ExpireConsumers("h"),
                c.AlterFlow("f", version, b'{"shed_lag_bytes":%d}' % rng.choice((0, 300, 3_000))),
                c.AlterFlow("f", version, b'{"event_time":"%s"}' % rng.choice((b"at", b""))),
                c.ClockBatches("f", "at", rng.randint(1, 9), [rng.randint(0, 99) for _ in range(3)]),
            )
        )

    def _cascade(self) -> c.Command:
        rng = self.rng
        writes = [
            wire.CascadeWrite("put", "s", f"k{rng.choice((1, 1, 1, 2))}", 1),
            wire.CascadeWrite("increment", "r", "n", by=1),
        ]
        batch, number = rng.randint(max(1, self.cascaded - 2), self.cascaded), rng.choice((1, 2))
        self.cascaded += rng.random() < 0.1
        sent = wire.Cascade(batch, number, rng.choice((1, 1, 1, 2)), number == 2, writes)
        return request_bodies.cascade("c", "job", sent)
