"""Idempotency keys against a dictionary that never forgets: nothing is silently executed twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oncegate.rifl import key_table
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.key_buckets import PARTS
from oncegate.rifl.key_records import KeyKind, KeyRecord
from oncegate.rifl.key_table import NO_TIME, KeyTable
from oncegate.rifl.resolve_rule import Fate
from oncegate.rifl.rule import EXECUTE, Execute, Refusal
from tests.rifl.apply_rule import assert_caught


@dataclass
class Result:
    """A result of some size."""

    size: int


@dataclass
class Used:
    """What the model knows of a first use."""

    fingerprint: int
    number: int
    commit: int
    ends_ms: int
    group: int = 0


class Groups:
    """The model of buckets: which keys are forgotten together, by a count of its own."""

    def __init__(self) -> None:
        self.newest = 0
        self._until_ms = -1

    def of(self, used_ms: int, ends_ms: int) -> int:
        """Return the group of a key that is new."""
        if used_ms >= self._until_ms:
            self.newest += 1
            self._until_ms = used_ms + max(1, (ends_ms - used_ms) // PARTS)
        return self.newest

    def end(self) -> None:
        """The next key begins a group."""
        self._until_ms = -1


class Keys(RuleBasedStateMachine):
    """The model keeps every use for ever, so a second execution shows."""

    table_type: ClassVar[type[KeyTable]] = KeyTable

    def __init__(self) -> None:
        super().__init__()
        self.keys = type(self).table_type()
        self.groups = Groups()
        self.now = 0
        self.commit = 0
        self.end = 0
        self.used: dict[tuple[str, str], Used] = {}
        self.present: list[tuple[str, str]] = []

    @rule(
        tenant=st.sampled_from(["", "", "bob"]),
        name=st.sampled_from("abcd"),
        named_ms=st.sampled_from([NO_TIME, 0, 1, 2, 5, 10, 30]),
        fingerprint=st.sampled_from([1, 1, 1, 2]),
        lifetime_ms=st.sampled_from([0, 5, 50, 500]),
        ago=st.booleans(),
    )
    def use(self, tenant: str, name: str, named_ms: int, fingerprint: int, lifetime_ms: int, ago: bool) -> None:
        if named_ms != NO_TIME:
            named_ms = max(0, self.now - named_ms) if ago else self.now + named_ms
        self._sent(tenant, name, named_ms, fingerprint, lifetime_ms)

    @rule(pick=st.integers(0, 99))
    def use_again(self, pick: int) -> None:
        if self.used:
            tenant, key = list(self.used)[pick % len(self.used)]
            self._sent(tenant, key[0], int(key[1:]), self.used[tenant, key].fingerprint, 5)

    def _sent(self, tenant: str, name: str, named_ms: int, fingerprint: int, lifetime_ms: int) -> None:
        key = f"{name}{named_ms}"
        verdict = self.keys.decide(tenant, key, fingerprint, named_ms, self.now)
        known = verdict if isinstance(verdict, KeyRecord) else None
        before = self.used.get((tenant, key))
        if (tenant, key) in self.present:
            assert before is not None
            if before.fingerprint == fingerprint:
                assert verdict is known
                assert known is not None
                assert (known.number, known.record.commit) == (before.number, before.commit)
            else:
                assert verdict is Refusal.PAYLOAD_MISMATCH
            return
        assert known is None
        if named_ms > self.now:
            assert verdict is Refusal.BAD_REQUEST
        elif named_ms != NO_TIME and before is not None:
            assert verdict is Refusal.SESSION_EXPIRED, "a forgotten key whose age can be told is never executed again"
        elif verdict is Refusal.SESSION_EXPIRED:
            assert named_ms <= self.keys.forgotten_ms, "only keys that may have been forgotten are refused"
        else:
            assert verdict is EXECUTE
            self.commit += 1
            number = self.keys.next
            slot = self.keys.slot(tenant, key, self.now, lifetime_ms)
            slot.record(number, fingerprint, self.commit, Result(8))
            self.end = max(self.end, self.now + lifetime_ms)
            group = self.groups.of(self.now, self.end)
            self.used[tenant, key] = Used(fingerprint, number, self.commit, self.end, group)
            self.present.append((tenant, key))

    @rule(ms=st.integers(0, 12))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def forget(self) -> None:
        ends = {self.used[name].group: self.used[name].ends_ms for name in self.present}
        over = [name for name in self.present if ends[self.used[name].group] < self.now]
        assert self.keys.due(self.now) == bool(over)
        assert self.keys.forget(self.now) == len(over)
        self.present = [name for name in self.present if name not in over]
        if not self.present:
            self.groups.end()

    @rule()
    def save_and_restore(self) -> None:
        restored = type(self).table_type()
        restored.records = self.keys.records  # on disk, where they are
        restored.restore(self.keys.next, self.keys.forgotten_ms, self.keys.buckets)
        assert restored.dump() == self.keys.dump()
        self.keys = restored

    @invariant()
    def both_know_the_same(self) -> None:
        assert [(r.tenant, r.key) for r in self.keys] == self.present
        assert len(self.keys) == len(self.present)
        assert self.keys.bytes == sum(record.size for record in self.keys)
        for tenant in ("", "bob"):
            mine = [record.size for record in self.keys if record.tenant == tenant]
            held = self.keys.of_tenant(tenant)
            assert (held.keys, held.bytes) == (len(mine), sum(mine))
        ends = [record.ends_ms for record in self.keys]
        assert ends == sorted(ends), "keys are forgotten in the order of their first use"
        assert all(bucket.first < bucket.stop for bucket in self.keys.buckets)


TestKeys = Keys.TestCase
TestKeys.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class ForgetsItsAge(KeyTable):
    """Planted bug: what was forgotten is not remembered as a time."""

    __slots__ = ()

    def forget(self, now_ms: int) -> int:
        count = super().forget(now_ms)
        self.forgotten_ms = NO_TIME
        return count


class MixesTenants(KeyTable):
    """Planted bug: the tenant is not looked at."""

    __slots__ = ()

    def decide(
        self, tenant: str, key: str, fingerprint: int, named_ms: int, now_ms: int
    ) -> Execute | KeyRecord | Refusal:
        found = super().decide("", key, fingerprint, named_ms, now_ms)
        return found if isinstance(found, KeyRecord) else super().decide(tenant, key, fingerprint, named_ms, now_ms)


@pytest.mark.parametrize("planted", [ForgetsItsAge, MixesTenants])
def test_planted_bug_is_caught_by_the_model(planted: type[KeyTable]) -> None:
    assert_caught(Keys, 2_000, table_type=planted)


def _filled(count: int, lifetime_ms: int = 10) -> KeyTable:
    keys = KeyTable()
    for number in range(1, count + 1):
        keys.slot("", f"k{number}", number, lifetime_ms).record(number, 7, number)
    return keys


@given(uses=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 500)), max_size=60), rest_ms=st.integers(0, 600))
def test_key_in_a_bucket_is_never_forgotten_early_and_at_most_a_part_of_its_bucket_late(
    uses: list[tuple[int, int]], rest_ms: int
) -> None:
    keys, now, ends = KeyTable(), 0, list[int]()
    for at, (pause_ms, lifetime_ms) in enumerate(uses, 1):
        now += pause_ms
        keys.forget(now)
        keys.slot("", f"k{at}", now, lifetime_ms).record(at, 7, at)
        ends.append(now + lifetime_ms)
        width_ms = [bucket.until_ms - bucket.last_ms for bucket in keys.buckets]
        assert all(width > 0 for width in width_ms), "a new key opens the next bucket in time"
    now += rest_ms
    keys.forget(now)
    remembered = {record.number for record in keys}
    for number, end in enumerate(ends, 1):
        assert number in remembered or end < now
    for bucket in keys.buckets:
        assert bucket.ends_ms >= now, "none is kept beyond its last end"


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3_600_000), st.integers(0, 2_592_000_000)), min_size=100, max_size=400))
def test_buckets_are_few_whatever_the_lifetimes(uses: list[tuple[int, int]]) -> None:
    keys, now = KeyTable(), 0
    for at, (pause_ms, lifetime_ms) in enumerate(uses, 1):
        now += pause_ms
        keys.forget(now)
        keys.slot("", f"k{at}", now, lifetime_ms).record(at, 7, at)
        assert len(keys.buckets) <= 540


def test_lifetime_that_stays_the_same_makes_a_bucket_for_each_part_and_two() -> None:
    keys, most = KeyTable(), 0
    for at in range(1, 2_000):
        keys.forget(at * 10)
        keys.slot("", f"k{at}", at * 10, 2_400).record(at, 7, at)
        most = max(most, len(keys.buckets))
    assert most <= PARTS + 2


def test_bound_of_the_rule_is_on_the_bytes_of_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = _filled(3)
    assert keys.decide("", "new", 1, NO_TIME, 5) is EXECUTE
    monkeypatch.setattr(key_table, "KEYS_BYTES_MAX", keys.bytes)
    assert keys.decide("", "new", 1, NO_TIME, 5) is Refusal.QUOTA


def test_fence_leaves_numbers_out_and_keeps_each_key_under_its_own_for_the_time_it_had_left() -> None:
    keys = _filled(2, lifetime_ms=100)
    keys.slot("", "k3", 3, 100).record(3, 7, 3)
    keys.fence(1_000, 997, 50)
    assert [(record.number, record.ends_ms) for record in keys] == [(1, 1_098), (2, 1_099), (3, 1_100)]
    assert keys.decide("", "k3", 7, NO_TIME, 1_000).ends_ms == 1_100
    assert keys.decide("", "oncegate-1000-x", 1, 1_000, 1_000) is Refusal.SESSION_EXPIRED
    keys.slot("", "new", 1_001, 100).record(54, 7, 4)
    assert keys.look_up(30).fate is Fate.EXPIRED, "another cluster may have given it out"
    assert keys.look_up(54).fate is Fate.EXECUTED
    again = KeyTable(keys.records)
    again.restore(keys.next, keys.forgotten_ms, keys.buckets)
    assert again.dump() == keys.dump()
    for now, left in ((1_100, 4), (1_101, 1), (2_000, 0)):
        again.forget(now)
        assert len(again) == left


@given(
    uses=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 200)), min_size=1, max_size=20),
    slept_ms=st.integers(0, 300),
    pause_ms=st.integers(1, 90),
)
def test_key_of_the_time_before_a_fence_is_executed_at_no_time_behind_it(
    uses: list[tuple[int, int]], slept_ms: int, pause_ms: int
) -> None:
    """Another cluster may have executed it, also where the keys that are remembered here are forgotten by now."""
    keys, now = KeyTable(), 0
    for at, (rest_ms, lifetime_ms) in enumerate(uses, 1):
        now += rest_ms
        keys.slot("", f"k{at}", now, lifetime_ms).record(at, 7, at)
    fenced = now = now + slept_ms
    keys.fence(fenced, slept_ms, 50)
    while len(keys):
        now += pause_ms
        keys.forget(now)
        for named in range(fenced + 1):
            assert keys.decide("", "elsewhere", 1, named, now) is Refusal.SESSION_EXPIRED
        assert keys.decide("", "new", 1, fenced + 1, now) is EXECUTE


def test_room_to_come_tells_what_each_kind_and_tenant_takes_behind_each_bucket() -> None:
    keys = KeyTable()
    for at, (tenant, key) in enumerate([("a", "k1"), ("a", "e1"), ("b", "k2"), ("a", "k3")], 1):
        keys.slot(tenant, key, at * 100, 1_000).record(at, 7, at)
    size = keys.bytes // 4
    assert keys.taken(KeyKind.KEY, "a") == (4 * size, 3 * size, 2 * size)
    assert list(keys.room_to_come(KeyKind.KEY, "a")) == [
        (1_100, (3 * size, 2 * size, size)),
        (1_200, (2 * size, 2 * size, size)),
        (1_300, (size, size, size)),
        (1_400, (0, 0, 0)),
    ]


def _used(number: int = 4, key: str = "k4", used_ms: int = 3, ends_ms: int = 13, commit: int = 4) -> KeyRecord:
    return KeyRecord(number, "", key, used_ms, ends_ms, CompletionRecord(7, commit))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(_used(key="k2"), id="a key twice"),
        pytest.param(_used(number=3), id="a number twice"),
        pytest.param(_used(number=5), id="a number left out"),
        pytest.param(_used(used_ms=2), id="cluster time goes back"),
        pytest.param(_used(ends_ms=12), id="ends before an older key"),
        pytest.param(_used(commit=3), id="commit number does not rise"),
    ],
)
def test_key_that_would_hide_a_second_execution_raises_and_changes_nothing(wrong: KeyRecord) -> None:
    keys = _filled(3)
    before = keys.dump()
    with pytest.raises(InvariantViolation):
        keys.add(wrong)
    assert keys.dump() == before
    keys.add(_used())


@pytest.mark.parametrize("wrong", [_used(used_ms=2, ends_ms=90), _used(used_ms=90, ends_ms=90, commit=0)])
def test_first_key_after_all_were_forgotten_is_no_older_than_they(wrong: KeyRecord) -> None:
    keys = _filled(3)
    keys.forget(50)
    with pytest.raises(InvariantViolation):
        keys.add(wrong)


def test_bytes_of_keys_never_fall_below_what_is_remembered() -> None:
    keys = _filled(2)
    keys.bytes -= 1
    assert keys.forget(12) == 1
    with pytest.raises(InvariantViolation):
        keys.forget(50)
    assert len(keys) == 1


def test_bytes_are_bounded_before_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = _filled(2)
    monkeypatch.setattr(key_table, "KEYS_BYTES_MAX", keys.bytes)
    assert keys.decide("", "new", 1, NO_TIME, 5) is Refusal.QUOTA
    assert keys.decide("", "k1", 7, NO_TIME, 5).number == 1


def test_request_ids_of_keys_are_looked_up_by_their_own_tenant() -> None:
    keys = _filled(2)
    assert keys.look_up(1) == (Fate.EXECUTED, CompletionRecord(7, 1))
    assert keys.look_up(1, "bob").fate is Fate.NEVER_SEEN
    assert keys.look_up(3).fate is Fate.NEVER_SEEN
    keys.forget(12)
    assert keys.look_up(1).fate is Fate.EXPIRED
