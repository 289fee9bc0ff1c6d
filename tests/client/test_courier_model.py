"""Calls against the courier's table: what each end of an attempt means, whoever ends it, and what follows.

Nodes and connections are fakes that do what a seed says; time is the loop's own. Each call is judged by its attempts:
whether it may have been applied, what it ended with, where and when it was made again, what was noted of the nodes.
"""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any, NamedTuple, Self

import aiohttp
import msgspec
import pytest

from oncegate import (
    Code,
    DeadlineExceeded,
    MalformedAnswer,
    OncegateError,
    OperationFailed,
    Outcome,
    OutcomeUnknown,
    Tuning,
)
from oncegate.gateway.client.answer_head import AnswerHead, UnusualAnswer
from oncegate.gateway.client.courier import DETOUR_S, Courier, JsonCall, at_deadline
from oncegate.gateway.client.direct_http import NoAnswer
from oncegate.gateway.client.routing import LAST_ATTEMPT_S, AttemptFailed, RetryBudget, Router
from oncegate.gateway.wire import H_AGE_MS, H_COMMIT, H_LEADER, Problem
from tests.client.answers import fails
from tests.client.small_cluster import StillLoop

NODES = ["http://a:1", "http://b:1", "http://c:1"]
TUNING = Tuning(
    attempt_timeout_s=2.0,
    backoff_first_s=0.05,
    backoff_cap_s=1.0,
    retry_after_cap_s=2.0,
    connections_max=1,
    retry_budget=10_000,
)


PATH = "/v1/p%7Eq?x=%2B"
UNUSED: Any = aiohttp.client_reqrep.ConnectionKey("a", 1, False, True, None, None, None)


class How(NamedTuple):
    """How an attempt ends: what the table says of it."""

    name: str
    status: int = 0
    payload: bytes = b""
    maybe: bool = False
    """Whether it may have been applied."""
    then: str = "again"
    noted: str = "answered"
    elsewhere: bool = False
    retry_after_ms: int | None = None
    code: Code = Code.TIMEOUT
    outcome: str = ""
    detail: str = "why"


def _refusal(dice: random.Random) -> How:
    status = dice.choice((400, 404, 409, 421, 429, 500, 503))
    name = dice.choice(("NOT_READY", "OVERLOADED", "QUOTA", "NOT_FOUND", "INTERNAL", "OF_A_NEWER_NODE"))
    detail = dice.choice(("why", ""))
    known = name in Code.__members__
    outcome, retryable = dice.choice(("not_applied", "applied", "unknown", "new")), dice.random() < 0.6
    after = dice.choice((None, 0, 700, 60_000))
    body = Problem("", "t", status, name, outcome, retryable, detail, after)
    elsewhere = status in (421, 503)
    return How(
        "refused",
        status,
        msgspec.json.encode(body),
        maybe=retryable and outcome != "not_applied",
        then="again" if retryable else "raised",
        noted="refused" if retryable and elsewhere else "answered",
        elsewhere=retryable and elsewhere,
        retry_after_ms=after,
        code=Code(name) if known else Code.INTERNAL,
        outcome="unknown" if outcome == "new" else outcome,
        detail=(detail or "t") if known else f"{name}: {detail or 't'}",
    )


def _how(dice: random.Random) -> How:
    lost = {"maybe": True, "elsewhere": True}
    none = {"elsewhere": True, "code": Code.NOT_READY}
    match dice.choice(("well", "refused", "refused", "silent", "cut", "unusual", "odd", "proxy", "dial", "late dial")):
        case "well":
            return How("well", 200, b"7", then="result")
        case "refused":
            return _refusal(dice)
        case "silent":
            return How("silent", noted="silent", **lost)  # type: ignore[arg-type]
        case "cut":
            return How("cut", noted="unreachable", **lost)  # type: ignore[arg-type]
        case "unusual":
            return How("unusual", noted="unreachable", **lost)  # type: ignore[arg-type]
        case "odd":
            status = dice.choice((200, 404, 500))
            noted = "answered" if status == 200 else ""
            return How("odd", status, b"<html>", maybe=True, then="malformed", noted=noted, code=Code.INTERNAL)
        case "proxy":
            status, code = dice.choice(
                ((429, Code.OVERLOADED), (502, Code.NOT_READY), (503, Code.NOT_READY), (504, Code.TIMEOUT))
            )
            noted = "refused" if status == 503 else "answered"
            return How("proxy", status, b"oops", maybe=True, noted=noted, elsewhere=status == 503, code=code)
        case "dial":
            return How("dial", noted="unreachable", **none)  # type: ignore[arg-type]
        case _:
            return How("late dial", noted="silent", **none)  # type: ignore[arg-type]


class Attempt(NamedTuple):
    """One attempt as the model sees it."""

    at: float
    endpoint: str
    how: How
    headers: dict[str, str]
    detour: bool
    call: str


class NotingRouter(Router):
    """Notes what is told of nodes, for each with the leader that it names."""

    def __init__(self) -> None:
        super().__init__(NODES)
        self.noted: list[tuple[str, str, str | None, float]] = []

    def answered(self, endpoint: str, leader: str | None, now: float) -> None:
        self.noted.append((endpoint, "answered", leader, now))
        super().answered(endpoint, leader, now)

    def refused(self, endpoint: str, leader: str | None, now: float) -> None:
        self.noted.append((endpoint, "refused", leader, now))
        super().refused(endpoint, leader, now)

    def unreachable(self, endpoint: str, now: float, *, silent: bool = False) -> None:
        self.noted.append((endpoint, "silent" if silent else "unreachable", None, now))
        super().unreachable(endpoint, now, silent=silent)


class CountedBudget(RetryBudget):
    """Counts successes."""

    refills = 0

    def refill(self) -> None:
        self.refills += 1
        super().refill()


class Delayed(JsonCall[int]):
    """Counts how often it is told that others follow its first attempt."""

    delays = 0

    def delayed(self) -> None:
        self.delays += 1


class World:
    """Nodes and both ways to them: it is the pool, its connections, and what stands for aiohttp's session."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self.attempts: list[Attempt] = []
        self.dropped: list[str] = []
        self.rested = 0
        self.tokens = 0
        self.call: JsonCall[int] | None = None
        """The call that is being made, if it is known."""
        self.detours: dict[str, float] = {}
        self.router = NotingRouter()
        self.courier = Courier(self, self, self.router, TUNING, self.loop.time, self._token)  # type: ignore[arg-type]
        self.courier.budget = self.budget = CountedBudget(TUNING.retry_budget)
        self._endpoint = ""

    def _token(self) -> str:
        self.tokens += 1
        return f"Bearer {self.tokens}"

    # The pool

    def host(self, endpoint: str) -> str:
        self._endpoint = endpoint  # asked first, in each direct attempt
        return endpoint.removeprefix("http://")

    def idle(self, endpoint: str) -> Any:
        assert endpoint == self._endpoint
        return _Direct(self, endpoint) if self.dice.random() < 0.5 else None

    async def dial(self, endpoint: str, due: float) -> Any:
        how = self._begin(endpoint) if self.dice.random() < 0.5 else None
        if how is not None and how.name == "dial":
            raise OSError
        if how is not None and how.name == "late dial":
            await asyncio.sleep(due - self.loop.time())
            if self.dice.random() < 0.5:
                raise TimeoutError
            self.attempts[-1] = self.attempts[-1]._replace(how=how._replace(noted=""))
            return _Direct(self, endpoint)
        if how is not None:
            self.attempts.pop()
        return _Direct(self, endpoint)

    def _begin(self, endpoint: str) -> How:
        how = _how(self.dice)
        self.attempts.append(Attempt(self.loop.time(), endpoint, how, {}, False, ""))
        return how

    def rest(self, connection: Any) -> None:
        self.rested += 1

    def drop(self, endpoint: str) -> None:
        self.dropped.append(endpoint)
        self.detours[endpoint] = self.loop.time() + DETOUR_S

    def answer(self, endpoint: str, *, detour: bool, token: str) -> Attempt:
        assert self.detours.get(endpoint, 0.0) > self.loop.time() if detour else True, "through aiohttp without reason"
        assert detour or self.detours.get(endpoint, 0.0) <= self.loop.time(), "not through aiohttp"
        assert token.endswith(f"Bearer {self.tokens}"), "the token of this attempt"
        never = ("late dial", "unusual") if detour else ("late dial", "dial")  # a direct dial is the pool's
        while (how := _how(self.dice)).name in never:
            pass
        headers = {}
        if how.status:
            for name, values in ((H_COMMIT, ("5", "6", "x")), (H_AGE_MS, ("8", "9")), (H_LEADER, NODES)):
                if self.dice.random() < 0.5:
                    headers[name] = self.dice.choice(values)
        if self.call is not None:
            assert self.call.under_way, "whoever gives it up must know that its bytes may have left"
            assert self.call.at_once != detour
        made = Attempt(self.loop.time(), endpoint, how, headers, detour, "")
        self.attempts.append(made)
        return made

    # aiohttp's session

    def request(self, method: str, url: Any, **more: Any) -> _Through:
        assert (more["data"], str(url).partition(":1")[2]) == (b'{"a":1}', PATH)
        return _Through(self, str(url.origin()), more["headers"]["Authorization"])


class _Direct:
    def __init__(self, world: World, endpoint: str) -> None:
        self._world, self._endpoint = world, endpoint

    async def ask(self, request: bytes, due: float, finish: Any) -> Any:
        world = self._world
        head, _, body = request.partition(b"\r\n\r\n")
        assert body == b'{"a":1}'
        assert head.startswith(f"PUT {PATH} HTTP/1.1\r\n".encode())
        token = head.decode().partition("Authorization: ")[2].partition("\r\n")[0]
        how = (made := world.answer(self._endpoint, detour=False, token=token)).how
        if how.name == "silent":
            await asyncio.sleep(max(0.0, due - world.loop.time()))
            raise NoAnswer("none", silent=True)
        await asyncio.sleep(min(world.dice.choice((0.0, 0.01, 1.0)), max(0.0, due - world.loop.time())))
        if how.name == "cut":
            raise NoAnswer("lost")
        if how.name == "unusual":
            raise UnusualAnswer("odd")
        return finish(AnswerHead(how.status, len(how.payload), True, made.headers), how.payload)


class _Through:
    """An answer through aiohttp."""

    def __init__(self, world: World, endpoint: str, token: str) -> None:
        self._world = world
        if world.closed:
            return
        self._made = world.answer(endpoint, detour=True, token=token)
        self.status, self.headers, self.content = self._made.how.status, self._made.headers, self

    async def __aenter__(self) -> Self:
        if self._world.closed:
            raise RuntimeError("Session is closed")
        if self._made.how.name == "silent":
            await asyncio.Event().wait()
        if self._made.how.name == "dial":
            raise aiohttp.ClientConnectorError(UNUSED, OSError())
        await asyncio.sleep(0)
        if self._made.how.name == "cut":
            raise aiohttp.ServerDisconnectedError
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def iter_any(self) -> Any:
        yield self._made.how.payload


async def _play(seed: int, calls: int) -> World:
    """Make calls, one after another or two at once: they share the one connection that a node may have."""
    await asyncio.sleep(1.0)  # a call that began at 0 has not begun
    world = World(seed)
    dice, courier, loop = world.dice, world.courier, world.loop
    for _ in range(calls):
        world.attempts.clear()
        world.router.noted.clear()
        refills, start = world.budget.refills, loop.time()
        call = Delayed("PUT", PATH, int, {}, start + dice.choice((0.5, 3.0, 30.0)), body={"a": 1})
        call.waits_s = dice.choice((0.0, 5.0))
        world.call = call
        asked = asyncio.ensure_future(courier.exchange(call))
        if cancels := dice.random() < 0.1:
            await asyncio.sleep(dice.choice((0.0, 0.01, 0.5)))
            under_way = not asked.done() and call.under_way
            asked.cancel()
        (end,) = await asyncio.gather(asked, return_exceptions=True)
        assert not call.under_way
        made = world.attempts
        if cancels and isinstance(end, asyncio.CancelledError):
            assert call.ambiguous or not under_way, "its bytes may have left"
            world.router.noted.clear()
            continue
        _check_attempts(world, call, start)
        assert call.delays <= 1
        assert call.delays or len(made) < 2, "writes on other rows may pass it"
        assert world.budget.refills - refills == (end == 7)
        assert call.ambiguous == any(one.how.maybe for one in made)
        _check_end(world, call, end)
        if dice.random() < 0.3:
            await asyncio.sleep(dice.choice((0.3, 5.0, DETOUR_S)))
    assert set(world.dropped) == set(world.detours)
    return world


def _check_attempts(world: World, call: JsonCall[int], start: float) -> None:
    """Where and when a call was made again, and what was noted of the nodes."""
    made = world.attempts
    noted = [one for one in made if one.how.noted]
    assert [told[:3] for told in world.router.noted] == [
        (one.endpoint, one.how.noted, one.headers.get(H_LEADER)) for one in noted
    ]
    for one, (*_, at) in zip(noted, world.router.noted, strict=True):
        assert at == one.at or one.how.status != 200, "what an answer says is as old as its request"
    moves = 0
    for one, following in pairwise(made):
        assert one.how.then in ("again", "malformed")
        vain = one.how.retry_after_ms is not None and not one.how.elsewhere
        assert not vain or one.at + (one.how.retry_after_ms or 0) / 1000 < call.deadline, "it is to come back later"
        pauses = not one.how.elsewhere or moves == len(NODES) - 1
        moves = 0 if pauses else moves + 1
        after_s = min((one.how.retry_after_ms or 0) / 1000, TUNING.retry_after_cap_s) if pauses else 0.0
        left = max(0.0, (call.deadline - following.at) / 2)
        assert following.at - one.at >= min(after_s, left)
    if made:
        assert call.began == start
        assert call.sent_at == made[-1].at or made[-1].how.name in ("dial", "late dial")
    commit, age = 0, None
    for one in made:
        if one.how.status:
            told = one.headers.get(H_COMMIT)
            commit = int(told) if told and told.isdigit() else commit
            age = int(one.headers[H_AGE_MS]) if H_AGE_MS in one.headers else None
    assert (call.commit, call.age_ms) == (commit, age)


def _check_end(world: World, call: JsonCall[int], end: Any) -> None:
    made, now = world.attempts, world.loop.time()
    last = made[-1].how if made else None
    malformed = sum(one.how.then == "malformed" for one in made)
    if end == 7:
        assert last is not None
        assert last.then == "result"
    elif isinstance(end, MalformedAnswer):
        assert (malformed, end.code, end.outcome) == (3, Code.INTERNAL, Outcome.UNKNOWN)
    elif isinstance(end, OncegateError):
        assert isinstance(end, OperationFailed)
        assert last is not None
        assert last.then == "raised"
        assert (end.code, end.outcome, end.retry_after_ms) == (last.code, last.outcome, last.retry_after_ms)
        assert end.detail == last.detail
    else:
        assert isinstance(end, AttemptFailed)
        assert malformed < 3
        assert last is not None
        assert last.then != "raised"
        assert (end.code, end.ambiguous, end.retry_after_ms) == (last.code, last.maybe, last.retry_after_ms)
        assert end.elsewhere == last.elsewhere
        comes_s = (last.retry_after_ms or 0) / 1000
        if end.too_late:
            assert not last.elsewhere
            assert now + comes_s >= call.deadline
        else:
            vain = last.retry_after_ms is not None and not last.elsewhere and now + comes_s >= call.deadline
            assert not vain or now + 2 * LAST_ATTEMPT_S >= call.deadline, "it waits in vain"
            assert now + TUNING.backoff_cap_s + TUNING.retry_after_cap_s >= call.deadline, "given up too early"


def play(seed: int, calls: int) -> World:
    random.seed(seed)
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(_play(seed, calls))


def test_each_end_of_an_attempt_means_what_the_table_says() -> None:
    worlds = [play(seed, 40) for seed in range(20)]
    assert sum(len(world.dropped) for world in worlds)
    assert sum(world.rested for world in worlds)


def test_attempt_has_its_whole_time_however_long_its_call_has_waited_for_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def wait() -> None:
        await asyncio.sleep(1.0)
        world = World(0)
        world.router.endpoints[:] = NODES[:1]
        start = world.loop.time()
        first, second = (JsonCall("PUT", PATH, int, {}, start + s, body={"a": 1}) for s in (2.0, 3.5))
        ends = await asyncio.gather(*map(world.courier.exchange, (first, second)), return_exceptions=True)
        assert [type(end) for end in ends] == [AttemptFailed, AttemptFailed]
        assert [one.at - start for one in world.attempts] == [0.0, 2.0]
        assert (first.began, second.began, second.sent_at) == (start, start, start + 2.0)

    silent = How("silent", maybe=True, elsewhere=True)
    with monkeypatch.context() as patch, asyncio.Runner(loop_factory=StillLoop) as runner:
        patch.setattr(NotingRouter, "unreachable", lambda *_, **__: None)
        patch.setitem(globals(), "_how", lambda _: silent)
        patch.setattr(World, "idle", lambda self, endpoint: _Direct(self, endpoint))
        runner.run(wait())


@pytest.mark.parametrize("detour", [False, True])
@pytest.mark.parametrize("maybe", [False, True])
def test_call_of_a_closed_client_is_in_doubt_if_an_attempt_was(maybe: bool, detour: bool) -> None:
    async def ask(*, waits: bool) -> None:
        world = World(0)
        world.courier._detours |= dict.fromkeys(NODES if detour else [], float("inf"))
        call = JsonCall("PUT", PATH, int, {}, world.loop.time() + 9, body={"a": 1})
        call.ambiguous = maybe
        if waits:
            world.router.endpoints[:] = NODES[:1]
            assert world.courier._turns.take(world.loop.time(), anywhere=False)
            asked = asyncio.ensure_future(world.courier.exchange(call))
            await asyncio.sleep(0)
            world.courier.close()
        else:
            world.closed = True
            asked = asyncio.ensure_future(world.courier.exchange(call))
        with fails(Code.CONFLICT, Outcome.UNKNOWN if maybe else Outcome.NOT_APPLIED):
            await asked
        assert not world.attempts

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(ask(waits=False))
        runner.run(ask(waits=True))


@pytest.mark.parametrize("too_late", [False, True])
@pytest.mark.parametrize("maybe", [False, True])
def test_call_that_ran_out_of_time_says_what_is_known_and_why(maybe: bool, too_late: bool) -> None:
    last = AttemptFailed(Code.QUOTA, "full", ambiguous=False, retry_after_ms=9)
    last.too_late = too_late
    told = at_deadline(last, ambiguous=maybe)
    assert type(told) is (OutcomeUnknown if maybe else DeadlineExceeded)
    assert told.outcome is (Outcome.UNKNOWN if maybe else Outcome.NOT_APPLIED)
    assert (told.code, told.retry_after_ms) == ((Code.QUOTA, 9) if too_late else (Code.TIMEOUT, None))
    assert "full" in told.detail
