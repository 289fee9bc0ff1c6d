"""Every replica ends in the same state (case 25), and nothing that passes the edge makes apply raise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway import wire
from oncegate.gateway.answers import answer
from oncegate.gateway.http import range_bodies, request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import ordering
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.flow_commands import Start
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Operated, Ranged
from oncegate.gateway.machine.rows import each_change
from oncegate.gateway.machine.state import state_digest
from oncegate.gateway.machine.state.layout import SESSIONS
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX, ClusterTimeMs
from oncegate.rifl.range_rule import RefusedPart
from tests.gateway.logs import apart, told

Entries = list[tuple[int, list[c.Command]]]

clients = st.sampled_from([1, 1, 1, 2, 3, ID_MAX])
numbers = st.one_of(st.integers(1, 12), st.sampled_from([600, ID_MAX]))
first_incompletes = st.one_of(st.just(1), st.just(1), st.integers(1, 8), st.just(ID_MAX))
kinds = st.sampled_from(["put", "delete", "increment", "append", "get"])
tables = st.sampled_from(["t", "t", "s", "small", "nowhere"])
flows = st.sampled_from(["s", "f", "nowhere"])
keys = st.sampled_from(["a", "b", "\N{SNOWMAN}"])
values = st.sampled_from([0, -7, 2**63, "x", None, [1, {"b": 1, "a": 2}], 1.5, "y" * 300])
conditions = st.sampled_from([{"absent": True}, {"version": 0}, {"version": 2}, {"value": 0}, {"value": "x"}])
bys = st.sampled_from([1, -3, 2**63 - 1, -(2**63)])
tenants = st.sampled_from(["", "", "", "other"])
nonces = st.sampled_from(["n1", "n2", "n3"])
named = st.sampled_from([ClusterTimeMs(time_ms) for time_ms in (-1, -1, 0, 700, 10**6)])
lives = st.sampled_from([{}, {}, {}, {"ttl_ms": 700}, {"bound": True}, {"ttl_ms": 1, "bound": True}])


@st.composite
def filled(draw: st.DrawFn, op: wire.Operation | wire.Write) -> None:
    """Draw what an operation carries beside its kind, table and key."""
    if op.op == "put":
        op.value = draw(values)
    elif op.op == "increment":
        op.by = draw(bys)
        if draw(st.integers(0, 3)) == 0:
            op.floor = draw(st.sampled_from([-3, 0]))
    elif op.op == "append":
        op.item = draw(values)
    if op.op not in ("get", "delete"):
        for name, value in draw(lives).items():
            setattr(op, name, value)
    if op.op != "get" and draw(st.integers(0, 3)) == 0:
        op.if_ = draw(conditions)


@st.composite
def operations(draw: st.DrawFn) -> wire.Operation:
    if draw(st.integers(0, 3)):
        op = wire.Operation(draw(numbers), draw(kinds), draw(tables), draw(keys))
        draw(filled(op))
        return op
    writes = [wire.Write(draw(kinds), draw(tables), draw(keys)) for _ in range(draw(st.integers(1, 3)))]
    for write in writes:
        draw(filled(write))
    row = st.builds(wire.Condition, tables, keys, conditions | st.sampled_from([{"present": True}, {"at_least": 0}]))
    live = st.builds(lambda client: wire.Condition(session=f"{client:016x}"), clients)
    return wire.Operation(
        draw(numbers), "transaction", writes=writes, conditions=draw(st.lists(row | live, max_size=2))
    )


@st.composite
def operates(draw: st.DrawFn) -> c.Operate:
    many = draw(st.lists(operations(), min_size=1, max_size=4))
    request = wire.OperationsRequest(f"{draw(clients):016x}", draw(st.integers(1, 2)), draw(first_incompletes), many)
    return msgspec.structs.replace(request_bodies.operations(request), tenant=draw(tenants))


@st.composite
def bursts(draw: st.DrawFn) -> c.Operate:
    """A request with runs of puts, some of them over what was sent before, with another value or after a gap."""
    first, texts = draw(st.integers(1, 9)), st.sampled_from(["1", "1", "1", '"x"'])
    ops: list[c.Op] = []
    for _ in range(draw(st.integers(1, 2))):
        table = draw(st.sampled_from(["t", "t", "t", "s", "small", "nowhere"]))
        for sequence in range(first, first + draw(st.integers(1, 5))):
            key, value = f"k{sequence % 4}", draw(texts).encode()
            ops.append(c.Op(sequence, 1, table, key, c.fingerprint_put(table, key, value), value))
        first = ops[-1].sequence + draw(st.sampled_from([1, 1, 2, -2]))
    trace = draw(st.sampled_from(["", "00-b"]))
    return c.Operate(draw(st.sampled_from([1, 1, 1, 2])), 1, draw(first_incompletes), ops, draw(tenants), trace)


@st.composite
def keyed(draw: st.DrawFn) -> c.Keyed:
    lifetime_ms, tenant, command = draw(st.sampled_from([0, 1_000, 3_000])), draw(tenants), draw(operates())
    under = st.tuples(st.sampled_from(["ka", "kb", "kc", "kd"]), named)
    if isinstance(command, c.Operate):
        return c.Keyed(lifetime_ms, [c.KeyedOp(*draw(under), op) for op in command.ops], tenant)
    return c.Keyed(lifetime_ms, [c.KeyedOp(*draw(under), op) for op in command.ops], tenant)


@st.composite
def ranges(draw: st.DrawFn) -> c.Range:
    first, length = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    columns = wire.RangeBody([draw(keys) for _ in range(length)], [draw(st.sampled_from(["1", '"x"']))] * length)
    body = msgspec.msgpack.encode(columns)
    where = draw(st.sampled_from(["s", "s", "small", "t", "nowhere"]))
    return range_bodies.range_command(
        where, draw(clients), draw(st.integers(1, 2)), draw(first_incompletes), first, body, wire.MSGPACK
    )


declarations = st.sampled_from(
    [
        b'{"name":"f","source":"t","max_items":2}', b'{"name":"f","source":"t"}',
        b'{"name":"s2","source":"s","target":"t","consumers":["spark"],"retention_ms":0}',
        b'{"name":"back","source":"t","target":"s"}', b'{"name":"f","source":"nowhere"}', b'{"name":"F","source":"t"}',
        b'{"name":"f","source":"t","max_items":0}', b'{"name":"f","source":"t","max_items":"2"}', b'{"name":1}',
        b"{}", b"[]", b"", b"\xff", b"[" * 3_000,
    ]
)  # fmt: skip
consumers = st.sampled_from(["spark", "other", "nobody", "..", ""])
versions = st.sampled_from([1, 1, 2, 3, ID_MAX])
changes = st.sampled_from(
    [
        b'{"consumers":["spark"]}', b'{"consumers":[]}', b'{"consumers":["rows"],"retention_ms":0}', b'{"max_items":1}',
        b'{"consumer_expiry_ms":700}',
        b'{"event_time":"at","retention_bytes":90}', b'{"source":"t"}', b'{"max_items":0}',
        b"{}", b"[]", b"", b"\xff", b"[" * 3_000,
    ]
)  # fmt: skip
starts: st.SearchStrategy[Start] = st.sampled_from(["beginning", "now", "cursor", "batch", "time", "ago"])
controls = st.one_of(
    st.builds(c.OpenSession, nonces, st.sampled_from([1_000, 5_000]), st.sampled_from([1, 4, 4_096]), tenants),
    st.builds(c.RenewSession, clients, st.integers(1, 3), tenants),
    st.builds(c.TakeOver, clients, nonces | st.just("m1"), tenants),
    st.builds(c.CloseSession, clients, st.integers(1, 3)),
    st.builds(c.Resolve, clients, numbers, st.integers(0, 2), first_incompletes),
    st.builds(c.Reap, st.lists(clients, max_size=4)),
    st.just(c.ForgetKeys()),
    st.builds(c.EndRows, st.dictionaries(tables, st.lists(keys, unique=True), max_size=2)),
    st.builds(c.DropTable, tables, st.integers(1, 5), st.booleans()),
    st.just(c.SweepTables()),
    st.builds(c.DeclareTable, st.sampled_from("tsu"), st.sampled_from(["resident", "stream"]), st.just(2_000)),
    st.builds(c.DeclareFlow, declarations),
    st.builds(c.Seal, flows, st.sampled_from([1, 2, 3, ID_MAX])),
    st.builds(c.Attach, flows, consumers, nonces | st.just("") | st.just("x" * 300)),
    st.builds(c.AlterFlow, flows, versions, changes),
    st.builds(c.DeleteFlow, flows, versions, st.booleans()),
    st.builds(c.StartConsumer, flows, consumers | st.just("rows"), nonces, starts, st.sampled_from([0, 1, 3, ID_MAX])),
    st.builds(c.RemoveConsumer, flows, consumers | st.just("rows"), versions),
    st.builds(c.ExpireConsumers, flows),
    st.builds(c.MoveCursor, flows, consumers, st.sampled_from([0, 1, 2, ID_MAX]), st.integers(1, 3), st.booleans()),
)
commands = st.one_of(operates(), bursts(), bursts(), ranges(), keyed(), controls)
entries = st.lists(st.tuples(st.integers(-500, 2_000), st.lists(commands, max_size=4)), max_size=12)

START: list[c.Command] = [
    c.DeclareTable("t", "resident", 1 << 20),
    c.DeclareTable("s", "stream", 1 << 20),
    c.DeclareTable("small", "stream", 500),
    c.OpenSession("n1", 5_000, 8),
    c.OpenSession("n2", 1_000, 4),
]


def stamped(log: list[tuple[int, list[c.Command]]]) -> Entries:
    """Turn steps into stamps; some go back."""
    now, made = 0, [(0, START)]
    for step, commands in log:
        now += step
        made.append((max(0, now), commands))
    return made


def fed(log: Entries) -> tuple[Machine, list[Any]]:
    machine, results = Machine(), []
    for index, (time_ms, commands) in enumerate(log, 1):
        results += apply(machine, index, 1, c.encode_entry(time_ms, commands))
    return machine, results


@settings(max_examples=150, deadline=None)
@given(entries)
def test_two_replicas_fed_the_same_log_are_equal_and_apply_never_raises(log: list[tuple[int, list[c.Command]]]) -> None:
    one, results = fed(stamped(log))
    two, _ = fed(stamped(log))
    assert state_digest(one) == state_digest(two)
    assert one.flows.take_sealed() == two.flows.take_sealed()
    assert one.flows.take_dropped() == two.flows.take_dropped()
    for result in results:
        if isinstance(result, OncegateError):
            assert result.code is not Code.INTERNAL
        elif isinstance(result, Operated):
            assert all((code is None) != (record is None) for _, code, record, _ in map(told, result.verdicts))
        elif isinstance(result, Ranged):
            assert all(isinstance(part, RefusedPart) or part.commit > 0 for part in result.parts)


@settings(max_examples=100, deadline=None)
@given(entries)
def test_how_commands_are_grouped_into_entries_changes_nothing(log: list[tuple[int, list[c.Command]]]) -> None:
    together = stamped(log)
    one, results = fed(together)
    two, apart = fed(
        [(time_ms, one_by_one) for time_ms, commands in together for one_by_one in ([], *([c_] for c_ in commands))]
    )
    assert state_digest(one) == state_digest(two)
    assert len(results) == len(apart)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-500, 2_000), st.lists(bursts() | commands, max_size=4)), max_size=12))
def test_requests_in_columns_do_what_they_do_one_by_one(log: list[tuple[int, list[c.Command]]]) -> None:
    """Replays of a part of a run, acks and seals inside of it, full tables, rows that end, flows that cut."""
    plain = stamped(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "RUN_MIN", 2)
        runs = [(time_ms, [ordering.in_columns(command) for command in commands]) for time_ms, commands in plain]
    one, two = Machine(), Machine()
    for index, ((time_ms, commands), (_, in_columns)) in enumerate(zip(plain, runs, strict=True), 1):
        results = apply(one, index, 1, c.encode_entry(time_ms, commands))
        same = apply(two, index, 1, c.encode_entry(time_ms, in_columns))
        for command, short, result, other in zip(commands, in_columns, results, same, strict=True):
            if isinstance(result, Operated) and isinstance(other, Operated):
                said = [[*map(told, apart(each.verdicts))] for each in (other, result)]
                assert [(*one[:2], one[2] and one[2].commit, one[3]) for one in said[0]] == [
                    (*one[:2], one[2] and one[2].commit, one[3]) for one in said[1]
                ]
                assert other.memory_ms == result.memory_ms
                assert answer(short, other, two).body == answer(command, result, one).body
        assert [*each_change(two.changes)] == [*each_change(one.changes)]
        assert state_digest(two) == state_digest(one)
        if index % 3 == 0:  # a snapshot in between
            for client, tracker in two.trackers.items():
                session = two.sessions.get(client)
                assert session is not None
                _, two.trackers[client] = SESSIONS.decode(Path("s"), SESSIONS.encode((session, tracker)))
                assert two.trackers[client] == tracker
    assert two.flows.take_sealed() == one.flows.take_sealed()


@settings(max_examples=100, deadline=None)
@given(entries)
def test_whole_log_sent_again_executes_nothing_twice(log: list[tuple[int, list[c.Command]]]) -> None:
    """Each operation of a session that lives on is answered from memory or refused: commits do not move."""
    operated: Entries = [
        (
            time_ms,
            [one for one in commands if isinstance(one, c.Operate | c.Range) and one.client_id == 1],
        )
        for time_ms, commands in stamped([(0, commands) for _, commands in log])
    ]
    machine, first = fed([(0, START), *operated])
    accepted = {
        sequence: record.commit
        for result in first
        if isinstance(result, Operated)
        for sequence, code, record, _ in map(told, result.verdicts)
        if code is None and record is not None
    }
    for _, commands in operated:
        for result in apply(machine, 0, 1, c.encode_entry(0, commands)):
            if isinstance(result, Operated):
                for sequence, _, record, _ in map(told, result.verdicts):
                    assert record is None or record.commit == accepted.get(sequence, record.commit)
    tracker = machine.trackers[1]
    commits = [record.commit for record in tracker.records.values()]
    commits += [part.commit_of(s) for part in tracker.ranges for s in range(part.first, part.last + 1)]
    assert len(set(commits)) == len(commits)
    assert max(commits, default=0) <= machine.commit


DIGEST = """
from oncegate.gateway.machine.state import state_digest
from tests.gateway.logs import RandomLog
machine = RandomLog(1).applied(450)
assert machine.commit > 300
print(state_digest(machine), machine.flows.take_sealed(), machine.flows.take_dropped())
"""


def test_state_is_the_same_under_another_hash_seed() -> None:
    """The order of a set of texts differs between processes; nothing may depend on it."""
    environments = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("1", "2")]
    first, second = (subprocess.check_output([sys.executable, "-c", DIGEST], env=env) for env in environments)
    assert first == second != b""
