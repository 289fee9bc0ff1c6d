"""Events, their lines, and how they become operations."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.proof.lincheck import Event, HistoryError, line_of, operations, parse_line, read_events
from oncegate.proof.lincheck.history import freeze, thaw
from tests.lincheck.lines import event

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.builds(
    Event,
    process=st.integers(0, 2**40),
    type=st.sampled_from(["invoke", "ok", "fail", "info"]),
    f=st.text(max_size=5),
    key=st.none() | st.text(max_size=3) | st.integers(-9, 9) | st.booleans(),
    value=JSON,
    time=st.integers(0, 2**62),
    node=st.none() | st.text(max_size=3),
    request=st.none() | st.text(max_size=3),
    error=st.none() | st.text(max_size=3),
)


def _refusal(call: Callable[[], object]) -> HistoryError | None:
    try:
        call()
    except HistoryError as refusal:
        return refusal
    return None


@given(EVENTS)
def test_a_line_is_read_as_it_was_written(written: Event) -> None:
    assert parse_line(line_of(written)) == written


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_other_line_is_refused_with_its_number(line: bytes) -> None:
    refusal = _refusal(lambda: parse_line(line, 7))
    assert refusal is None or (refusal.line == 7 and str(pickle.loads(pickle.dumps(refusal))) == str(refusal))


@given(EVENTS, st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(written: Event, place: int, byte: int) -> None:
    line = bytearray(line_of(written))
    line[place % len(line)] = byte
    refusal = _refusal(lambda: parse_line(bytes(line)))
    assert refusal is None or refusal.line == 1


@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b'{"process":1,"type":"invoke","f":"read","value":' + b"[" * 100_000, b'{"process":1e400}'],
    ids=["brackets", "deep value", "no integer"],
)
def test_a_hostile_line_is_refused(line: bytes) -> None:
    with pytest.raises(HistoryError):
        parse_line(line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"process":1,"type":"invoke","f":"read","key":[1]}', "key"),
        (b'{"process":1,"type":"invoke","f":"read","time":-1}', "time"),
        (b'{"process":1,"type":"done","f":"read"}', "done"),
        (b'{"process":1,"type":"invoke"}', "f"),
    ],
)
def test_a_refusal_says_what_is_wrong(line: bytes, reason: str) -> None:
    with pytest.raises(HistoryError, match=reason):
        list(read_events([line]))


@given(st.lists(EVENTS, max_size=12))
def test_pairing_any_events_gives_operations_or_a_typed_refusal(events: list[Event]) -> None:
    refusal = _refusal(lambda: operations(events))
    if refusal is not None:
        assert 1 <= refusal.line <= len(events)
    else:
        assert all(op.returned is None or op.invoked <= op.returned for op in operations(events))


@given(JSON, JSON)
def test_frozen_values_are_equal_only_if_the_values_are(one: object, other: object) -> None:
    assert thaw(freeze(one)) == one
    assert (freeze(one) == freeze(other)) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


def test_an_operation_has_argument_result_and_times_of_its_events() -> None:
    (found,) = operations([event(3, "invoke", "write", 7, key="k", time=5), event(3, "ok", "write", key="k", time=9)])
    assert (found.process, found.f, found.key, found.argument, found.result) == (3, "write", "k", 7, None)
    assert (found.status, found.invoked, found.returned) == ("ok", 5, 9)


def test_what_ended_with_info_or_not_at_all_is_unknown() -> None:
    found = operations(
        [event(1, "invoke", "write", 1), event(2, "invoke", "write", 2), event(1, "info", "write", error="TIMEOUT")]
    )
    assert [op.status for op in found] == ["unknown", "unknown"]
    assert [op.returned for op in found] == [None, None]


def test_without_any_time_lines_are_the_order() -> None:
    first, second = operations([event(1, "invoke", "read"), event(1, "ok", "read"), event(2, "invoke", "read")])
    assert first.returned is not None
    assert first.returned < second.invoked


def test_attempts_of_one_request_are_one_operation_that_ends_with_the_first_answer() -> None:
    attempts = [
        event(1, "invoke", "append", "x", time=1, request="7/1"),
        event(1, "info", "append", time=5, request="7/1"),
        event(2, "invoke", "append", "x", time=6, request="7/1"),
        event(3, "invoke", "append", "x", time=7, request="7/1"),
        event(3, "ok", "append", time=8, request="7/1"),
        event(2, "ok", "append", time=9, request="7/1"),
    ]
    (found,) = operations(attempts)
    assert (found.status, found.invoked, found.returned) == ("ok", 1, 8)


@pytest.mark.parametrize(
    ("ends", "status"), [(("fail", "fail"), "failed"), (("info", "fail"), "unknown"), (("fail", "ok"), "ok")]
)
def test_a_request_was_refused_only_if_every_attempt_was(ends: tuple[str, str], status: str) -> None:
    events = []
    for process, end in enumerate(ends):
        events += [event(process, "invoke", "add", 1, request="7/1"), event(process, end, "add", request="7/1")]
    assert [op.status for op in operations(events)] == [status]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([event(1, "ok", "read")], "no open operation"),
        ([event(1, "invoke", "read"), event(1, "invoke", "read")], "is open"),
        ([event(1, "invoke", "read"), event(1, "ok", "write")], "ends write"),
        ([event(1, "invoke", "read", time=9), event(1, "ok", "read", time=8)], "earlier"),
        ([event(1, "invoke", "add", 1, request="r"), event(2, "invoke", "add", 2, request="r")], "something else"),
    ],
)
def test_events_that_make_no_history_are_refused(events: list[Event], reason: str) -> None:
    with pytest.raises(HistoryError, match=reason):
        operations(events)
