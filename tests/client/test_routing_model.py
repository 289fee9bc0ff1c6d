"""The router against a plain table of nodes, and the pauses of a call against the rules in words."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import AsyncRetrying, RetryCallState

from oncegate import Tuning
from oncegate.gateway.client.routing import (
    LAST_ATTEMPT_S,
    REST_MAX_S,
    REST_REFUSED_S,
    REST_SILENT_S,
    REST_UNREACHABLE_S,
    AttemptFailed,
    RetryBudget,
    RetryPolicy,
    Router,
    origin,
)
from oncegate.rifl.errors import Code

EVENTS = ("pick", "pick", "anywhere", "answered", "refused", "unreachable", "silent", "wait", "until it may be asked")


class Table:
    """What is known of each node: since when it may be asked again, and how often in a row it was not reached."""

    def __init__(self, nodes: list[str], *, prefer_leader: bool) -> None:
        self.nodes = list(nodes)
        self.until: dict[str, float] = {}
        self.missed: dict[str, int] = {}
        self.leader: str | None = None
        self.turn = 0
        self.prefer_leader = prefer_leader
        self.encrypted = all(node.startswith("https") for node in nodes)

    def awake(self, node: str, now: float) -> bool:
        return node not in self.until or self.until[node] <= now

    def pick(self, now: float, *, anywhere: bool) -> str:
        if anywhere or not self.prefer_leader:
            self.turn += 1
            after = [(self.turn + step) % len(self.nodes) for step in range(len(self.nodes))]
            if awake := [at for at in after if self.awake(self.nodes[at], now)]:
                self.turn = awake[0]
                return self.nodes[self.turn]
        elif self.leader is not None and self.awake(self.leader, now):
            return self.leader
        longest = sorted(self.nodes, key=lambda node: (self.until.get(node, 0.0), self.nodes.index(node)))
        return longest[0]

    def note(self, event: str, node: str, names: str | None, now: float) -> None:
        if event == "answered":
            self.until.pop(node, None)
            self.missed.pop(node, None)
        else:
            if self.leader == node:
                self.leader = None
            rest, missed = REST_REFUSED_S, self.missed.get(node, 0)
            if event != "refused":
                first = REST_SILENT_S if event == "silent" else REST_UNREACHABLE_S
                rest = min(REST_MAX_S, first * 2.0**missed)
                self.missed[node] = missed + 1
            self.until[node] = now + rest
        if names is not None and event in ("answered", "refused") and self.awake(names, now):
            if self.encrypted and names.startswith("http:"):
                return
            if names not in self.nodes:
                self.nodes.append(names)
            self.leader = names


@pytest.mark.parametrize("seed", range(40))
def test_router_asks_the_node_that_a_plain_table_says(seed: int) -> None:
    dice, now = random.Random(seed), 0.0
    schemes = dice.choices(("https", dice.choice(("http", "https"))), k=1 + seed % 4)
    nodes, prefer_leader = [f"{scheme}://n{at}:1" for at, scheme in enumerate(schemes)], dice.random() < 0.8
    router, table = Router(nodes, prefer_leader=prefer_leader), Table(nodes, prefer_leader=prefer_leader)
    for _ in range(300):
        event, node, passed = dice.choice(EVENTS), dice.choice(table.nodes), dice.randint(0, 20)
        names = None if dice.random() < 0.7 else f"{dice.choice(('http', 'https'))}://n{dice.randint(0, 3)}:1"
        match event:
            case "pick" | "anywhere":
                spread = event == "anywhere"
                assert router.pick(now, anywhere=spread) == table.pick(now, anywhere=spread)
            case "answered":
                router.answered(node, names, now)
            case "refused":
                router.refused(node, names, now)
            case "unreachable":
                router.unreachable(node, now)
            case "silent":
                router.unreachable(node, now, silent=True)
            case "wait":
                now += passed / 1024
            case _:
                now = max(now, table.until.get(node, 0.0) - (passed % 2) / 1024)
        if event in ("answered", "refused", "unreachable", "silent"):
            table.note(event, node, names, now)
        assert (router.endpoints, router.leader) == (table.nodes, table.leader)
        assert router.rested(now) == any(table.awake(one, now) for one in table.nodes)


@given(
    st.sampled_from(["http", "https"]),
    st.sampled_from(["h", "a.example", "127.0.0.1", "[::1]", "[fe80::2]"]),
    st.none() | st.integers(0, 65_535),
    st.sampled_from(["", "/", "/x/y", "?a=b", "/x?y#z"]),
)
def test_origin_is_what_stands_before_the_path_and_stays_the_same(
    scheme: str, host: str, port: int | None, rest: str
) -> None:
    plain = f"{scheme}://{host}" if port is None else f"{scheme}://{host}:{port}"
    assert origin(plain + rest) == plain
    assert origin(plain) == plain
    if scheme == "http":
        assert origin(plain.removeprefix("http://") + rest) == plain


@pytest.mark.parametrize("size", [0, 1, 2, 7, 64])
def test_retry_costs_ten_successes_and_no_more_are_put_back_than_there_were(size: int) -> None:
    dice, budget, tenths = random.Random(size), RetryBudget(size), 10 * size
    for _ in range(400):
        for _ in range(dice.choice((1, 9, 10, 20, 40))):
            budget.refill()
            tenths = min(10 * size, tenths + 1)
        for _ in range(dice.choice((1, 2, 3, size))):
            assert budget.spend() == (tenths >= 10), tenths
            tenths -= 10 if tenths >= 10 else 0


@pytest.mark.parametrize("seed", range(30))
def test_pause_of_each_failure_is_what_the_rules_say(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Jitter below a bound that doubles at each pause, a node's wish on top, half of what is left at most."""
    dice = random.Random(seed)
    shares: Iterator[float] = iter([dice.random() for _ in range(100)])
    drawn: list[float] = []

    def uniform(low: float, high: float) -> float:
        assert low == 0
        drawn.append(next(shares) * high)
        return drawn[-1]

    monkeypatch.setattr(random, "uniform", uniform)
    tuning = Tuning(
        backoff_first_s=dice.choice((0.1, 0.3, 5.0)), backoff_cap_s=dice.choice((1.0, 2.5)), retry_after_cap_s=3.0
    )
    budget, moves_max = dice.choice((4, 12, 100)), dice.randint(1, 3)
    now, deadline = 0.0, dice.choice((8.0, 60.0, 1e6))
    policy = RetryPolicy(tuning, RetryBudget(budget), lambda: deadline, lambda: now, moves_max)
    bound, moves = min(tuning.backoff_first_s, tuning.backoff_cap_s), 0
    for step in range(40):
        wish = dice.choice((None, None, 0, 700, 3_000, 3_001, 100_000))
        failure = AttemptFailed(Code.NOT_READY, "", ambiguous=False, retry_after_ms=wish, elsewhere=dice.random() < 0.6)
        drawn.clear()
        state = RetryCallState(AsyncRetrying(), None, (), {})
        state.set_exception((AttemptFailed, failure, None))
        pause = policy.wait(state) if step % 2 else policy.pause_s(failure)
        most = max(0.0, (deadline - now) / 2)
        if step >= budget:
            assert (pause, drawn) == (min(tuning.backoff_cap_s, most), [])
        elif failure.elsewhere and moves < moves_max:
            moves += 1
            assert (pause, drawn) == (0.0, [])
        else:
            moves = 0
            assert len(drawn) == 1
            assert 0 <= drawn[0] <= bound
            assert pause == pytest.approx(min(most, drawn[0] + min((wish or 0) / 1000, 3.0)))
            if bound < tuning.backoff_cap_s:
                bound = min(2 * bound, tuning.backoff_cap_s)
        for state.upcoming_sleep in (0.0, pause):
            assert policy.stop(state) == (policy.over(state.upcoming_sleep) or policy.in_vain(failure))
        late = deadline - now - LAST_ATTEMPT_S
        assert [policy.over(one) for one in (late - 0.01, late + 0.01)] == [False, True]
        vain = wish is not None and not failure.elsewhere and now + wish / 1000 >= deadline
        assert (policy.in_vain(failure), failure.too_late) == (vain, vain)
        now += dice.choice((pause, 0.0, 1.0))
        if dice.random() < 0.1:
            deadline = min(deadline, now + dice.choice((0.5, 2.0, 9.0)))  # the writes with a later one are done
