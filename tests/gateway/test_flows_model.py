"""All flows of a machine against plain lists: what each batch holds, what is kept of it, and who is waited for.

Writes come alone, as transactions and as ranges; flows are declared, altered, sealed, clocked and deleted, consumers
attach, start, move, write parts, expire and are removed, commands come twice and late, and time goes by. The reference
keeps every item of every flow in a list and counts from there whatever the machine counts as it goes.

Flow ``s`` is the stream table's own; ``t`` has a table's name too, but of one whose rows stay, and ``g`` reads the
stream: to neither of them is the consumer ``rows`` anything special.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from oncegate.flows.chunks import SealedChunk, SinglesChunk, int64s_from_bytes
from oncegate.flows.cursor import NONCES_MAX
from oncegate.flows.flow import ROWS_CONSUMER, FlowDeclaration
from oncegate.flows.open_segment import GroupItem
from oncegate.gateway.machine import flow_commands as f
from oncegate.gateway.machine import flow_handlers
from oncegate.gateway.machine.flow_commands import Start
from oncegate.gateway.machine.flow_state import FlowTable
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.errors import Code, OncegateError

OVERHEAD = 40
Item = tuple[object, ...]
CONSUMERS = ("a", "b", ROWS_CONSUMER)
STARTS: tuple[Start, ...] = ("beginning", "now", "cursor", "batch", "time", "ago", "event")


@dataclass
class Reader:
    required: bool
    cursor: int
    alive_ms: int
    begun: int
    attached: bool = False
    moved: bool = False
    expired: bool = False
    fence: int = -1
    part: int = 0
    nonces: dict[str, tuple[Start | None, int, int]] = field(default_factory=dict)
    """Of the newest attaches: what was asked for, and the fence that was given."""


@dataclass
class Known:
    """A flow that is there; its batches by number, those that were dropped among them."""

    declaration: FlowDeclaration
    version: int
    altered_ms: int
    first: int
    readers: dict[str, Reader]
    open: list[Item] = field(default_factory=list)
    size: int = 0
    opened_ms: int = 0
    batches: dict[int, tuple[list[Item], int, int]] = field(default_factory=dict)
    clock: dict[int, int] = field(default_factory=dict)
    begun: int = 0

    def __post_init__(self) -> None:
        self.begun = self.first

    @property
    def last(self) -> int:
        return self.begun + len(self.batches) - 1

    def waited(self) -> list[Reader]:
        there = [one for one in self.readers.values() if not one.expired]
        return [one for one in there if one.required] or there

    def mark(self) -> int:
        return min((one.cursor for one in self.waited()), default=0)

    def bytes_after(self, number: int) -> int:
        return sum(self.batches[at][1] for at in range(max(number + 1, self.first), self.last + 1))

    def clocked(self) -> int:
        number = self.first - 1
        while number + 1 in self.clock:
            number += 1
        return number


def items_of(chunks: tuple[SealedChunk, ...] | list[SealedChunk]) -> list[Item]:
    found: list[Item] = []
    for chunk in chunks:
        if isinstance(chunk, SinglesChunk):
            traces = chunk.traceparents or (None,) * len(chunk.keys)
            columns = (
                int64s_from_bytes(one) for one in (chunk.commits, chunk.times_ms, chunk.client_ids, chunk.sequences)
            )
            commits, times, clients, sequences = columns
            found += zip(
                commits, chunk.keys, chunk.values, times, clients, sequences, (t or "" for t in traces), strict=True
            )
        else:
            of, first = chunk.client_id, chunk.first_sequence
            found += (
                (chunk.first_commit + at, "", chunk.offset + at, chunk.time_ms, of, first + at, chunk.traceparent)
                for at in range(chunk.count)
            )  # fmt: skip
    return found


def traced(items: list[Item]) -> object:
    """Return the last trace context since the last range: among single writes, one that follows itself counts once."""
    for item in reversed(items):
        if item[6] or not item[1]:
            return item[6] if item[1] else ""
    return ""


class Sides:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.flows = FlowTable()
        tables = {"t": SimpleNamespace(kind="resident"), "s": SimpleNamespace(kind="stream")}
        self.host = SimpleNamespace(flows=self.flows, tables=tables, time_ms=1)
        self.machine = cast(Machine, self.host)
        self.known: dict[str, Known] = {}
        self.used: dict[str, tuple[int, int]] = {}
        """Batches and versions of a deleted flow's name."""
        self.fences: set[tuple[str, str, int]] = set()
        self.sealed: list[tuple[str, int, list[Item], int]] = []
        self.dropped: list[tuple[str, int]] = []
        self.commit = self.nonce = self.refusals = 0
        self.sent: list[tuple[str, int, bytes]] = []
        self.removals: list[tuple[str, str, int]] = []
        self.stamps: dict[str, tuple[str, object]] = {}
        self.deletions: list[tuple[str, int]] = []
        self.declare("s")

    @property
    def now_ms(self) -> int:
        return cast(int, self.host.time_ms)

    # What the reference does.

    def cut(self, one: Known) -> None:
        number = one.last + 1
        one.batches[number] = (one.open, one.size, self.now_ms)
        self.sealed.append((one.declaration.name, number, one.open, one.size))
        one.open, one.size = [], 0
        self.retain(one)

    def retain(self, one: Known) -> None:
        said, through = one.declaration, one.first - 1
        for number in range(one.first, one.last + 1):
            old = one.batches[number][2] <= self.now_ms - said.retention_ms
            heavy = bool(said.retention_bytes) and one.bytes_after(number - 1) > said.retention_bytes
            read = not said.event_time or number <= one.clocked()
            if not (old or heavy) or number > one.mark() or not read:
                break
            through = number
            if heavy and not old and one.bytes_after(number) <= said.retention_bytes:
                break
        if through >= one.first:
            one.first = through + 1
            self.dropped.append((said.name, through))

    def full(self, one: Known) -> bool:
        return len(one.open) >= one.declaration.max_items or one.size >= one.declaration.max_bytes

    def changed(self, one: Known) -> None:
        one.version += 1
        self.retain(one)

    # What both do.

    def handled(self, handler: Any, command: Any) -> Any:
        return self.outcome(handler, self.machine, command)

    def outcome(self, call: Any, *args: Any, **more: Any) -> Any:
        try:
            return call(*args, **more)
        except OncegateError as fault:
            self.refusals += 1
            return fault.code

    def declare(self, name: str) -> None:
        if name in self.known:
            self.declare_again(name)
            return
        dice, source = self.dice, "t" if name == "t" else "s"
        said = FlowDeclaration(
            name=name, source=source, max_items=dice.randint(1, 5), max_bytes=dice.choice((150, 10_000)),
            linger_ms=dice.randint(0, 9), **self.changes()
        )  # fmt: skip
        assert self.flows.declare(said, ("t", "s"), self.now_ms) == name
        batches, versions = self.used.pop(name, (0, 0))
        readers = {one: Reader(True, batches, self.now_ms, batches) for one in said.consumers}
        self.known[name] = Known(said, versions + 1, self.now_ms, batches + 1, readers)

    def declare_again(self, name: str) -> None:
        """Declare what it is by now, which changes nothing, or what it is not."""
        said = self.known[name].declaration
        assert self.flows.declare(said, ("t", "s"), self.now_ms) == name
        other = msgspec.structs.replace(said, linger_ms=said.linger_ms + 1)
        assert self.outcome(self.flows.declare, other, ("t", "s"), self.now_ms) is Code.CONFLICT

    def changes(self) -> dict[str, Any]:
        dice = self.dice
        return {
            "consumers": tuple(one for one in CONSUMERS if dice.random() < 0.4),
            "retention_ms": dice.choice((0, 0, 5, 20)),
            "retention_bytes": dice.choice((0, 0, 120, 300)),
            "event_time": dice.choice(("", "at", "at", "by")),
            "consumer_expiry_ms": dice.choice((0, 4, 15)),
        }

    def alter(self, name: str) -> None:
        one = self.known[name]
        changes = self.changes()
        changes |= {"max_items": self.dice.randint(1, 5), "max_bytes": self.dice.choice((100, 150, 10_000))}
        some = {what: value for what, value in changes.items() if self.dice.random() < 0.4}
        self.sent.append((name, one.version - (self.dice.random() < 0.1), msgspec.json.encode(some)))
        self.send_alter(len(self.sent) - 1)

    def send_alter(self, at: int) -> None:
        name, version, text = self.sent[at]
        got = self.handled(flow_handlers.alter_flow, f.AlterFlow(name, version, text))
        one = self.known.get(name)
        if one is None:
            assert got is Code.NOT_FOUND
            return
        if name == "s":
            shedding = msgspec.json.encode({"shed_lag_bytes": 1})
            got_shedding = self.outcome(
                flow_handlers.alter_flow, self.machine, f.AlterFlow(name, one.version, shedding)
            )
            assert got_shedding is Code.BAD_REQUEST, "what it left out would be rows that were acknowledged"
        said = flow_handlers.altered(one.declaration, text)
        before = one.declaration
        rows = (ROWS_CONSUMER in said.consumers) != (ROWS_CONSUMER in before.consumers)
        if one.version == version + 1 and said == before:
            assert got == name, "sent again"
        elif one.version != version:
            assert got is Code.CONFLICT
        elif said == before:
            assert got == name
        elif rows and name == "s" and one.first > 1:
            assert got is Code.CONFLICT
        else:
            assert got == name
            for who, reader in list(one.readers.items()):
                if reader.required and who not in said.consumers:
                    reader.required = False
                    if not reader.attached:
                        del one.readers[who]
            begins = one.first - 1
            for who in said.consumers:
                if name == "s" and who == ROWS_CONSUMER and rows:
                    one.readers.pop(who, None)
                reader = one.readers.setdefault(who, Reader(True, begins, self.now_ms, begins))
                reader.required = True
            if said.event_time != before.event_time:
                one.clock = {}
            one.declaration, one.altered_ms = said, self.now_ms
            if self.full(one):
                self.cut(one)
            self.changed(one)

    def delete(self, name: str) -> None:
        one, force = self.known[name], self.dice.random() < 0.5
        version = one.version - (self.dice.random() < 0.3)
        got = self.handled(flow_handlers.delete_flow, f.DeleteFlow(name, version, force))
        attached = any(reader.attached for reader in one.readers.values())
        if version != one.version or name == "s" or (attached and not force):
            assert got is Code.CONFLICT
            return
        assert got == one.last
        self.dropped.append((name, one.last))
        self.used[name] = one.last, one.version + 1
        self.deletions.append((name, version))
        del self.known[name]

    def delete_again(self) -> None:
        if self.deletions:
            name, version = self.dice.choice(self.deletions)
            version += self.dice.choice((-1, 0, 0, 1))
            got = self.handled(flow_handlers.delete_flow, f.DeleteFlow(name, version, True))
            if name in self.known:
                assert got is Code.CONFLICT, "the flow of that name is another"
            elif self.used[name][1] == version + 1:
                assert got == self.used[name][0]
            else:
                assert got is Code.NOT_FOUND

    def write(self, name: str) -> None:
        del name
        dice, table = self.dice, self.dice.choice("tts")
        flows, now_ms, trace = self.flows, self.now_ms, self.dice.choice(("", "", "x" * 9, "y" * 9))
        what, count = dice.choice(("one", "one", "group", "range")), dice.randint(1, 7)
        first, taps = (
            self.commit + 1 + dice.randint(0, 2),
            [k for k in self.known.values() if k.declaration.source == table],
        )
        client, sequence, body, offset = (
            dice.randint(1, 3),
            dice.randint(1, 99),
            b"b" * dice.randint(1, 60),
            dice.randint(0, 3),
        )
        if what == "one":
            count = 1
            key, value = dice.choice(("k", "kk")), dice.choice((None, b"1", b"22"))
            flows.append_one(table, first, key, value, now_ms, client, sequence, trace)
            new: list[Item] = [(first, key, value, now_ms, client, sequence, trace)]
        elif what == "group":
            group = [GroupItem(first + at, dice.choice(("k", "kk")), dice.choice((None, b"1"))) for at in range(count)]
            flows.append_group(table, group, now_ms, client, sequence, trace)
            new = [(*item, now_ms, client, sequence, trace) for item in group]
        else:
            flows.append_range(table, first, count, now_ms, client, sequence, body, offset, trace)
            new = [(first + at, "", offset + at, now_ms, client, sequence + at, trace) for at in range(count)]
        self.commit = first + count - 1
        for one in taps:
            if what == "group" and one.open and len(one.open) + count > one.declaration.max_items:
                self.cut(one)
            left = list(new)
            while left:
                # A transaction is never cut; a range is, and each piece of it counts its whole body.
                room = len(left) if what == "group" else one.declaration.max_items - len(one.open)
                piece, left = left[:room], left[room:]
                one.size += OVERHEAD * len(piece)
                if what == "range":
                    one.size += len(body) + len(trace)
                else:
                    one.size += sum(len(cast(str, key)) + len(cast(bytes, value or b"")) for _, key, value, *_ in piece)
                    one.size += len(trace) if trace and trace != traced(one.open) else 0
                one.open += piece
                if self.full(one):
                    self.cut(one)

    def seal(self, name: str) -> None:
        one = self.known[name]
        due = [(k.declaration.name, k.last + 1) for k in self.known.values()
               if k.open and self.now_ms - cast(int, k.open[0][3]) >= k.declaration.linger_ms]  # fmt: skip
        assert self.flows.due(self.now_ms) == due
        number = one.last + self.dice.choice((0, 1, 1, 1, 2))
        if number == one.last + 1 and one.open:
            self.cut(one)
        assert self.flows.seal(name, number, self.now_ms) == one.last

    def clock(self, name: str) -> None:
        one = self.known[name]
        first = max(1, one.clocked() + self.dice.choice((0, 1, 1, 1, 2)))
        newest, member = (
            [self.dice.randint(0, 50) for _ in range(self.dice.randint(0, 4))],
            self.dice.choice(("at", "by")),
        )
        if member == one.declaration.event_time:
            for number, event in enumerate(newest, first):
                if number == one.clocked() + 1 and number <= one.last:
                    one.clock[number] = max(event, one.clock.get(number - 1, 0))
            self.retain(one)
        assert self.flows.clock(name, member, first, newest, self.now_ms) == one.clocked()

    def who(self) -> str:
        return self.dice.choice(CONSUMERS)

    def start(self, name: str) -> None:
        """Attach, where the consumer stands or elsewhere."""
        one, who, where = self.known[name], self.who(), self.dice.choice((None, None, *STARTS, "event", "event"))
        self.nonce += 1
        number, now_ms = self.dice.randint(0, self.now_ms), self.now_ms
        if where == "batch":
            number = self.dice.randint(max(1, one.first - 1), one.last + 2)
        if where == "event":
            number = self.dice.randint(1, 60)
        if where in ("time", "ago") and one.batches:
            sealed_ms = self.dice.choice(list(one.batches.values()))[2] + self.dice.randint(0, 1)
            number = sealed_ms if where == "time" else now_ms - sealed_ms
        nonce, reader = str(self.nonce), one.readers.get(who)
        if where is None:
            got = self.outcome(self.flows.attach, name, who, nonce, now_ms)
        else:
            got = self.outcome(
                flow_handlers.start_consumer, self.machine, f.StartConsumer(name, who, nonce, where, number)
            )
        since = {"time": number, "ago": now_ms - number}.get(where or "")
        cursor: int | Code | None = {"beginning": one.first - 1, "now": one.last, "batch": number - 1}.get(where or "")
        if since is not None:
            older = [at for at in range(one.begun, one.last + 1) if one.batches[at][2] < since]
            cursor = max(older, default=one.begun - 1)
            if cursor < one.first and one.first > one.begun:
                cursor = Code.RETENTION_EXCEEDED
        elif where == "event":
            older = [at for at in range(one.first, one.clocked() + 1) if one.clock[at] < number]
            cursor = max(older, default=one.first - 1)
            if not one.declaration.event_time:
                cursor = Code.BAD_REQUEST
            elif not older and any(one.clock.get(at, number) >= number for at in range(one.begun, one.first)):
                cursor = Code.RETENTION_EXCEEDED
        elif where == "cursor" and reader is None:
            cursor = Code.NOT_FOUND
        if isinstance(cursor, int):
            if name == "s" and who == ROWS_CONSUMER and reader and reader.required and cursor > reader.cursor:
                cursor = Code.CONFLICT
            elif cursor > one.last:
                cursor = Code.BAD_REQUEST
            elif cursor < one.first - 1:
                cursor = Code.RETENTION_EXCEEDED
        if isinstance(cursor, Code):
            assert got is cursor, (where, number)
            return
        fence, at = got
        if reader is None:
            begins = one.first - 1 if cursor is None else cursor
            reader = one.readers[who] = Reader(False, begins, now_ms, begins)
        reader.moved |= cursor is not None and cursor < reader.cursor
        if cursor is not None:
            reader.cursor, reader.part = cursor, 0
        reader.attached, reader.alive_ms, reader.expired, reader.fence = True, now_ms, False, fence
        reader.nonces[nonce] = where, number, fence
        if len(reader.nonces) > NONCES_MAX:
            del reader.nonces[next(iter(reader.nonces))]
        assert at == reader.cursor
        assert (name, who, fence) not in self.fences, "a fence is given out once"
        self.fences.add((name, who, fence))

    def start_again(self, name: str) -> None:
        """Send each start once more: the answer is the first one's, whatever was dropped, altered or moved since."""
        for who, reader in self.known[name].readers.items():
            for nonce, (where, number, fence) in reader.nonces.items():
                if where is None:
                    got = self.outcome(self.flows.attach, name, who, nonce, self.now_ms)
                else:
                    got = self.outcome(
                        flow_handlers.start_consumer, self.machine, f.StartConsumer(name, who, nonce, where, number)
                    )
                assert got == (fence, reader.cursor), (where, number)

    def move(self, name: str) -> None:
        one, who = self.known[name], self.who()
        reader = one.readers.get(who)
        if reader is None or not reader.attached:
            return
        batch, replay = self.dice.randint(max(0, one.first - 2), one.last + 1), self.dice.random() < 0.4
        got = self.outcome(self.flows.move, name, who, batch, reader.fence, replay=replay, now_ms=self.now_ms)
        if batch > one.last:
            assert got is Code.BAD_REQUEST
        elif batch != reader.cursor and batch + 1 < one.first:
            assert got is Code.RETENTION_EXCEEDED
        elif batch < reader.cursor and not replay:
            assert got is Code.BAD_REQUEST
        else:
            assert got == batch
            reader.moved |= batch < reader.cursor
            reader.part = 0 if batch != reader.cursor else reader.part
            reader.cursor, reader.alive_ms, reader.expired = batch, self.now_ms, False
            self.retain(one)

    def part(self, name: str) -> None:
        one, who = self.known[name], self.who()
        reader = one.readers.get(who)
        if reader is None or not reader.attached or not one.first <= reader.cursor + 1 <= one.last:
            return
        last, batch = self.dice.random() < 0.5, reader.cursor + 1
        reader.part += 1
        assert self.flows.part(name, who, batch, reader.part, reader.fence, reader.part, last=last) is None
        reader.alive_ms, reader.expired = self.now_ms, False
        if last:
            reader.cursor, reader.part = batch, 0
            self.retain(one)
        got = self.flows.wrote(name, who, batch, reader.part, self.commit, self.now_ms, last=last)
        assert got == reader.cursor

    def remove(self, name: str) -> None:
        one, who = self.known[name], self.who()
        self.removals.append((name, who, one.version - (self.dice.random() < 0.1)))
        self.send_removal(len(self.removals) - 1)

    def send_removal(self, at: int) -> None:
        name, who, version = self.removals[at]
        got, one = (
            self.handled(flow_handlers.remove_consumer, f.RemoveConsumer(name, who, version)),
            self.known.get(name),
        )
        if one is None:
            assert got is Code.NOT_FOUND
        elif who not in one.readers and one.version == version + 1:
            assert got == name, "sent again"
        elif one.version != version:
            assert got is Code.CONFLICT
        elif who not in one.readers:
            assert got is Code.NOT_FOUND
        elif name == "s" and who == ROWS_CONSUMER and one.readers[who].required and one.first > 1:
            assert got is Code.CONFLICT
        else:
            assert got == name
            if who in one.declaration.consumers:
                left = tuple(other for other in one.declaration.consumers if other != who)
                one.declaration = msgspec.structs.replace(one.declaration, consumers=left)
                one.altered_ms = self.now_ms
            del one.readers[who]
            self.changed(one)

    def expire(self, name: str) -> None:
        one, after_ms = self.known[name], self.known[name].declaration.consumer_expiry_ms
        gone = [
            who
            for who, reader in one.readers.items()
            if after_ms and reader.required and not (reader.expired or reader.moved or reader.cursor != reader.begun)
            and self.now_ms - max(reader.alive_ms, one.altered_ms) >= after_ms
            and (name, who) != ("s", ROWS_CONSUMER)
        ]  # fmt: skip
        assert set(flow_handlers.overdue_consumers(self.machine, self.flows.get(name), self.now_ms)) == set(gone)
        assert flow_handlers.expire_consumers(self.machine, f.ExpireConsumers(name)) == len(gone)
        for who in gone:
            one.readers[who].expired = True
        if gone:
            self.changed(one)

    def room(self, name: str) -> None:
        """Ask whether the table is full: its time may be over meanwhile."""
        table = self.known[name].declaration.source
        taps = [one for one in self.known.values() if one.declaration.source == table]
        held = {one.declaration.name: one.bytes_after(one.first - 1) + one.size for one in taps}
        unread = {one.declaration.name: one.bytes_after(one.mark()) + one.size for one in taps}
        near = self.dice.choice((*held.values(), *unread.values())) - self.dice.choice((0, 1))
        quota = self.dice.choice((self.dice.randint(0, 500), near, near))
        assert self.flows.looks_full(table, quota) == any(size > quota for size in held.values())
        hold = self.flows.hold(table, self.now_ms)
        assert hold is not None
        assert hold.bytes == held[hold.flow] == max(held.values())
        found = self.flows.undelivered(table, quota, self.now_ms)
        over = [(flow, size) for flow, size in unread.items() if size > quota]
        assert (None if found is None else (found.flow, found.bytes)) == (over[0] if over else None)
        full = False
        for one in taps:
            if held[one.declaration.name] > quota:
                self.retain(one)
                if one.bytes_after(one.first - 1) + one.size > quota:
                    full = True
                    break
        assert self.flows.is_full(table, quota, self.now_ms) == full

    def check(self) -> None:
        assert {*self.flows.names()} == self.known.keys()
        for name, one in self.known.items():
            flow = self.flows.get(name)
            assert (flow.declaration, flow.version, flow.altered_ms) == (one.declaration, one.version, one.altered_ms)
            assert items_of(list(flow.segment.snapshot().chunks)) == one.open
            assert (flow.segment.size_bytes, flow.retained_bytes) == (one.size, one.bytes_after(one.first - 1))
            assert (flow.batches.first, flow.batches.last) == (one.first, one.last)
            for number in range(one.first, one.last + 1):
                items, size, sealed_ms = one.batches[number]
                told = self.flows.batch(name, number)
                assert told == (number, items[0][0], items[-1][0], len(items), size, sealed_ms)
            assert {who.name: (who.required, who.cursor, who.expired) for who in flow.consumers.all()} == {
                who: (reader.required, reader.cursor, reader.expired) for who, reader in one.readers.items()
            }
        sealed = [(one.flow, one.number, items_of(one.chunks), one.size_bytes) for one in self.flows.take_sealed()]
        assert sealed == self.sealed
        assert all(one[2] for one in sealed)
        assert self.flows.take_dropped() == self.dropped
        self.sealed, self.dropped = [], []
        self.check_stamps()

    def check_stamps(self) -> None:
        """See that whoever waits for a change of a flow would have noticed each."""
        before, self.stamps = self.stamps, {}
        for name, one in self.known.items():
            counts = (one.version, one.begun, one.first, one.last, one.size, tuple(one.clock.items()))
            state = repr((counts, one.declaration, one.readers))
            stamp = self.flows.get(name).stamp
            was, stamp_was = before.get(name, (state, stamp))
            assert was == state or stamp != stamp_was, f"{was} became {state}"
            self.stamps[name] = state, stamp

    def step(self) -> None:
        dice = self.dice
        self.host.time_ms += dice.choice((0, 0, 1, 3))
        does = (self.write, self.start, self.move, self.part, self.seal, self.clock, self.alter, self.room, self.expire,
                self.remove, self.delete, self.start_again)  # fmt: skip
        do = dice.choices(does, (12, 4, 8, 3, 2, 4, 2, 6, 1, 1.5, 1, 5))[0]
        do(dice.choice(sorted(self.known)))
        self.check()
        if dice.random() < 0.1:
            self.declare(dice.choice(("t", "g")))
        if dice.random() < 0.1 and self.sent:
            self.send_alter(dice.randrange(max(0, len(self.sent) - 3), len(self.sent)))
        if dice.random() < 0.05 and self.removals:
            self.send_removal(len(self.removals) - 1)
        if dice.random() < 0.1:
            self.delete_again()
        self.check()


@pytest.mark.parametrize("seed", range(20))
def test_flows_hold_keep_and_drop_what_plain_lists_say(seed: int) -> None:
    sides = Sides(seed)
    for _ in range(150):
        sides.step()
    assert sides.refusals
