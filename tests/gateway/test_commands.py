"""Encoding of log entries, and fingerprints."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_commands import Start

numbers = st.integers(0, 2**53 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
kinds, tests, fingerprints = st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**64 - 1)
values, bys = st.none() | st.binary(max_size=9), st.integers(-(2**63), 2**63 - 1)
ops = st.builds(c.Op, numbers, kinds, texts, texts, fingerprints, values, bys, tests, values | numbers)


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
        "list[int]": st.lists(numbers, max_size=3),
    }
    return st.builds(command, **{name: strategies[kind] for name, kind in command.__annotations__.items()})


commands = st.one_of(*(of(command) for command in get_args(c.Command)))


@given(st.lists(commands, max_size=4), numbers)
def test_entry_is_read_back_as_written(sent: list[c.Command], time_ms: int) -> None:
    entry = c.decode_entry(c.encode_entry(time_ms, sent))
    assert (entry.version, entry.time_ms, entry.commands) == (c.VERSION, time_ms, sent)
    assert c.decode_commands(c.encode_commands(sent)) == sent
    assert c.encode_entry(time_ms, entry.commands) == c.encode_entry(time_ms, sent)


def test_every_command_has_its_own_tag() -> None:
    tags = [command.__struct_config__.tag for command in get_args(c.Command)]
    expected = "o r k kf so sr st sv sc sx td fd fs ca cm fa fx cb cr ce ci"
    assert sorted(tags) == sorted(expected.split())


RECORDED = (
    "9301059f97a16f07070891990102a174a16bcf8000000000000000c40176ff03c4016fa178a1789aa172070708a17808c401"
    "62c40162a178a17895a16b079193a16bff990102a174a16bcf8000000000000000c40176ff03c4016fa178a17891a26b6697"
    "a2736fa1780707a178070794a273720707a17894a2737407a178a17896a2737607080708a17894a273630707a17892a27378"
    "910995a27464a178a17807c4016292a26664c4016293a26673a1780794a26361a178a178a17896a2636da178a1780707c3"
)


RECORDED_LATER = (
    "9301059694a26661a17807c4016294a26678a17807c396a26362a178a178a178a361676f0794a26372a178a1780792a26365"
    "a17892a26369a178"
)
"""The commands that came later: those that change flows and consumers which are there, and the cluster's identity."""
LATER = (c.AlterFlow, c.DeleteFlow, c.StartConsumer, c.RemoveConsumer, c.ExpireConsumers, c.Identify)


@pytest.mark.parametrize("later", [False, True])
def test_entry_has_the_bytes_that_logs_on_disk_have(later: bool) -> None:
    """Recorded once, of every command with every field set: a log of an earlier build is read for ever."""
    recorded = RECORDED_LATER if later else RECORDED
    sample: dict[str, Any] = {"int": 7, "SequenceNumber": 8, "str": "x", "bytes": b"b", "bool": True, "list[int]": [9]}
    sample["Start"] = "ago"
    op = c.Op(1, 2, "t", "k", 2**63, b"v", -1, 3, b"o")
    sample |= {"list[Op]": [op], "list[KeyedOp]": [c.KeyedOp("k", -1, op)]}
    known = [command for command in get_args(c.Command) if (command in LATER) == later]
    fields = {command: command.__annotations__.items() for command in known}
    sent = [command(**{name: sample[kind] for name, kind in of_it}) for command, of_it in fields.items()]
    assert c.encode_entry(5, sent).hex() == recorded
    assert c.decode_entry(bytes.fromhex(recorded)).commands == sent


NO_ENTRIES = [b"", b"\xc1", b"\x90", b"\x93\x02\x00\x90", b"\x93\x01\x00\x91\x91\xa1?", b"\x93\x01\x00\x90\x00"]


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


def test_fingerprints_do_not_change_between_releases() -> None:
    """They are in the logs: another hash would make each retry across an upgrade a PAYLOAD_MISMATCH."""
    assert c.fingerprint_put("t", "k", b"1") == 0x30C717B914A954A3
    assert c.fingerprint(c.Op(1, 3, "t", "k", 0, by=5)) == 0x6CFB88D1B3609AB1
