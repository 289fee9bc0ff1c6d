"""Encoding of log entries, and fingerprints."""

from __future__ import annotations

from inspect import get_annotations
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_commands import Start
from oncegate.rifl.ids import ClusterTimeMs, Fingerprint, SequenceNumber

numbers = st.integers(0, 2**53 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
kinds, tests, fingerprints = st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**64 - 1)
values, bys = st.none() | st.binary(max_size=9), st.integers(-(2**63), 2**63 - 1)
ops = st.builds(c.Op, numbers, kinds, texts, texts, fingerprints, values, bys, tests, values | numbers)
edges = st.none() | bys
late = st.tuples(numbers, st.booleans(), edges, edges)
writes = st.builds(lambda op, more: c.Write(*msgspec.structs.astuple(op), *more), ops, late)
conditions = st.builds(c.Condition, texts, texts, st.integers(1, 7), values | numbers)
placed = st.tuples(st.booleans(), texts, texts, numbers)
later_writes = st.builds(lambda write, more: c.Write5(*msgspec.structs.astuple(write), *more), writes, placed)
many = st.lists(writes | later_writes, max_size=3)
transactions = st.builds(c.Transaction, numbers, fingerprints, st.lists(conditions, max_size=2), many)
columns = st.lists(texts, max_size=3), st.lists(st.binary(max_size=9), max_size=3)
puts = st.builds(c.Puts, numbers, texts, st.binary(max_size=24), *columns)


def of(command: type) -> st.SearchStrategy[Any]:
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "int": numbers,
        "SequenceNumber": numbers,
        "str": texts,
        "bytes": st.binary(max_size=20),
        "Start": st.sampled_from(get_args(Start)),
        "bool": st.booleans(),
        "list[Op]": st.lists(ops, max_size=3),
        "list[KeyedOp]": st.lists(st.builds(c.KeyedOp, texts, numbers, ops), max_size=3),
        "dict[str, list[str]]": st.dictionaries(texts, st.lists(texts, max_size=3), max_size=3),
        "list[int]": st.lists(numbers, max_size=3),
        "list[Write | Transaction]": st.lists(writes | transactions, max_size=3),
        "list[Puts | Singles]": st.lists(puts | st.builds(c.Singles, st.lists(ops, max_size=3)), max_size=3),
        "list[KeyedMixedOp]": st.lists(st.builds(c.KeyedMixedOp, texts, numbers, writes | transactions), max_size=3),
    }
    return st.builds(command, **{name: strategies[kind] for name, kind in fields_of(command)})


def fields_of(command: type) -> list[tuple[str, str]]:
    """Its fields and their types as they are written, also those of the command that it is a kind of."""
    return [one for kind in reversed(command.__mro__) for one in get_annotations(kind).items()]


commands = st.one_of(*(of(command) for command in get_args(c.Command)))


@pytest.mark.parametrize("more", [{"ttl_ms": 1}, {"bound": True}, {"floor": 0}, {"ceiling": 0}])
def test_whatever_a_write_says_more_is_in_its_fingerprint(more: dict[str, Any]) -> None:
    plain = c.Write(SequenceNumber(1), c.OpKind.INCREMENT, "t", "k", Fingerprint(0), by=1)
    said = msgspec.structs.replace(plain, **more)
    assert c.is_late(said)
    late = msgspec.structs.replace(plain, ttl_ms=2, floor=-1, ceiling=9)
    assert c.fingerprint(msgspec.structs.replace(late, **more)) != c.fingerprint(late)
    assert c.fingerprint(said) != c.fingerprint(plain)
    assert c.fingerprint_transaction([], [said]) != c.fingerprint_transaction([], [plain])
    condition = c.Condition("t", "k", c.Test.ABSENT)
    assert c.fingerprint_transaction([condition], [said]) != c.fingerprint_transaction([], [said])


@given(st.lists(commands, max_size=4), numbers)
def test_entry_is_read_back_as_written(sent: list[c.Command], time_ms: int) -> None:
    entry = c.decode_entry(c.encode_entry(time_ms, sent))
    assert (entry.version, entry.time_ms, entry.commands) == (c.VERSION, time_ms, sent)
    assert c.decode_commands(c.encode_commands(sent)) == sent
    assert c.encode_entry(time_ms, entry.commands) == c.encode_entry(time_ms, sent)


def test_every_command_has_its_own_tag() -> None:
    tags = [command.__struct_config__.tag for command in get_args(c.Command)]
    expected = (
        "o r k o3 k3 kf so sr st sv sc sx td fd fs ca cm fa fx cb cr ce ci cw fc td5 fd5 fa5 lv tx ts re o4 o5 k5"
    )
    assert sorted(tags) == sorted(expected.split())


RECORDED = (
    "9301059f97a16f07070891990102a174a16bcf8000000000000000c40176ff03c4016fa178a1789aa172070708a17808c401"
    "62c40162a178a17895a16b079193a16bff990102a174a16bcf8000000000000000c40176ff03c4016fa178a17891a26b6697"
    "a2736fa1780707a178070794a273720707a17894a2737407a178a17896a2737607080708a17894a273630707a17892a27378"
    "910995a27464a178a17807c4016292a26664c4016293a26673a1780794a26361a178a178a17896a2636da178a1780707c3"
)


RECORDED_LATER = (
    "9301059c94a26661a17807c4016294a26678a17807c396a26362a178a178a178a361676f0794a26372a178a1780792a26365"
    "a17892a26369a1789aa26377a178a178070707c30791990102a174a16bcf8000000000000000c40176ff03c4016fa17895"
    "a26663a178a17807910995a3746435a178a17807c4016292a3666435c4016294a3666135a17807c4016292"
    "a26c7607"
)
"""The commands that came later: changes of flows and consumers, identity, cascades, clocks, flows with more, levels."""
LATER = (
    c.AlterFlow,
    c.DeleteFlow,
    c.StartConsumer,
    c.RemoveConsumer,
    c.ExpireConsumers,
    c.Identify,
    c.Cascade,
    c.ClockBatches,
    c.DeclareTable5,
    c.DeclareFlow5,
    c.AlterFlow5,
    c.RaiseLevel,
)


RECORDED_LEVEL_3 = (
    "9301059597a26f33070708929ea1770102a174a16bcf8000000000000000c40176ff03c4016f07c3f90795a17401cf800000"
    "00000000009194a174a16b0507919ea1770102a174a16bcf8000000000000000c40176ff03c4016f07c3f907a178a17895a2"
    "6b33079293a16bff9ea1770102a174a16bcf8000000000000000c40176ff03c4016f07c3f90793a16bff95a17401cf800000"
    "00000000009194a174a16b0507919ea1770102a174a16bcf8000000000000000c40176ff03c4016f07c3f907a178a17894a2"
    "7478a17807c391a2747392a2726581a17491a16b"
)
"""Those of feature level 3: a write of its own and a transaction, in a session and under keys; drops, ends of rows."""
LEVEL_3 = (c.OperateMixed, c.KeyedMixed, c.DropTable, c.SweepTables, c.EndRows)
RECORDED_LEVEL_4 = (
    "9301059197a26f340707089296a17008a174c408000102030405060791a16b91c4017692a17391990102a174a16bcf800000"
    "0000000000c40176ff03c4016fa178a178"
)
"""Of feature level 4: runs of puts in columns."""
LEVEL_4 = (c.OperateRuns,)
RECORDED_LEVEL_5 = (
    "9301059298a26f350707089195a17401cf80000000000000009194a174a16b0507929ea1770102a174a16bcf800000000000"
    "0000c40176ff03c4016f07c3f907dc0012a277350102a174a16bcf8000000000000000c40176ff03c4016f07c3f907c3a16e"
    "a16f07a178a178c395a26b35079193a16bff95a17401cf80000000000000009194a174a16b0507929ea1770102a174a16bcf"
    "8000000000000000c40176ff03c4016f07c3f907dc0012a277350102a174a16bcf8000000000000000c40176ff03c4016f07"
    "c3f907c3a16ea16f07a178a178"
)
"""Of feature level 5: in order, with takes, and with rows that are numbered or move, in a session and under keys."""
LEVEL_5 = (c.OperateMixed5, c.KeyedMixed5)


@pytest.mark.parametrize(
    ("commands", "recorded"),
    [
        (None, RECORDED),
        (LATER, RECORDED_LATER),
        (LEVEL_3, RECORDED_LEVEL_3),
        (LEVEL_4, RECORDED_LEVEL_4),
        (LEVEL_5, RECORDED_LEVEL_5),
    ],
)
def test_entry_has_the_bytes_that_logs_on_disk_have(commands: tuple[type, ...] | None, recorded: str) -> None:
    """Recorded once, of every command with every field set: a log of an earlier build is read for ever."""
    sample: dict[str, Any] = {"int": 7, "SequenceNumber": 8, "str": "x", "bytes": b"b", "bool": True, "list[int]": [9]}
    sample["Start"] = "ago"
    op = c.Op(1, 2, "t", "k", 2**63, b"v", -1, 3, b"o")
    sample |= {"list[Op]": [op], "list[KeyedOp]": [c.KeyedOp("k", -1, op)]}
    write = c.Write(*msgspec.structs.astuple(op), 7, True, -7, 7)
    mixed = [write, c.Transaction(1, 2**63, [c.Condition("t", "k", 5, 7)], [write])]
    if commands == LEVEL_5:
        write5 = c.Write5(*msgspec.structs.astuple(write), True, "n", "o", 7)
        mixed = [c.Transaction(1, 2**63, [c.Condition("t", "k", 5, 7)], [write, write5])]
    sample |= {"list[Write | Transaction]": mixed, "list[KeyedMixedOp]": [c.KeyedMixedOp("k", -1, op) for op in mixed]}
    sample["dict[str, list[str]]"] = {"t": ["k"]}
    run = c.Puts(SequenceNumber(8), "t", bytes(range(8)), ["k"], [b"v"])
    sample["list[Puts | Singles]"] = [run, c.Singles([op])]
    known = [
        command
        for command in get_args(c.Command)
        if (command in commands if commands is not None else command not in LATER + LEVEL_3 + LEVEL_4 + LEVEL_5)
    ]
    sent = [command(**{name: sample[kind] for name, kind in fields_of(command)}) for command in known]
    assert c.encode_entry(5, sent).hex() == recorded
    assert c.decode_entry(bytes.fromhex(recorded)).commands == sent


NO_ENTRIES = [b"", b"\xc1", b"\x90", b"\x93\x02\x00\x90", b"\x93\x01\x00\x91\x91\xa1?", b"\x93\x01\x00\x90\x00"]


def test_entry_of_a_newer_build_names_the_way_out() -> None:
    later = b"\x93\x01\x00\x91\x92\xa5later\x07"
    with pytest.raises(msgspec.ValidationError, match=r"Invalid value 'later'.*start the node with that build"):
        c.decode_entry(later)


@pytest.mark.parametrize("data", NO_ENTRIES)
def test_what_is_not_an_entry_of_this_version_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        c.decode_entry(data)


@given(texts, texts, texts, texts, st.binary(max_size=9), st.binary(max_size=9))
def test_parts_of_a_put_cannot_be_shifted(t1: str, t2: str, k1: str, k2: str, v1: bytes, v2: bytes) -> None:
    """Names and keys hold no NUL; the edge sees to that."""
    one, two = (t1.replace("\0", ""), k1.replace("\0", ""), v1), (t2.replace("\0", ""), k2.replace("\0", ""), v2)
    assert (c.fingerprint_put(*one) == c.fingerprint_put(*two)) == (one == two)


@given(ops, numbers)
def test_fingerprint_leaves_out_the_sequence_number_only(op: c.Op, sequence: int) -> None:
    moved = msgspec.structs.replace(op, sequence=sequence, fingerprint=0)
    assert c.fingerprint(moved) == c.fingerprint(op) < 2**64
    assert c.fingerprint(msgspec.structs.replace(op, key=op.key + "x")) != c.fingerprint(op)
    assert c.fingerprint(c.as_write(op)) == c.fingerprint(op), "a retry may come as the one or the other"


@given(writes)
def test_every_field_of_a_write_and_of_a_transaction_is_in_its_fingerprint(write: c.Write) -> None:
    plain = c.as_write(c.Op(*msgspec.structs.astuple(write)[:9]))
    assert (c.fingerprint(write) == c.fingerprint(plain)) == (write == plain)
    prints = {
        c.fingerprint_transaction([], [write]),
        c.fingerprint_transaction([], [write, write]),
        c.fingerprint_transaction([c.Condition("t", "k", 1)], [write]),
        c.fingerprint_transaction([c.Condition("t", "k", 4)], [write]),
        c.fingerprint_transaction([], [msgspec.structs.replace(write, key=write.key + "x")]),
        c.fingerprint(write),
    }
    assert len(prints) == 6
    moved = msgspec.structs.replace(write, sequence=write.sequence + 1, fingerprint=1)
    same = [c.fingerprint_transaction([], [c.in_transaction(one)]) for one in (write, moved)]
    assert same[0] == same[1]


def test_what_uses_nothing_new_is_the_command_of_before() -> None:
    op = c.Op(1, 1, "t", "k", 5, b"1")
    assert type(c.operate(1, 1, SequenceNumber(1), [op])) is c.Operate
    assert type(c.keyed(1, "k", ClusterTimeMs(0), op)) is c.Keyed
    late = msgspec.structs.replace(c.as_write(op), ttl_ms=5)
    assert c.operate(1, 1, SequenceNumber(1), [op, late]) == c.OperateMixed(1, 1, 1, [c.as_write(op), late])
    assert c.keyed(1, "k", ClusterTimeMs(0), late) == c.KeyedMixed(1, [c.KeyedMixedOp("k", 0, late)])


def test_fingerprints_do_not_change_between_releases() -> None:
    """They are in the logs: another hash would make each retry across an upgrade a PAYLOAD_MISMATCH."""
    assert c.fingerprint_put("t", "k", b"1") == 0x30C717B914A954A3
    assert c.fingerprint(c.Op(1, 3, "t", "k", 0, by=5)) == 0x6CFB88D1B3609AB1
