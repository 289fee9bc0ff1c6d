"""Runs of puts in columns do what the same puts do one by one, wherever a table, a flow or a record is in their way."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import ordering
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.operations import execute_run
from oncegate.gateway.machine.results import Operated
from oncegate.gateway.machine.row_rule import INTEGER_BYTES_MAX
from oncegate.gateway.machine.rows import each_change
from oncegate.gateway.machine.state import state_digest
from oncegate.gateway.machine.state.layout import SESSIONS
from oncegate.rifl.ids import CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.key_table import NO_TIME
from oncegate.rifl.rule import Rejected
from tests.gateway.logs import apart, told

START: list[c.Command] = [
    c.DeclareTable("t", "resident", 1 << 20),
    c.DeclareTable("u", "resident", 1_500),
    c.DeclareTable("s", "stream", 400),
    c.DeclareFlow(b'{"name":"f","source":"t","max_items":5}'),
    c.OpenSession("n", 60_000, 24),
]


def _op(dice: random.Random, sequence: int, table: str) -> c.Op:
    key, value = f"k{dice.randrange(9)}", b'"%s"' % (b"x" * dice.randrange(60))
    if dice.random() < 0.9:
        return c.Op(SequenceNumber(sequence), 1, table, key, c.fingerprint_put(table, key, value), value)
    kind, text, by, test = dice.choice(((1, value, 0, 1), (3, None, 1, 0), (2, None, 0, 0)))
    print_ = c.fingerprint_fields(kind, table, key, text, by, test, None)
    return c.Op(SequenceNumber(sequence), kind, table, key, print_, text, by, test)


def _request(dice: random.Random, sent: dict[int, c.Op], highest: int) -> c.Operate:
    """A request of one to three runs: new, sent before, sent before with another payload, or after a gap.

    Now and then its session is another owner's by now.
    """
    sequence = max(1, highest + dice.choice((1, 1, 1, 1, 2, -1, -4)))
    acked = max(1, sequence - dice.randrange(14))
    ops: list[c.Op] = []
    for _ in range(dice.randint(1, 3)):
        table = dice.choice("tttus")
        for _ in range(dice.randint(1, 6)):
            if sequence not in sent or dice.random() < 0.05:
                sent[sequence] = _op(dice, sequence, table)
            ops.append(sent[sequence])
            sequence += 1
        sequence += dice.choice((0, 0, 0, 0, 1))
    return c.Operate(1, int(dice.random() < 0.9), SequenceNumber(acked), ops, "", dice.choice(("", "00-a")))


def _said(result: Operated) -> list[object]:
    verdicts = map(told, apart(result.verdicts))
    return [(number, code, record and record.commit, again) for number, code, record, again in verdicts]


@pytest.mark.parametrize("seed", range(60))
def test_runs_do_what_single_operations_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "RUN_MIN", 2)
    dice, sent = random.Random(seed), dict[int, c.Op]()
    runs, singles = Machine(), Machine()
    for machine in (runs, singles):
        apply(machine, 1, 1, c.encode_entry(0, START))
    in_runs = 0
    for index in range(2, 14):
        highest = singles.trackers[1].highest
        commands: list[c.Command] = [_request(dice, sent, highest)]
        if dice.random() < 0.2:
            commands.insert(0, c.Resolve(1, SequenceNumber(max(1, highest + dice.randint(-3, 4)))))
        if dice.random() < 0.2:
            lasting = c.Op(
                SequenceNumber(0), 1, "t", f"k{index % 9}", Fingerprint(index), b"1", options=c.Options(ttl_ms=9)
            )
            commands.append(c.Keyed(1_000, [c.KeyedOp(f"key {index}", NO_TIME, lasting)]))
        short = [ordering.in_columns(command) for command in commands]
        plain = apply(singles, index, 1, c.encode_entry(index, commands))
        same = apply(runs, index, 1, c.encode_entry(index, short))
        assert [*each_change(runs.changes)] == [*each_change(singles.changes)]
        assert state_digest(runs) == state_digest(singles)
        for result, other in zip(plain, same, strict=True):
            if isinstance(result, Operated):
                assert isinstance(other, Operated)
                assert _said(other) == _said(result)
                in_runs += len(result.verdicts) - len(other.verdicts)
    assert in_runs, "some of it was done at once"
    assert runs.flows.take_sealed() == singles.flows.take_sealed()


def test_only_plain_puts_under_adjacent_numbers_on_one_table_travel_in_columns() -> None:
    def put(sequence: int, table: str = "t", test: int = 0) -> c.Op:
        return c.Op(SequenceNumber(sequence), 1, table, "k", Fingerprint(sequence), b"1", 0, test)

    def sent(*ops: c.Op) -> c.Operate:
        return c.Operate(1, 1, SequenceNumber(1), [*ops])

    least, puts = ordering.RUN_MIN, [put(number) for number in range(1, 31)]
    mixed = sent(*puts[:least], put(least + 1, test=1), *puts[least + 1 : least + 4], put(20, "u"), *puts[20:30])
    columns = ordering.in_columns(mixed)
    assert isinstance(columns, c.Operate)
    assert columns.ops == mixed.ops
    shapes = [(part.first, len(part.keys)) if isinstance(part, c.Puts) else 1 for part in columns.parts]
    assert shapes == [(1, least), 1, 1, 1, 1, 1, (21, 10)]
    few, alone = puts[: least - 1], [put(number, test=1) for number in range(1, 31)]
    for ops in (few, alone, [*puts[:least], *alone[least:]], puts[::2]):
        assert ordering.in_columns(command := sent(*ops)) is command


@pytest.mark.parametrize("spare", range(-2, 3))
@pytest.mark.parametrize("kind", [1, 3], ids=["put", "increment"])
def test_quota_is_the_same_to_the_byte_for_runs_single_operations_and_the_look_that_refuses(
    kind: int, spare: int
) -> None:
    """So many rows that the last one fits, or does not."""
    value, count = b'"x"', 8
    keys = [f"key{number}" for number in range(count)]
    prints = [c.fingerprint_put("q", key, value) for key in keys]
    ops = [
        c.Op(SequenceNumber(at + 1), kind, "q", key, print_, *((value,) if kind == 1 else (None, 1)))
        for at, (key, print_) in enumerate(zip(keys, prints, strict=True))
    ]
    room = Machine()
    apply(room, 1, 1, c.encode_entry(0, [c.DeclareTable("q", "resident", 1 << 20), c.OpenSession("n", 60_000, 24)]))
    before_last = apply(room, 2, 1, c.encode_entry(0, [c.Operate(1, 1, SequenceNumber(1), ops[:-1])]))
    assert isinstance(before_last[0], Operated)
    needed = room.tables["q"].bytes + len(keys[-1]) + (len(value) if kind == 1 else INTEGER_BYTES_MAX)
    found = []
    for form in (ordering.in_columns, lambda command: command):
        machine = Machine()
        start = [c.DeclareTable("q", "resident", needed + spare), c.OpenSession("n", 60_000, 24)]
        apply(machine, 1, 1, c.encode_entry(0, start))
        [result] = apply(machine, 2, 1, c.encode_entry(0, [form(c.Operate(1, 1, SequenceNumber(1), ops))]))
        assert isinstance(result, Operated)
        found.append((_said(result), state_digest(machine)))
    assert found[0] == found[1]
    refused = [verdict for verdict in apart(result.verdicts) if isinstance(verdict, Rejected)]
    assert len(refused) == (1 if spare < 0 else 0)


def ops(shape: str) -> list[c.Op]:
    """``p`` a put under the next number, ``P`` one after a gap, ``t`` a put with a test, ``i`` an increment."""
    made, number = list[c.Op](), 0
    for letter in shape:
        number += 2 if letter == "P" else 1
        kind, test = c.OpKind.INCREMENT if letter == "i" else c.OpKind.PUT, int(letter == "t")
        made.append(c.Op(SequenceNumber(number), kind.value, "XX", f"k{number}", Fingerprint(number), b"1", 0, test))
    return made


@pytest.mark.parametrize(
    ("shape", "in_columns"),
    [
        ("pppppp", True), ("ppppp", False),
        ("ppppppiiiiii", True), ("ppppppiiiiiii", False), ("iiiiiipppppp", True), ("iiiiiiipppppp", False),
        ("ppppppPiiiiii", False), ("PPPPiiipppppp", False), ("ppppppPiiiii", True),
        ("tppppp", False), ("tpppppp", True), ("itpppppp", True), ("pppppt", False), ("pppPppp", False),
        ("ppppppPppppp", True), ("ppppppPpppptt", False),
    ],
)  # fmt: skip
def test_runs_of_six_travel_in_columns_if_they_are_half_of_a_request(shape: str, in_columns: bool) -> None:
    command = c.Operate(1, 1, SequenceNumber(1), ops(shape))
    sent = ordering.in_columns(command)
    assert (sent is not command) is in_columns
    assert sent.ops == command.ops  # type: ignore[union-attr]
    assert isinstance(sent, c.Operate)
    assert all(len(part.keys) >= 6 for part in sent.parts if isinstance(part, c.Puts))
    assert any(isinstance(part, c.Puts) for part in sent.parts) is in_columns


@pytest.mark.parametrize(
    "other",
    [
        {"options": c.Options(ttl_ms=1)},
        {"in_order": True},
        {"transaction": True},
    ],
    ids=["options", "in order", "transaction"],
)
def test_what_a_run_cannot_say_is_in_none(other: dict[str, Any]) -> None:
    puts = list[c.Op | c.Transaction](ops("p" * 12))
    if "options" in other:
        puts[0] = msgspec.structs.replace(puts[0], **other)
    if "transaction" in other:
        puts[0] = c.Transaction(SequenceNumber(1), Fingerprint(1), [], [])
    command = c.Operate(1, 1, SequenceNumber(1), puts, in_order="in_order" in other)
    sent = ordering.in_columns(command)
    assert isinstance(sent, c.Operate)
    assert sent.ops == command.ops
    if "in_order" in other:
        assert sent is command
    else:
        assert [type(part) for part in sent.parts] == [type(puts[0]), c.Puts]


def test_put_of_null_is_its_text_in_columns() -> None:
    sent = [c.Op(SequenceNumber(at), 1, "t", "k", Fingerprint(at), None if at % 2 else b"7") for at in range(1, 7)]
    columns = ordering.in_columns(c.Operate(1, 1, SequenceNumber(1), sent, "tenant", "00-a"))
    assert isinstance(columns, c.Operate)
    [part] = columns.parts
    assert isinstance(part, c.Puts)
    assert part.values == [b"null", b"7"] * 3
    assert (columns.tenant, columns.traceparent) == ("tenant", "00-a")


def begun(quota: int = 1 << 20) -> Machine:
    """A machine with a row "a" in each resident table; "f" is a flow of one of them."""
    machine = Machine()
    start = [
        c.DeclareTable("plain", "resident", 1 << 20), c.DeclareTable("tapped", "resident", 1 << 20),
        c.DeclareTable("s", "stream", 1 << 20), c.DeclareFlow(b'{"name":"f","source":"tapped"}'),
        c.OpenSession("n", 60_000, 24),
    ]  # fmt: skip
    apply(machine, 1, 1, c.encode_entry(0, start))
    for name in ("plain", "tapped"):
        assert machine.tables[name].put_run(["a"], [b"12345"], CommitNumber(1))
        machine.tables[name].quota_bytes = quota
    machine.commit = CommitNumber(1)
    return machine


def run(machine: Machine, table: str, keys: list[str], values: list[bytes]) -> int:
    """Execute a run at once; returns how many of its puts that were."""
    puts = c.Puts(SequenceNumber(5), table, bytes(8 * len(keys)), keys, values)
    command = c.Operate(1, 1, SequenceNumber(5), [puts], traceparent="00-a")
    done = execute_run(machine, command, machine.trackers[1], puts)
    assert machine.commit == 1 + done
    assert [machine.trackers[1].find(SequenceNumber(at)) is not None for at in (5, 4 + done, 5 + done)] == [
        done > 0, done > 0, False,
    ]  # fmt: skip
    return done


@pytest.mark.parametrize("table", ["plain", "tapped"])
@pytest.mark.parametrize("spare", [-1, 0])
def test_run_is_executed_at_once_if_all_of_it_fits_as_new_rows(table: str, spare: int) -> None:
    keys, values = ["b", "cc"], [b"123", b"4567"]
    machine = begun(quota=(1 + 5 + 120) + (1 + 3 + 120) + (2 + 4 + 120) + spare)
    assert run(machine, table, keys, values) == (2 if spare == 0 else 0)
    assert len(machine.tables[table].rows) == (3 if spare == 0 else 1)


def test_run_on_a_stream_table_is_executed_at_once_and_one_on_no_table_is_not() -> None:
    machine = begun()
    assert run(machine, "s", ["a", "b", "a"], [b"1", b"2", b"3"]) == 3
    segment = machine.flows.get("s").segment
    assert [segment.run_item(at) for at in range(segment.items)] == [(2, b"1"), (3, b"2"), (4, b"3")]
    assert run(begun(), "nowhere", ["a"], [b"1"]) == 0


@pytest.mark.parametrize("table", ["tapped", "s"])
@pytest.mark.parametrize("values", [[b"1"], [b"1", b"2", b"3"]], ids=["fewer", "more"])
def test_run_whose_columns_are_not_of_one_length_stops_the_machine(table: str, values: list[bytes]) -> None:
    with pytest.raises(ValueError, match="argument 2 is"):
        run(begun(), table, ["a", "b"], values)


def test_a_run_is_remembered_as_one_whatever_a_node_has_looked_for_in_its_table() -> None:
    """Where a node has looked for the first rows, each change is looked at: that is no state, and changes none."""
    asked, other = begun(), begun()
    assert [key for key, _ in asked.tables["plain"].first_rows("a")] == ["a"]
    images = []
    for machine in (asked, other):
        assert run(machine, "plain", ["b", "ab"], [b"1", b"2"]) == 2
        images.append(SESSIONS.encode((next(iter(machine.sessions)), machine.trackers[1])))
        assert len(machine.trackers[1].runs) == 1
    assert images[0] == images[1]
    assert [key for key, _ in asked.tables["plain"].first_rows("a")] == ["a", "ab"]
