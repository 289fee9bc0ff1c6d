"""Written forms of ids, completion records, and the registry of refusals."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.rifl import ids
from oncegate.rifl.completion import SEALED_COMMIT, CompletionRecord, RangeRecord
from oncegate.rifl.errors import REGISTRY, Code, OncegateError, Outcome
from oncegate.rifl.ids import ID_MAX, RequestId, format_client_id, parse_client_id, parse_request_id

numbers = st.integers(1, ID_MAX)


def test_bounds_are_those_that_clients_were_built_against() -> None:
    assert ID_MAX == 9_007_199_254_740_991, "2^53 - 1, exact in every JSON reader"
    assert (ids.WINDOW_DEFAULT, ids.WINDOW_MAX, ids.RANGE_LENGTH_MAX) == (512, 4096, 10_000)
    assert (ids.LEASE_MS_DEFAULT, ids.LEASE_MS_MIN, ids.LEASE_MS_MAX) == (60_000, 1_000, 86_400_000)


def test_records_are_stored_as_arrays_of_their_fields() -> None:
    """State and snapshots of earlier versions hold them so."""
    stored = msgspec.msgpack.encode
    assert stored(CompletionRecord(7, 8)) == stored([7, 8, None, ""])  # type: ignore[arg-type]
    assert stored(RangeRecord(1, 2, 3, b"x" * 16)) == stored([1, 2, 3, b"x" * 16, ""])  # type: ignore[arg-type]
    assert SEALED_COMMIT == 0


@given(numbers, numbers)
def test_request_id_is_read_back_as_written(client: int, sequence: int) -> None:
    written = f"{format_client_id(client)}/{sequence}"
    assert parse_request_id(written) == RequestId(parse_client_id(format_client_id(client)), sequence)  # type: ignore[arg-type]
    assert str(parse_request_id(written)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4d2",
        "00000000000004D2",
        "0" * 16,
        "f" * 16,
        "0000000000000_1",
        "+000000000000001",
        "00000000000004d2 ",
        "\N{ARABIC-INDIC DIGIT ONE}" * 16,
    ],
)
def test_other_forms_of_a_client_id_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_client_id(text)


@pytest.mark.parametrize(
    "tail",
    [
        "",
        "/",
        "/0",
        "/1/1/1",
        "/-1",
        "/1.0",
        "/ 1",
        "/1/",
        f"/{ID_MAX + 1}",
        "/" + "9" * 5000,
        "/0" + f"{1:016}",
        "/\N{ARABIC-INDIC DIGIT ONE}",
    ],
)
def test_other_forms_of_a_request_id_are_refused(tail: str) -> None:
    with pytest.raises(ValueError):
        parse_request_id("00000000000004d2" + tail)


@given(st.text())
def test_reading_an_id_raises_nothing_but_value_error(text: str) -> None:
    for read in (parse_client_id, parse_request_id):
        try:
            read(text)
        except ValueError:
            continue


def test_every_code_has_its_traits_and_errors_survive_pickling() -> None:
    assert set(REGISTRY) == set(Code)
    for code in Code:
        fault = OncegateError(code, "detail", retry_after_ms=5, outcome=Outcome.UNKNOWN)
        copy = pickle.loads(pickle.dumps(fault))
        assert (copy.code, copy.detail, copy.retry_after_ms, copy.outcome) == (code, "detail", 5, Outcome.UNKNOWN)
        assert copy.retryable is REGISTRY[code].retryable


def test_what_an_earlier_attempt_may_have_applied_is_never_called_not_applied() -> None:
    for code in (
        Code.BAD_ACK,
        Code.STALE,
        Code.FENCED,
        Code.SESSION_EXPIRED,
        Code.TIMEOUT,
        Code.IN_PROGRESS,
        Code.INTERNAL,
    ):
        assert OncegateError(code).outcome is Outcome.UNKNOWN
    for code in (Code.BAD_REQUEST, Code.WINDOW_FULL, Code.QUOTA, Code.PAYLOAD_MISMATCH, Code.NOT_LEADER):
        assert OncegateError(code).outcome is Outcome.NOT_APPLIED


def test_part_of_a_range_record_is_what_the_operations_would_have_alone() -> None:
    record = RangeRecord(5, 8, 100, b"".join(s.to_bytes(8, "big") for s in (5, 6, 7, 8)))
    assert [record.commit_of(s) for s in (5, 8)] == [100, 103]
    assert record.slice(6, 7) == (6).to_bytes(8, "big") + (7).to_bytes(8, "big")
