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
from oncegate.rifl.ids import Fingerprint, SequenceNumber

numbers = st.integers(0, 2**53 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
kinds, tests, fingerprints = st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**64 - 1)
values, bys = st.none() | st.binary(max_size=9), st.integers(-(2**63), 2**63 - 1)
edges = st.none() | bys
options = st.builds(c.Options, numbers, st.booleans(), edges, edges, st.booleans(), texts, texts, numbers)
more = st.none() | options
ops = st.builds(c.Op, numbers, kinds, texts, texts, fingerprints, values, bys, tests, values | numbers, more)
conditions = st.builds(c.Condition, texts, texts, st.integers(1, 7), values | numbers)
many = st.lists(ops, max_size=3)
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
        "list[KeyedOp]": st.lists(st.builds(c.KeyedOp, texts, numbers, ops | transactions), max_size=3),
        "dict[str, list[str]]": st.dictionaries(texts, st.lists(texts, max_size=3), max_size=3),
        "list[int]": st.lists(numbers, max_size=3),
        "Sequence[Op | Transaction | Puts]": st.lists(ops | transactions | puts, max_size=3),
    }
    return st.builds(command, **{name: strategies[kind] for name, kind in fields_of(command)})


def fields_of(command: type) -> list[tuple[str, str]]:
    """Its fields and their types as they are written, also those of the command that it is a kind of."""
    return [one for kind in reversed(command.__mro__) for one in get_annotations(kind).items()]


commands = st.one_of(*(of(command) for command in get_args(c.Command)))


SAID: dict[str, Any] = {
    "ttl_ms": 1,
    "bound": True,
    "floor": 0,
    "ceiling": 0,
    "numbered": True,
    "then": "o",
    "to": "o",
    "count": 1,
}


@pytest.mark.parametrize("name", c.Options.__struct_fields__)
def test_whatever_a_write_says_more_is_in_its_fingerprint(name: str) -> None:
    plain = c.Op(SequenceNumber(1), c.OpKind.INCREMENT, "t", "k", Fingerprint(0), by=1)
    said = c.with_options(plain, **{name: SAID[name]})
    others = c.with_options(plain, **{other: value for other, value in SAID.items() if other != name})
    assert c.fingerprint(c.with_options(others, **{name: SAID[name]})) != c.fingerprint(others)
    assert c.fingerprint(said) != c.fingerprint(plain)
    assert c.with_options(said, **{name: getattr(c.NO_OPTIONS, name)}) == plain, "nothing said is nothing kept"
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
    expected = "o r k kf so sr st sv sc sx td fd fs ca cm fa fx cb cr ce ci cw fc lv tx ts re"
    assert sorted(tags) == sorted(expected.split())


RECORDED = (
    "930205dc001b98a16f070708939ba16f0102a174a16bcf8000000000000000c40176ff03c4016f9807c3f907c3a16ea16f07"
    "95a17401cf80000000000000009194a174a16b0507919ba16f0102a174a16bcf8000000000000000c40176ff03c4016f9807"
    "c3f907c3a16ea16f0796a17008a174c408000102030405060791a16b91c40176a178a178c39aa172070708a17808c40162c4"
    "0162a178a17895a16b079293a16bff9ba16f0102a174a16bcf8000000000000000c40176ff03c4016f9807c3f907c3a16ea1"
    "6f0793a16bff95a17401cf80000000000000009194a174a16b0507919ba16f0102a174a16bcf8000000000000000c40176ff"
    "03c4016f9807c3f907c3a16ea16f07a178a17891a26b6697a2736fa1780707a178070794a273720707a17894a2737407a178"
    "a17896a2737607080708a17894a273630707a17892a27378910995a27464a178a17807c4016292a26664c4016293a26673a1"
    "780794a26361a178a178a17896a2636da178a1780707c394a26661a17807c4016294a26678a17807c396a26362a178a178a1"
    "78a361676f0794a26372a178a1780792a26365a17892a26369a1789aa26377a178a178070707c307919ba16f0102a174a16b"
    "cf8000000000000000c40176ff03c4016f9807c3f907c3a16ea16f07a17895a26663a178a17807910992a26c760794a27478"
    "a17807c391a2747392a2726581a17491a16b"
)


def test_entry_has_the_bytes_that_logs_on_disk_have() -> None:
    """Recorded once, of every command with every field set: the log of an earlier build is read for ever."""
    sample: dict[str, Any] = {"int": 7, "SequenceNumber": 8, "str": "x", "bytes": b"b", "bool": True, "list[int]": [9]}
    sample["Start"] = "ago"
    op = c.Op(1, 2, "t", "k", 2**63, b"v", -1, 3, b"o", c.Options(7, True, -7, 7, True, "n", "o", 7))
    transaction = c.Transaction(1, 2**63, [c.Condition("t", "k", 5, 7)], [op])
    run = c.Puts(SequenceNumber(8), "t", bytes(range(8)), ["k"], [b"v"])
    sample |= {"list[Op]": [op], "list[KeyedOp]": [c.KeyedOp("k", -1, one) for one in (op, transaction)]}
    sample |= {"Sequence[Op | Transaction | Puts]": [op, transaction, run], "dict[str, list[str]]": {"t": ["k"]}}
    sent = [command(**{name: sample[kind] for name, kind in fields_of(command)}) for command in get_args(c.Command)]
    assert c.encode_entry(5, sent).hex() == RECORDED
    assert c.decode_entry(bytes.fromhex(RECORDED)).commands == sent


NO_ENTRIES = [b"", b"\xc1", b"\x90", b"\x93\x03\x00\x90", b"\x93\x02\x00\x91\x91\xa1?", b"\x93\x02\x00\x90\x00"]


def test_entry_of_a_newer_build_names_the_way_out() -> None:
    later = b"\x93\x02\x00\x91\x92\xa5later\x07"
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


@given(ops)
def test_every_field_of_a_write_and_of_a_transaction_is_in_its_fingerprint(write: c.Op) -> None:
    plain = msgspec.structs.replace(write, options=None)
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


def test_fingerprints_do_not_change_between_releases() -> None:
    """They are in the logs: another hash would make each retry across an upgrade a PAYLOAD_MISMATCH."""
    assert c.fingerprint_put("t", "k", b"1") == 0x30C717B914A954A3
    assert c.fingerprint(c.Op(1, 3, "t", "k", 0, by=5)) == 0x6CFB88D1B3609AB1
