"""Idempotency keys against a dictionary that never forgets: nothing is silently executed twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oncegate.rifl import key_table
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.key_table import NO_TIME, KeyRecord, KeyTable
from oncegate.rifl.resolve_rule import Fate
from oncegate.rifl.rule import EXECUTE, Execute, Refusal
from tests.rifl.apply_rule import assert_caught

MAX = 6


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


class Keys(RuleBasedStateMachine):
    """The model keeps every use for ever, so a second execution shows."""

    table_type: ClassVar[type[KeyTable]] = KeyTable

    def __init__(self) -> None:
        super().__init__()
        self._max = mock.patch.object(key_table, "KEYS_MAX", MAX)
        self._max.start()
        self.keys = type(self).table_type()
        self.now = 0
        self.commit = 0
        self.end = 0
        self.used: dict[tuple[str, str], Used] = {}
        self.present: list[tuple[str, str]] = []

    def teardown(self) -> None:
        self._max.stop()

    @rule(
        tenant=st.sampled_from(["", "", "bob"]),
        name=st.sampled_from("abcd"),
        named_ms=st.sampled_from([NO_TIME, 0, 1, 2, 5, 10, 30]),
        fingerprint=st.sampled_from([1, 1, 1, 2]),
        lifetime_ms=st.sampled_from([0, 5, 50]),
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
        elif len(self.present) >= MAX:
            assert verdict is Refusal.QUOTA
        else:
            assert verdict is EXECUTE
            self.commit += 1
            number = self.keys.next
            slot = self.keys.slot(tenant, key, self.now, lifetime_ms)
            slot.record(number, fingerprint, self.commit, Result(8))
            self.end = max(self.end, self.now + lifetime_ms)
            self.used[tenant, key] = Used(fingerprint, number, self.commit, self.end)
            self.present.append((tenant, key))

    @rule(ms=st.integers(0, 12))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(limit=st.integers(1, 4))
    def forget(self, limit: int) -> None:
        over = [name for name in self.present if self.used[name].ends_ms < self.now][:limit]
        assert self.keys.forget(self.now, limit) == len(over)
        self.present = [name for name in self.present if name not in over]

    @rule()
    def save_and_restore(self) -> None:
        self.keys.take_changes()
        restored = type(self).table_type()
        restored.restore(self.keys.first, self.keys.next, self.keys.forgotten_ms, list(self.keys))
        assert restored.dump() == self.keys.dump()
        assert restored.take_changes() == (self.keys.first, self.keys.first, [])
        self.keys = restored

    @invariant()
    def both_know_the_same(self) -> None:
        assert [(r.tenant, r.key) for r in self.keys] == self.present
        assert len(self.keys) == len(self.present) <= MAX
        assert self.keys.bytes == sum(record.size for record in self.keys)
        ends = [record.ends_ms for record in self.keys]
        assert ends == sorted(ends), "keys are forgotten in the order of their first use"


TestKeys = Keys.TestCase
TestKeys.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class ForgetsItsAge(KeyTable):
    """Planted bug: what was forgotten is not remembered as a time."""

    __slots__ = ()

    def forget(self, now_ms: int, limit: int) -> int:
        count = super().forget(now_ms, limit)
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


def test_changes_name_each_new_and_each_gone_key_once() -> None:
    keys = _filled(3)
    assert [record.number for record in keys.take_changes().new] == [1, 2, 3]
    keys.slot("", "k4", 4, 10).record(4, 7, 4)
    keys.forget(13, 10)
    changes = keys.take_changes()
    assert (changes.gone_first, changes.gone_end, [record.number for record in changes.new]) == (1, 3, [3 + 1])
    keys.slot("", "k5", 14, 0).record(5, 7, 5)
    keys.forget(100, 10)
    assert keys.take_changes() == (3, 5, []), "a key that came and went between two looks was never saved"


def test_records_that_are_not_all_there_are_not_taken_for_a_table() -> None:
    saved = list(_filled(3))
    for found in (saved[:2], saved[1:], [saved[0], saved[2], saved[1]], [*saved, saved[2]]):
        with pytest.raises(InvariantViolation):
            KeyTable().restore(1, 4, NO_TIME, found)
    again = KeyTable()
    again.restore(1, 4, NO_TIME, saved)
    assert list(again) == saved


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
    keys.forget(50, 10)
    with pytest.raises(InvariantViolation):
        keys.add(wrong)


def test_bytes_of_keys_never_fall_below_what_is_remembered() -> None:
    keys = _filled(2)
    keys.bytes -= 1
    assert keys.forget(12, 1) == 1
    with pytest.raises(InvariantViolation):
        keys.forget(50, 1)
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
    keys.forget(12, 10)
    assert keys.look_up(1).fate is Fate.EXPIRED
