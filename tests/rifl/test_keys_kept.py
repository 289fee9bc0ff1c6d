"""Remembered keys stay so over fences and restarts, count once, and are forgotten when it was said."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.rifl import key_table
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_buckets import Bucket, Held, owner_of
from oncegate.rifl.key_records import KeyKind, KeyRecord, MemoryKeys, kind_of, name_of
from oncegate.rifl.key_table import KEYS_CLIENT, NO_TIME, KeyTable
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict
from oncegate.rifl.rule import EXECUTE, Refusal

TENANTS = ("", "bob", "nobody")
FAR_MS = 10**15

Use = tuple[int, int, str, str]
uses = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([0, 3, 60, 500]), st.sampled_from(["", "bob"]), st.sampled_from("ke")),
    max_size=9,
)
"""Time since the one before, lifetime, tenant and kind of each key."""


class Result(msgspec.Struct):
    """A result of some size."""

    size: int


def filled(keys_used: list[Use]) -> tuple[KeyTable, int]:
    """Return a table in which each key was used at its time, and the time of the last one."""
    keys, now = KeyTable(), 0
    for at, (pause_ms, lifetime_ms, tenant, kind) in enumerate(keys_used, 1):
        now += pause_ms
        keys.slot(tenant, f"{kind}{at}", now, lifetime_ms).record(keys.next, 7, at, Result(at))
    return keys, now


def check(keys: KeyTable) -> None:
    """Compare what a table says with what its records say, one by one."""
    records = list(keys)
    assert (len(keys), keys.bytes) == (len(records), sum(one.size for one in records))
    for kind in KeyKind:
        of_kind = [one for one in records if kind_of(one.key) is kind]
        assert keys.kinds[kind] == Held(len(of_kind), sum(one.size for one in of_kind))
        for tenant in TENANTS:
            own = sum(one.size for one in of_kind if one.tenant == tenant)
            assert keys.taken(kind, tenant) == (keys.bytes, keys.kinds[kind].bytes, own)
    by_number = {one.number: one for one in records}
    for number in range(keys.next + 2):
        for tenant in TENANTS:
            assert keys.look_up(number, tenant) == _fate(keys, number, by_number.get(number), tenant)
    for one in records:
        assert keys.has(one.tenant, one.key)
        assert keys.number_of(one.tenant, one.key) == one.number
        assert keys.decide(one.tenant, one.key, 7, NO_TIME, FAR_MS) == one
    assert keys.number_of("nobody", "k1") is None
    assert not keys.has("nobody", "k1")
    check_due(keys, records)


def _fate(keys: KeyTable, number: int, known: KeyRecord | None, tenant: str) -> ResolveVerdict:
    if known is not None and known.tenant == tenant:
        return ResolveVerdict(Fate.EXECUTED, known.record)
    return ResolveVerdict(Fate.NEVER_SEEN if known is not None or number >= keys.next else Fate.EXPIRED)


def check_due(keys: KeyTable, records: list[KeyRecord]) -> None:
    """The next key is forgotten after the end of its bucket's last one."""
    if not records:
        assert not keys.due(FAR_MS)
        assert keys.room_in_ms(3) == 0
        return
    bucket = keys.buckets[0]
    due_ms = records[bucket.stop - bucket.first - 1].ends_ms
    assert [keys.due(due_ms + more) for more in (-1, 0, 1)] == [False, False, True]
    assert [keys.room_in_ms(due_ms + more) for more in (-4, 0, 1, 9)] == [5, 1, 0, 0]
    (first_ms, _), *_ = keys.room_to_come(KeyKind.KEY, "")
    assert first_ms == due_ms


def lying(keys: KeyTable) -> list[int]:
    """Return the numbers of all records that the table's place has."""
    return [one.number for one in keys.records.run(0, 2**53)]


def restored(keys: KeyTable) -> KeyTable:
    """Return a table as a start reads it."""
    again = KeyTable(MemoryKeys())
    for one in keys.records.run(0, 2**53):
        again.records.add(name_of(one.tenant, one.key), one)
    again.restore(keys.next, keys.forgotten_ms, saved(keys))
    return again


def saved(keys: KeyTable) -> list[Bucket]:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(keys.buckets), type=list[Bucket])


def test_key_is_looked_for_once_to_be_decided_about_and_added() -> None:
    """A key on disk costs a read each time."""
    asked: list[Any] = []

    class Noted(MemoryKeys):
        """Notes what is looked for."""

        __slots__ = ()

        def find(self, name: str, first: int) -> KeyRecord | None:
            asked.append(name)
            return super().find(name, first)

        def look_ahead(self, names: list[str]) -> None:
            asked.append(names)

    keys = KeyTable(Noted())
    keys.look_ahead(["bob\0k1"])
    for at in (1, 2):
        assert keys.decide("bob", f"k{at}", 7, NO_TIME, at) is EXECUTE
        keys.slot("bob", f"k{at}", at, 9).record(at, 7, at)
    assert asked == [["bob\0k1"], "bob\0k1", "bob\0k2"]
    for key in ("k2", "k1"):
        with pytest.raises(InvariantViolation):
            keys.slot("bob", key, 3, 9).record(3, 7, 3)
    assert asked[3:] == ["bob\0k2", "bob\0k1"], "what nobody decided about is looked for"


def test_commit_numbers_rise_as_long_as_a_key_is_remembered() -> None:
    """Not beyond it: a state that is read from disk has no record of what was forgotten."""
    keys, _ = filled([(1, 10, "", "k")] * 3)
    assert keys.forget(12) == 1
    with pytest.raises(InvariantViolation):
        keys.slot("", "k4", 20, 9).record(4, 7, 3)
    keys.forget(99)
    assert restored(keys).dump() == keys.dump()
    keys.slot("", "k4", 99, 9).record(4, 7, 1)


def test_record_is_what_was_executed_and_ends_after_its_lifetime_if_no_older_one_ends_later() -> None:
    keys = KeyTable()
    assert keys.last_end_ms() == 0
    told = keys.slot("bob", "k1", 0, 0).record(1, 7, 1, Result(5), "00-trace")
    assert told == CompletionRecord(7, 1, Result(5), "00-trace")
    for at, lifetime_ms in ((2, 50), (3, 10), (4, 48), (5, 49)):
        keys.slot("bob", f"k{at}", at, lifetime_ms).record(at, 7, at)
    assert next(iter(keys)) == KeyRecord(1, "bob", "k1", 0, 0, told)
    assert [one.ends_ms for one in keys] == [0, 52, 52, 52, 54]
    assert keys.last_end_ms() == 54


def test_slot_of_a_key_cannot_be_changed_and_costs_the_garbage_collector_nothing() -> None:
    """There is one for each request."""
    slot = KeyTable().slot("bob", "k1", 1, 9)
    with pytest.raises(AttributeError):
        slot.key = "other"  # type: ignore[misc]
    assert not gc.is_tracked(slot)


def test_new_table_is_the_same_everywhere_and_a_key_that_names_no_time_is_minus_one_in_every_log() -> None:
    """Logs and states of earlier builds hold these."""
    keys = KeyTable()
    assert keys.dump() == [1, 1, -1, 0, [], []]
    check(keys)
    assert KEYS_CLIENT == 2**53 - 1
    assert format_client_id(KEYS_CLIENT) == "001fffffffffffff"
    keys.forgotten_ms = 9
    assert keys.decide("", "k", 7, -1, 9) is EXECUTE


def test_bounds_of_the_rule_are_those_of_every_build_and_the_setting_is_what_the_documents_say() -> None:
    """A replica with another bound would decide otherwise about the same entry."""
    assert key_table.KEYS_BYTES_MAX == 17_592_186_044_416
    assert key_table.KEYS_BYTES_DEFAULT == 8_589_934_592


def _three() -> KeyTable:
    """Return a table with buckets of keys 1 and 2, of 3, and of 4."""
    keys, _ = filled([(1, 60, "", "k"), (0, 60, "", "k"), (9, 60, "", "k"), (9, 60, "", "k")])
    assert [(one.first, one.stop) for one in keys.buckets] == [(1, 3), (3, 4), (4, 5)]
    return keys


def _more(bucket: Bucket, keys: int) -> None:
    bucket.held[owner_of("k", "")].keys += keys


def _a_key_too_few(buckets: list[Bucket]) -> None:
    _more(buckets[0], -1)


def _a_key_too_many(buckets: list[Bucket]) -> None:
    _more(buckets[1], 1)


def _no_key(buckets: list[Bucket]) -> None:
    buckets[1].stop, buckets[1].held = 3, {}


def _numbers_twice(buckets: list[Bucket]) -> None:
    buckets[1].first -= 1
    _more(buckets[1], 1)


def _ends_earlier(buckets: list[Bucket]) -> None:
    buckets[1].ends_ms = buckets[0].ends_ms - 1


def _used_earlier(buckets: list[Bucket]) -> None:
    buckets[1].last_ms = buckets[0].last_ms - 1


def _first_record_gone(buckets: list[Bucket]) -> None:
    buckets[0].first -= 1
    _more(buckets[0], 1)


def _last_record_gone(buckets: list[Bucket]) -> None:
    buckets[2].stop += 1
    _more(buckets[2], 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (_a_key_too_few, "^1 idempotency keys are numbered 1 to 2$"),
        (_a_key_too_many, "^2 idempotency keys are numbered 3 to 3$"),
        (_no_key, "^0 idempotency keys are numbered 3 to 2$"),
        (_numbers_twice, "^idempotency key 2 is older than the one before it$"),
        (_ends_earlier, "^idempotency key 3 is older"),
        (_used_earlier, "^idempotency key 3 is older"),
        (_first_record_gone, "^idempotency key 0 is older"),
        (_last_record_gone, "^idempotency key 5 is missing$"),
    ],
)
def test_buckets_that_no_table_can_have_had_are_refused_by_number(wrong: Any, said: str) -> None:
    keys = _three()
    buckets = saved(keys)
    wrong(buckets)
    with pytest.raises(InvariantViolation, match=said):
        KeyTable(keys.records).restore(99, NO_TIME, buckets)


def test_first_record_of_a_bucket_has_to_be_there() -> None:
    keys = _three()
    buckets = saved(keys)
    keys.records.forget_below(2)
    with pytest.raises(InvariantViolation, match=r"^idempotency key 1 is missing$"):
        KeyTable(keys.records).restore(5, NO_TIME, buckets)


def test_no_key_is_remembered_from_the_next_number_on() -> None:
    keys = _three()
    with pytest.raises(InvariantViolation, match=r"^idempotency key 4 is remembered where 4 is the next$"):
        KeyTable(keys.records).restore(4, NO_TIME, saved(keys))
    KeyTable(keys.records).restore(5, NO_TIME, saved(keys))


def test_bucket_may_begin_in_the_millisecond_in_which_the_one_before_it_ended() -> None:
    keys, now = filled([(1, 60, "", "k")])
    keys.fence(now, 0, 5)
    keys.slot("", "k2", now, 60).record(7, 7, 2)
    assert [one.last_ms for one in keys.buckets] == [now, now]
    again = restored(keys)
    assert again.dump() == keys.dump()
    check(again)


@given(
    uses,
    st.integers(0, 80),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), min_size=1, max_size=3),
    st.booleans(),
)
def test_behind_each_fence_the_same_keys_are_remembered_for_the_time_that_they_had_left(
    keys_used: list[Use], rest_ms: int, fences: list[tuple[int, int]], used_between: bool
) -> None:
    keys, now = filled(keys_used)
    now += rest_ms
    keys.forget(now)
    for slept_ms, skipped in fences:
        before, following, first, now = list(keys), keys.next + skipped, keys.first, now + slept_ms
        keys.fence(now, slept_ms, skipped)
        wanted = [msgspec.structs.replace(one, ends_ms=one.ends_ms + slept_ms) for one in before]
        numbers = (first if before else following, following)
        assert list(keys) == wanted
        assert (keys.first, keys.next, keys.forgotten_ms) == (*numbers, now)
        assert lying(keys) == [one.number for one in wanted], "nothing of before lies there any more"
        check(keys)
        for named_ms, told in ((now, Refusal.SESSION_EXPIRED), (now + 1, EXECUTE)):
            assert keys.decide("bob", "never", 7, named_ms, now + 1) is told, "another cluster may have taken it"
        if used_between:
            keys.slot("bob", f"k-{keys.next}", now, 60).record(keys.next, 7, keys.next + 100)
            check(keys)
    while len(keys):
        now = keys.room_in_ms(0)
        assert keys.forget(now - 1) == 0
        assert keys.forget(now) > 0
        check(keys)
        assert lying(keys) == [one.number for one in keys]


@given(uses, st.integers(0, 80), st.integers(0, 40))
def test_table_is_restored_from_its_save_and_takes_then_what_it_would_have_taken(
    keys_used: list[Use], rest_ms: int, slept_ms: int
) -> None:
    keys, now = filled(keys_used)
    now += rest_ms
    keys.forget(now)
    keys.fence(now + slept_ms, slept_ms, 2)
    again = restored(keys)
    commit = list(keys)[-1].record.commit if len(keys) else 0
    for table in (keys, again):
        with pytest.raises(InvariantViolation):
            table.slot("bob", "late", FAR_MS, 9).record(keys.next, 7, commit)
        check(table)
    assert again.dump() == keys.dump()
    number = keys.next
    for table in (keys, again):
        table.slot("bob", "late", FAR_MS, 9).record(number, 7, commit + 1)
        check(table)
    assert again.dump() == keys.dump()


@given(uses)
def test_room_to_come_is_the_room_that_comes(keys_used: list[Use]) -> None:
    keys, _ = filled(keys_used)
    for kind in KeyKind:
        for tenant in TENANTS:
            told = dict(keys.room_to_come(kind, tenant))  # of equal ends the last
            again = restored(keys)
            for ends_ms, left in told.items():
                again.forget(ends_ms + 1)
                assert again.taken(kind, tenant) == left
            assert len(again) == 0
