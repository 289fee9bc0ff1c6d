"""Which leases may have run out: never too early, not much too late, without scanning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.rifl import lease
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.lease import LOOKS_MAX, ExpiryQueue


class Leases:
    """A queue with the ends it is asked about; counts the questions."""

    def __init__(self) -> None:
        self.queue = ExpiryQueue()
        self.ends: dict[int, int] = {}
        self.asked = 0

    def open(self, client: int, end: int) -> None:
        self.ends[client] = end
        self.queue.file(client, end)

    def due(self, now: int, limit: int = 1_000) -> list[int]:
        return self.queue.due(now, self._end, limit=limit)

    def _end(self, client: int) -> int | None:
        self.asked += 1
        return self.ends.get(client)


def test_lease_is_due_once_its_bucket_is_over_and_never_before_its_end() -> None:
    leases = Leases()
    leases.open(1, 1_500)
    assert [now for now in range(0, 4_000, 100) if leases.due(now)][:1] == [2_000]


@pytest.mark.parametrize("end", range(1_000, 3_001, 500))
def test_renewed_lease_is_due_behind_its_end_and_not_at_it(end: int) -> None:
    for now in range(1_000, 4_001, 500):
        leases = Leases()
        leases.open(1, 0)
        leases.ends[1] = end
        assert leases.due(now) == ([1] if end < now else [])


def test_session_that_is_gone_is_forgotten() -> None:
    leases = Leases()
    leases.open(1, 1_000)
    del leases.ends[1]
    assert not leases.due(10_000)
    assert leases.asked == 1
    assert not leases.due(20_000)
    assert leases.asked == 1


def test_forgetting_a_session_that_was_never_filed_raises() -> None:
    queue = ExpiryQueue()
    queue.file(1, 1_000)
    queue.forget()
    with pytest.raises(InvariantViolation, match=r"^2 of 1 filed sessions are gone"):
        queue.forget()
    assert len(queue) == 1


def test_bounds_of_the_work_and_of_what_is_kept_are_what_the_documents_say() -> None:
    assert (lease.BUCKET_MS, lease.LOOKS_MAX, lease.GONE_KEPT) == (1_000, 5_000, 4_096)


def _counts(leases: Leases) -> tuple[int, int]:
    """Return how many are filed and how many of them are gone, counted one by one."""
    filed = [client for waiting in leases.queue._buckets.values() for client in waiting]
    assert len(filed) == len(set(filed))
    assert set(leases.ends) <= set(filed), "a session that is not filed is never reaped"
    return len(filed), sum(client not in leases.ends for client in filed)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 12), st.integers(0, 4), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8)), max_size=60))
def test_counts_are_those_of_what_is_filed_and_work_is_done_when_it_is_due_and_no_other(
    looks: int, kept: int, steps: list[tuple[int, int]]
) -> None:
    """Time goes by half buckets, so that ends meet the present and the edges of buckets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "LOOKS_MAX", looks)
        patch.setattr(lease, "GONE_KEPT", kept)
        leases, now, opened = Leases(), 0, 0
        queue = leases.queue
        for what, amount in steps:
            if what <= 1:
                opened += 1
                leases.open(opened, now + 500 * amount)
            elif what == 2 and leases.ends:
                client = sorted(leases.ends)[amount % len(leases.ends)]
                leases.ends[client] = max(leases.ends[client], now + 500 * amount)
            elif what == 3 and leases.ends:
                del leases.ends[sorted(leases.ends)[amount % len(leases.ends)]]
                queue.forget()
            else:
                now += 500 * (amount // 2)
                filed, gone = _counts(leases)
                late = any(bucket < now // lease.BUCKET_MS for bucket in queue._buckets)
                assert queue.is_behind(now) == (late or gone > max(kept, filed // 2))
                before, idle = leases.asked, not queue.is_behind(now)
                for client in leases.due(now):
                    assert leases.ends.pop(client) < now
                    queue.forget()
                assert 0 <= leases.asked - before <= looks
                assert not idle or leases.asked == before, "it looked at somebody for nothing"
            assert (len(queue), queue._gone) == _counts(leases)
            assert sorted(queue._order) == sorted(queue._buckets)
            assert all(type(bucket) is int for bucket in queue._buckets)
            assert queue.next_ms is None or queue.next_ms % lease.BUCKET_MS == 0
        for _ in range(40 * (opened + 1)):
            leases.due(now)
        assert not queue.is_behind(now) or any(end < now for end in leases.ends.values())


def test_work_of_a_call_is_bounded_by_its_limit() -> None:
    """A hundred thousand leases that end together are not all looked at for ten answers."""
    leases = Leases()
    for client in range(2_000):
        leases.open(client, 1_000)
    assert len(leases.due(5_000, limit=10)) == 10
    assert leases.asked <= 100


def test_call_asks_about_nobody_whose_bucket_is_not_over() -> None:
    leases = Leases()
    for client in range(1_000):
        leases.open(client, 60_000 + client)
    assert not leases.due(59_999)
    assert leases.asked == 0


def test_renewal_costs_one_question_a_lease_however_often_it_happens() -> None:
    leases = Leases()
    leases.open(1, 60_000)
    for now in range(0, 600_000, 1_000):
        leases.ends[1] = now + 60_000
        leases.due(now)
    assert leases.asked <= 11


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6_000), st.integers(0, 5), st.integers(0, 8_000)), max_size=40), st.integers(1, 3)
)
def test_queue_agrees_with_a_scan(steps: list[tuple[int, int, int]], limit: int) -> None:
    leases = Leases()
    now = opened = 0
    for passed, what, amount in steps:
        now += passed
        if what == 0 and leases.ends:
            client = min(leases.ends)
            leases.ends[client] = max(leases.ends[client], now + amount)
        elif what == 1 and leases.ends:
            del leases.ends[max(leases.ends)]
        elif what <= 3:
            opened += 1
            leases.open(opened, now + amount)
        else:
            ended = {client for client, end in leases.ends.items() if end < now}
            found = leases.due(now, limit=limit)
            assert set(found) <= ended
            assert len(found) == len(set(found)) <= limit
    # Everybody who has ended is found in the end, whatever happened before.
    missing = set(leases.ends)
    for _ in range(len(missing) + 1):
        now += 20_000
        for client in leases.due(now, limit=limit):
            del leases.ends[client]
    assert not leases.ends


def test_call_looks_at_a_bounded_number_of_renewed_leases() -> None:
    """Everybody was granted a lease at once and renewed it: no single call files them all again."""
    leases = Leases()
    for client in range(4 * LOOKS_MAX):
        leases.open(client, 1_000)
        leases.ends[client] = 60_000 + client
    calls = 0
    while leases.asked < 4 * LOOKS_MAX:
        before = leases.asked
        assert not leases.due(5_000)
        assert 0 < leases.asked - before <= LOOKS_MAX
        calls += 1
        assert leases.queue.is_behind(5_000) == (calls < 4)
    assert calls == 4
    assert leases.due(200_000, limit=7) != []


def test_queue_is_behind_until_those_who_are_gone_are_dropped() -> None:
    leases = Leases()
    for client in range(3 * LOOKS_MAX):
        leases.open(client, 1_000_000)
    leases.due(0)
    assert not leases.queue.is_behind(0)
    for client in range(3 * LOOKS_MAX):
        del leases.ends[client]
        leases.queue.forget()
    calls = 0
    while leases.queue.is_behind(0):
        assert leases.due(0) == []
        calls += 1
    assert calls == 3
    assert len(leases.queue) <= lease.GONE_KEPT


@pytest.mark.parametrize("together", [1, 2, 3])
def test_sweep_looks_at_as_many_as_a_call_may_however_few_share_a_bucket(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "GONE_KEPT", 0)
    monkeypatch.setattr(lease, "LOOKS_MAX", 6)
    leases = Leases()
    for client in range(24):
        leases.open(client, 1_000_000 + client // together * lease.BUCKET_MS)
        leases.queue.forget()
    leases.ends.clear()
    for left in (18, 12, 6, 0):
        assert leases.due(0) == []
        assert len(leases.queue) == left
    assert leases.asked == 24


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sweeping_who_is_gone_forgets_nobody_else(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "GONE_KEPT", 2)
        patch.setattr(lease, "LOOKS_MAX", data.draw(st.integers(1, 9)))
        leases = Leases()
        for client in range(data.draw(st.integers(0, 40))):
            leases.open(client, data.draw(st.integers(5_000, 9_000)))
        now = 0
        for _ in range(data.draw(st.integers(0, 60))):
            if leases.ends and data.draw(st.booleans()):
                del leases.ends[data.draw(st.sampled_from(sorted(leases.ends)))]
                leases.queue.forget()
            now += data.draw(st.integers(0, 100))
            for client in leases.due(now, limit=3):
                assert leases.ends.pop(client) < now
                leases.queue.forget()
        for _ in range(300):
            leases.due(now, limit=3)
        assert len(leases.ends) <= len(leases.queue) <= max(2 * len(leases.ends) + 2, 4)
        found = set()
        for _ in range(300):
            now += 10_000
            for client in leases.due(now, limit=3):
                found.add(client)
                del leases.ends[client]
                leases.queue.forget()
        assert not leases.ends, found
