"""The router and the retry policy on their own: no sockets, time as a value."""

from __future__ import annotations

import pytest

from oncegate import Tuning
from oncegate.gateway.client.routing import ENDPOINTS_MAX, AttemptFailed, RetryBudget, RetryPolicy, Router, origin
from oncegate.rifl.errors import Code, OncegateError
from tests.client.answers import fails

A, B, C = "http://a:1", "http://b:1", "http://c:1"


def test_dead_leader_named_by_a_follower_is_not_asked_again_while_it_rests() -> None:
    router = Router([A, B, C])
    router.answered(B, A, 0.0)
    assert router.pick(0.0) == A
    router.unreachable(A, 0.0)
    assert router.pick(0.0) == B
    router.refused(B, A, 0.01)
    assert router.pick(0.01) == C
    router.answered(C, A, 0.02)
    assert router.pick(0.02) == C
    assert router.pick(1.0) == C, "the follower's word was not kept"
    router.answered(C, A, 1.0)
    assert router.pick(1.0) == A


@pytest.mark.parametrize("pause_s", [0.0, 0.5, 10.0])
@pytest.mark.parametrize("serving", [A, B, C])
def test_node_that_serves_is_found_however_long_the_pauses_are(serving: str, pause_s: float) -> None:
    router = Router([A, B, C])
    router.answered(B, B, 0.0)
    now, asked = 0.0, []
    for _ in range(3):
        endpoint = router.pick(now)
        asked.append(endpoint)
        if endpoint == serving:
            break
        router.refused(endpoint, None, now)
        now += pause_s
    assert serving in asked


def test_node_that_stays_dead_is_tried_less_and_less() -> None:
    router = Router([A, B])
    rests = []
    now = 0.0
    for _ in range(6):
        router.unreachable(A, now)
        start = now
        while router.pick(now) != A:
            now += 0.05
            router.answered(B, A, now)
        rests.append(now - start)
    assert rests == sorted(rests)
    assert rests[-1] >= 4 * rests[0]


def test_when_all_rest_the_one_longest_rested_is_asked() -> None:
    router = Router([A, B, C])
    router.unreachable(B, 0.0)
    router.unreachable(A, 0.1)
    router.unreachable(C, 0.2)
    assert router.pick(0.21) == B


def test_hostile_leader_address_is_ignored() -> None:
    router = Router([A])
    for hint in ("ftp://x", "http://user:pw@x", "http://", "", "http://x:notaport"):
        router.answered(A, hint, 0.0)
        assert router.pick(0.0) == A
    for number in range(200):
        router.answered(A, f"http://n{number}:1", 0.0)
    assert len(router.endpoints) <= ENDPOINTS_MAX


@pytest.mark.parametrize("bad", ["", "ftp://h", "http://", "http://h:99999", "http://u@h"])
def test_bad_endpoint_is_refused(bad: str) -> None:
    with fails(Code.BAD_REQUEST, kind=OncegateError):
        Router([bad])


def test_origin_drops_paths_and_keeps_ipv6() -> None:
    assert origin("http://h:1/x?y") == "http://h:1"
    assert origin("h:1") == "http://h:1"
    assert origin("https://[::1]:7400/") == "https://[::1]:7400"


def waits(policy: RetryPolicy, failure: AttemptFailed, count: int) -> list[float]:
    return [policy.pause_s(failure) for _ in range(count)]


def policy(deadline: float = 1e9, *, budget: int = 1000, moves: int = 2) -> RetryPolicy:
    tuning = Tuning(backoff_first_s=0.1, backoff_cap_s=1.0)
    return RetryPolicy(tuning, RetryBudget(budget), lambda: deadline, lambda: 0.0, moves)


def test_other_nodes_are_asked_at_once_and_then_a_pause_follows() -> None:
    gone = AttemptFailed(Code.NOT_READY, "", ambiguous=False, elsewhere=True)
    pauses = waits(policy(), gone, 9)
    assert [pause == 0.0 for pause in pauses] == [True, True, False] * 3


def test_pauses_are_random_below_a_doubling_bound() -> None:
    busy = AttemptFailed(Code.OVERLOADED, "", ambiguous=False)
    pauses = [waits(policy(), busy, 8) for _ in range(200)]
    for at, bound in enumerate([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]):
        column = [row[at] for row in pauses]
        assert all(0.0 <= pause <= bound for pause in column)
        assert max(column) > bound / 2 > min(column)


def test_pause_the_server_asks_for_is_honoured_within_reason() -> None:
    busy = AttemptFailed(Code.OVERLOADED, "", ambiguous=False, retry_after_ms=2000)
    assert 2.0 <= waits(policy(), busy, 1)[0] <= 2.1
    absurd = AttemptFailed(Code.OVERLOADED, "", ambiguous=False, retry_after_ms=10**9)
    assert waits(policy(), absurd, 1)[0] <= 5.1


def test_without_budget_every_pause_is_the_longest() -> None:
    gone = AttemptFailed(Code.NOT_READY, "", ambiguous=False, elsewhere=True)
    assert waits(policy(budget=3), gone, 5)[-2:] == [1.0, 1.0]
    budget = RetryBudget(1)
    assert budget.spend()
    assert not budget.spend()
    for _ in range(11):
        budget.refill()
    assert budget.spend()


def test_pause_never_sleeps_through_the_deadline() -> None:
    busy = AttemptFailed(Code.OVERLOADED, "", ambiguous=False, retry_after_ms=4000)
    assert waits(policy(deadline=1.0), busy, 1)[0] == 0.5
    late = policy(deadline=0.004)
    assert late.over(late.pause_s(busy))
