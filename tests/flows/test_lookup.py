"""Point look-ups, compared with a dictionary."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows import range_body, segment
from oncegate.flows.lookup import FoundWrite, IndexCache, KeyIndex, OpenLookup
from oncegate.flows.open_segment import OpenSegment

KEYS = st.sampled_from(["a", "aa", "b", "\u00e9", "\U0001f600", "\uffff", "z"])
WRITES = st.lists(st.tuples(KEYS, st.sampled_from([None, b"1", b'{"x":2}'])), min_size=1, max_size=40)
ABSENT = ("", "A", "ab", "zz", "\U0010ffff")
Writes = Sequence[tuple[str, bytes | None]]


def model(writes: Writes, first_commit: int = 1) -> dict[str, FoundWrite]:
    return {key: FoundWrite(commit, value) for commit, (key, value) in enumerate(writes, first_commit)}


def body(writes: Writes) -> bytes:
    return range_body.encode([key for key, _ in writes], [value for _, value in writes])


def check(index: KeyIndex, expected: dict[str, FoundWrite]) -> None:
    for key, found in expected.items():
        assert index.find(key) == found
    for key in ABSENT:
        assert index.find(key) is None


@settings(deadline=None)
@given(WRITES, st.data())
def test_last_write_of_each_key_is_found_in_payload_run_and_range(
    writes: list[tuple[str, bytes | None]], data: st.DataObject
) -> None:
    part = OpenSegment("f", "t")
    for commit, (key, value) in enumerate(writes, 1):
        part.append_one(commit, key, value, 1, 1, commit)
    (run,) = part.freeze(1).chunks
    check(KeyIndex.of_chunk(run), model(writes))
    check(KeyIndex.of_payload(segment.build((run,), "f", "t", 1)), model(writes))
    start = data.draw(st.integers(0, len(writes) - 1))
    stop = data.draw(st.integers(start + 1, len(writes)))
    part.append_range(100, stop - start, 1, 1, 1, body(writes), start)
    (chunk,) = part.freeze(2).chunks
    check(KeyIndex.of_chunk(chunk), model(writes[start:stop], 100))


def test_index_spans_record_batches() -> None:
    count = segment.ROWS_PER_RECORD_BATCH + 2
    writes = [(f"k{number % 1000}", b"%d" % number) for number in range(count)]
    part = OpenSegment("f", "t")
    part.append_range(1, count, 1, 1, 1, body(writes))
    check(KeyIndex.of_payload(segment.build(part.freeze(1).chunks, "f", "t", 1)), model(writes))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["one", "range", "seal", "read"]), WRITES), max_size=15))
def test_open_segment_look_up_equals_a_dictionary_across_seals(steps: list[tuple[str, Writes]]) -> None:
    part = OpenSegment("f", "t")
    lookup = OpenLookup(part, IndexCache(10**6))
    expected: dict[str, FoundWrite] = {}
    commit = number = 1
    for step, writes in steps:
        if step == "one":
            for offset, (key, value) in enumerate(writes):
                part.append_one(commit + offset, key, value, 1, 1, 1)
        elif step == "range":
            part.append_range(commit, len(writes), 1, 1, 1, body(writes))
        elif step == "seal" and part.items:
            part.freeze(number)
            number, expected = number + 1, {}
        if step in ("one", "range"):
            expected |= model(writes, commit)
            commit += len(writes)
        if step == "read":
            for key in [*expected, *ABSENT, "a", "b"]:
                assert lookup.find(key) == expected.get(key)
    for key in [*expected, *ABSENT]:
        assert lookup.find(key) == expected.get(key)


@pytest.mark.parametrize("bytes_max", [10**6, 3_000, 0])
@pytest.mark.parametrize("seed", range(4))
def test_look_ups_of_several_flows_that_share_a_cache_are_each_their_own(seed: int, bytes_max: int) -> None:
    """Flows of one table have the same commits, and of a batch that another one took other items; some keep a part.

    Each is read between any two of its steps: a run that was begun anew may be as long as the one before, or longer.
    """
    dice = random.Random(seed)
    cache = IndexCache(bytes_max)
    parts = [OpenSegment(name, "t") for name in "fgh"]
    lookups = [OpenLookup(part, cache) for part in parts]
    expected: list[dict[str, FoundWrite]] = [{} for _ in parts]
    commit = 0
    for number in range(1, 250):
        commit += 1
        writes = [(f"k{dice.randrange(6)}", b"%d" % dice.randrange(99)) for _ in range(dice.randint(1, 3))]
        step = dice.choice(("one", "one", "one", "range"))
        for part, found in zip(parts, expected, strict=True):
            if dice.random() < 0.15 and part.items:
                part.freeze(number)
                found.clear()
            if dice.random() < 0.3:  # left out
                continue
            if step == "one":
                for offset, (key, value) in enumerate(writes):
                    part.append_one(commit + offset, key, value, 1, 1, 1)
            else:
                part.append_range(commit, len(writes), 1, 1, 1, body(writes))
            found |= model(writes, commit)
        commit += len(writes)
        for lookup, found in zip(lookups, expected, strict=True):
            if dice.random() < 0.7:
                key = f"k{dice.randrange(7)}"
                assert lookup.find(key) == found.get(key), (number, key)
    assert cache.size_bytes <= bytes_max


def an_index() -> KeyIndex:
    part = OpenSegment("f", "t")
    part.append_range(1, 2, 1, 1, 1, body([("a", b"1"), ("b", b"2")]))
    return KeyIndex.of_chunk(part.freeze(1).chunks[0])


def test_cache_stays_within_its_bytes_and_keeps_what_was_used_last() -> None:
    size = an_index().size_bytes
    cache = IndexCache(size * 2)
    kept = cache.get("one", an_index)
    cache.get("two", an_index)
    assert cache.get("one", lambda: pytest.fail("built again")) is kept
    cache.get("three", an_index)
    assert (len(cache), cache.size_bytes) == (2, size * 2)
    assert cache.get("one", lambda: pytest.fail("built again")) is kept
    fresh = an_index()
    assert cache.get("two", lambda: fresh) is fresh


def test_index_over_the_bound_is_used_but_not_kept_and_evicts_nothing() -> None:
    cache = IndexCache(1)
    assert cache.get("big", an_index).find("a") == FoundWrite(1, b"1")
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_index_that_just_fits_is_kept_and_one_that_two_have_built_counts_once() -> None:
    size = an_index().size_bytes
    cache = IndexCache(size)

    def built_meanwhile() -> KeyIndex:
        cache.get("one", an_index)
        return an_index()

    cache.get("one", built_meanwhile)
    assert (len(cache), cache.size_bytes) == (1, size)
    cache.get("one", lambda: pytest.fail("built again"))
    cache.get("two", an_index)
    assert (len(cache), cache.size_bytes) == (1, size)


def test_build_that_fails_leaves_the_cache_as_it_was() -> None:
    cache = IndexCache(10**6)

    def fail() -> KeyIndex:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        cache.get("one", fail)
    assert len(cache) == 0
