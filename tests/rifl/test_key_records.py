"""Where records of idempotency keys lie in memory, what they count, and what their buckets and counts are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.key_buckets import Bucket, Held, opened, owner_of
from oncegate.rifl.key_records import KeyKind, KeyRecord, MemoryKeys, kind_of, name_of, size_of

ALL = 2**53
HAVE_GC = 1 << 14
"""Py_TPFLAGS_HAVE_GC: the type's objects have room for the garbage collector's list."""


class Result(msgspec.Struct):
    """A result of some size."""

    size: int


def used(number: int, key: str = "k", tenant: str = "bob", result: Result | None = None) -> KeyRecord:
    return KeyRecord(number, tenant, key, number, number + 9, CompletionRecord(7, number, result))  # type: ignore[arg-type]


NAMES = {name_of("bob", key): key for key in "abc"}


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(0, 9)), max_size=40))
def test_records_in_memory_are_those_of_a_list_of_what_is_not_forgotten(steps: list[tuple[int, str, int]]) -> None:
    records, model, number = MemoryKeys(), list[KeyRecord](), 0
    for what, key, amount in steps:
        if what <= 2 and all(one.key != key for one in model):
            number += 1 + amount // 8
            model.append(used(number, key))
            records.add(name_of("bob", key), model[-1])
        elif what >= 3 and model:
            first = model[amount % len(model)].number + amount % 2
            records.forget_below(first)
            model = [one for one in model if one.number >= first]
        assert list(records.run(0, ALL)) == model
        assert list(records.run(amount, number)) == [one for one in model if amount <= one.number < number]
        by_number = {one.number: one for one in model}
        assert [records.at(at) for at in range(number + 2)] == [by_number.get(at) for at in range(number + 2)]
        for name, short in NAMES.items():
            found = next((one for one in model if one.key == short), None)
            assert records.find(name, 0) is found
            if found is not None:
                assert records.find(name, found.number) is found
                assert records.find(name, found.number + 1) is None


def test_name_that_is_used_anew_leads_to_the_new_record_once_the_old_one_is_dropped() -> None:
    records, name = MemoryKeys(), name_of("bob", "k")
    for number in (1, 2):
        records.add(name, used(number))
    records.forget_below(2)
    assert records.find(name, 0) == used(2)
    assert list(records.run(0, ALL)) == [used(2)]


def test_key_counts_its_overhead_its_name_and_its_result() -> None:
    """docs/limits.md says 320 bytes; nodes of all builds have to count alike."""
    assert size_of("", "") == 320
    assert size_of("bob", "kabcd") == 328
    assert used(1, "kabcd").size == 328
    assert used(1, "kabcd", result=Result(50)).size == 378


def test_kind_of_a_key_is_the_letter_of_its_scope() -> None:
    assert [kind_of(key) for key in ("k\0a", "e\0a", "ke", "", "x")] == [
        KeyKind.KEY,
        KeyKind.EVENT,
        KeyKind.KEY,
        KeyKind.KEY,
        KeyKind.KEY,
    ]
    assert owner_of(KeyKind.EVENT, "bob") == "ebob"


def test_what_is_remembered_cannot_be_changed_and_costs_the_garbage_collector_nothing() -> None:
    """There may be millions: a collection that looked at each would stop the node."""
    record = used(1)
    with pytest.raises(AttributeError):
        record.key = "other"  # type: ignore[misc]
    assert not any(one.__flags__ & HAVE_GC for one in (KeyRecord, Held))


def test_records_buckets_and_counts_are_saved_as_arrays_of_their_fields_in_order() -> None:
    assert msgspec.to_builtins(used(3)) == [3, "bob", "k", 3, 12, [7, 3, None, ""]]
    held = Held(2, 700)
    assert msgspec.to_builtins(held) == [2, 700]
    assert msgspec.to_builtins(Bucket(1, 3, 5, 4, 99, {"kbob": held}, 8)) == [
        *[1, 3, 5, 4, 99],
        {"kbob": [2, 700]},
        8,
    ]


@given(*(st.integers(0, 5) for _ in range(4)))
def test_count_goes_up_and_down_and_never_below_nothing(keys: int, size: int, more: int, more_size: int) -> None:
    held = Held(keys, size)
    if more > keys or more_size > size:
        with pytest.raises(InvariantViolation):
            held.take(more, more_size)
        assert held == Held(keys, size)
    else:
        held.take(more, more_size)
        assert held == Held(keys - more, size - more_size)
        held.add(more, more_size)
        assert held == Held(keys, size)


@pytest.mark.parametrize(
    ("left_ms", "width_ms"), [(0, 1), (23, 1), (24, 1), (47, 1), (48, 2), (245, 10), (2_592_000_000, 108_000_000)]
)
def test_bucket_takes_keys_for_a_24th_of_what_its_first_one_has_left_and_a_millisecond_at_least(
    left_ms: int, width_ms: int
) -> None:
    bucket = opened(7, 100, 100 + left_ms)
    assert bucket == Bucket(7, 7, 100 + width_ms, 100, 100 + left_ms, {})
    assert type(bucket.until_ms) is int
    assert bucket.takes(7, 99 + width_ms)
    assert not bucket.takes(7, 100 + width_ms)
    assert not bucket.takes(8, 100)
