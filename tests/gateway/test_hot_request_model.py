"""A hot request walked through its steps, whatever each comes to: one answer, and nothing is counted behind it.

Each step of an ordering may end at once, beside the loop, later, never by itself, with a refusal, a bug or the end of
the node. Whatever is drawn, the request is one of its sender's, and its large body is held, until its answer is told,
and neither at that moment any more: the connection may begin its next request there. What is counted, noted and traced
of it is what was told.
"""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import exchange as exchanges
from oncegate.gateway.http.admission import bodies as admission
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.desk import OperationRate, Usage
from oncegate.gateway.http.exchange import Exchange, Reply
from oncegate.gateway.http.hot import request as hot
from oncegate.gateway.http.hot.request import Fields, HotRequest
from oncegate.gateway.http.identity import Identity, Scope
from oncegate.gateway.machine.tenant_share import share
from oncegate.rifl.errors import Code, OncegateError

SMALL, HELD_MAX = 10, 200
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
REFUSAL = OncegateError(Code.CONFLICT, "drawn")
WRITTEN = b"HTTP/1.1 200 OK\r\nwritten: at once\r\n\r\n"


class Bug(RuntimeError):
    """What no handler means to raise."""


class Walk:
    """One request, what shares the node with it, and what its answer has to be."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dice = dice = random.Random(seed)
        monkeypatch.setattr(hot, "INLINE_BYTES_MAX", SMALL)
        monkeypatch.setattr(admission, "HELD_BYTES_MAX", HELD_MAX)
        self.size = dice.choice((0, SMALL, SMALL + 1, 30, 60))
        self.is_long, self.many_values = dice.random() < 0.5, dice.random() < 0.5
        monkeypatch.setattr(exchanges, "is_long", lambda answer, packed: self.is_long)
        self.unsound, self.needs_state = dice.random() < 0.15, dice.random() < 0.7
        self.others_hold = dice.choice((0, 0, 30, 60))
        self.bodies = BodyBudget(1, 1, 1)
        if self.others_hold:
            self.bodies.hold("t", self.others_hold)
        self.usage = Usage(OperationRate(5, 5) if dice.random() < 0.4 else None)
        self.usage.requests = 3
        self.told: list[bytes] = []
        self.observed: list[tuple[object, int]] = []
        self.noted: list[tuple[Any, ...]] = []
        self.traced: list[tuple[Any, ...]] = []
        self.aside: list[tuple[asyncio.Future[Any], Any]] = []
        self.steps: list[str] = []
        self.waiter: HotRequest | None = None
        self.end: Any = None
        """The status that is told, with the commit number; empty: nothing is, as the node stops."""
        machine = SimpleNamespace(commit=41, time_ms=7)
        node: Any = SimpleNamespace(machine=machine, leader_http="http://n2", check_sound=self.check_sound)
        fields = Fields({"x-request-id": "abc-1", "traceparent": TRACE} if dice.random() < 0.7 else {})
        self.has_fields = fields("traceparent") != []
        self.age_ms = dice.choice((None, None, 12))
        self.exchange = Exchange(
            node, Identity("n", "t", frozenset(Scope)), self.usage, fields, wire.JSON, False, set(), age_ms=self.age_ms
        )
        if seed % 2:
            self.exchange.usual = cast("Any", SimpleNamespace(written=self.written))
        read_at = self.exchange.commit = 33 if self.size % 2 else None
        self.refused_at = 41 if read_at is None else read_at
        """The commit number of the state that a refusal reflects: that of now, unless a read has noted another one."""
        shared: Any = SimpleNamespace(
            bodies=self.bodies,
            run=self.run,
            times=SimpleNamespace(observe=lambda route, status, seconds: self.observed.append((route, status))),
            access=SimpleNamespace(add=lambda *what, **who: self.noted.append((*what[:2], *who.values()))),
            spans=SimpleNamespace(request=lambda *what: self.traced.append((*what[:3], what[4]))),
        )
        if dice.random() < 0.3:
            shared.access = shared.spans = None
        self.shared = shared
        route = SimpleNamespace(needs_state=self.needs_state, method="PUT", path="/p", handler=object())
        self.found: Any = SimpleNamespace(route=route, make=self.make, names={"table": "t"})

    # --- what the request is given ----------------------------------------------------------------------------------

    def check_sound(self) -> None:
        assert self.needs_state
        self.steps.append("sound")
        if self.unsound:
            self.fail(OncegateError(Code.NOT_READY, "unsound"))

    def make(self, exchange: Exchange, names: Any) -> Any:
        assert (exchange, names) == (self.exchange, {"table": "t"})
        assert self.steps == (["sound"] if self.needs_state else []), "the state is looked at first"
        self.maybe_fails()
        return self

    def run(self, tenant: str, work: Any) -> asyncio.Future[Any]:
        assert tenant == "t"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.aside.append((future, work))
        return future

    def read(self, sent: bytes) -> None:
        assert sent == b"b" * self.size
        self.steps.append("read")
        self.maybe_fails()

    def read_at_once(self, sent: bytes) -> bool:
        assert len(sent) == self.size > SMALL
        self.check_held()
        self.maybe_fails()
        if self.dice.random() < 0.5:
            self.steps.append("read")
            return True
        return False

    def order(self, waiter: Any) -> None:
        assert self.steps[-1] == "read"
        self.steps.append("order")
        self.check_held()
        self.maybe_fails()
        assert not waiter.done()
        self.waiter = waiter

    def reply(self, answer: Answer, encoded: bytes | None) -> Reply | bytes:
        self.check_held()
        assert (encoded is not None) == (self.many_values and self.is_long)
        self.maybe_fails()
        return self.exchange.reply(answer, encoded=encoded)

    def written(self, answer: Answer, body: bytes, **_: Any) -> bytes:
        assert self.usage.bucket is None, "it says nothing of the rate"
        assert self.age_ms is None, "nor of the age"
        return WRITTEN

    def tell(self, answer: bytes) -> None:
        assert self.usage.requests == 2, "the next request of the connection may be counted"
        assert self.bodies.held_bytes == self.others_hold, "and its body held"
        self.told.append(answer)

    # --- the walk -----------------------------------------------------------------------------------------------------

    def fail(self, fault: Exception) -> None:
        refusal = fault if isinstance(fault, OncegateError) else OncegateError(Code.INTERNAL)
        self.end = (refusal.status, refusal.code.value, self.refused_at)
        raise fault

    def maybe_fails(self) -> None:
        if self.dice.random() < 0.12:
            self.fail(self.dice.choice((REFUSAL, Bug("drawn"))))

    def check_held(self) -> None:
        own = self.size if self.size > SMALL else 0
        assert self.bodies.held_bytes == self.others_hold + own
        assert self.usage.requests == 3

    def work_aside(self) -> None:
        future, work = self.aside.pop()
        if self.dice.random() < 0.1:
            future.cancel()
            self.end = ()
            return
        try:
            future.set_result(work())
        except Exception as fault:  # noqa: BLE001 - the request is told
            future.set_exception(fault)

    def answer(self) -> None:
        waiter, self.waiter = self.waiter, None
        assert waiter is not None
        how = self.dice.choice(("answer", "answer", "answer", "refusal", "stop"))
        if how == "answer":
            self.end = (200, "", 44)
            waiter.set_result(Answer({"v": 1}, 44, memory_ms=self.dice.choice((None, 9))))
        elif how == "refusal":
            self.end = (REFUSAL.status, REFUSAL.code.value, self.refused_at)
            waiter.set_exception(REFUSAL)
        else:
            self.end = ()
            waiter.set_exception(asyncio.CancelledError())

    async def walk(self) -> None:
        request = HotRequest(self.exchange, self.shared, self.tell)
        most = share("t", HELD_MAX, self.others_hold, self.others_hold)
        if self.size > SMALL and self.others_hold + self.size > most:
            self.end = (429, Code.OVERLOADED.value, self.refused_at)
        request.begin(self.found, b"b" * self.size)
        for _ in range(8):
            if self.told:
                break
            assert not request.done()
            if self.aside:
                self.work_aside()
            elif self.waiter is not None:
                self.answer()
            await asyncio.sleep(0)
        assert request.done()
        self.check(request)

    def check(self, request: HotRequest) -> None:
        assert len(self.told) == 1
        assert (self.usage.requests, self.bodies.held_bytes) == (2, self.others_hold)
        [told] = self.told
        if not self.end:
            assert told == b""
            assert (self.observed, self.noted, self.traced) == ([], [], []), "what is not told is not counted"
            return
        status, code, commit = self.end
        handler = self.found.route.handler
        assert self.observed == [(handler, status)]
        if self.shared.access is not None:
            [(route, seen, who, _, name)] = [(*one[:3], None, one[-1]) for one in self.noted]
            assert (route, seen, who) == (("PUT", "/p"), status, ("n", "t"))
            assert not self.has_fields or name == "abc-1"
            assert self.traced == [(TRACE if self.has_fields else "", ("PUT", "/p"), status, str(commit))]
        else:
            assert not self.noted
        if told == WRITTEN:
            assert (status, commit) == (200, 44)
            return
        head, _, body = told.decode().partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        named = dict(line.split(": ", 1) for line in lines)
        assert first.split()[1] == str(status)
        assert named[wire.H_COMMIT] == str(commit)
        assert named.get(wire.H_AGE_MS) == (None if self.age_ms is None else str(self.age_ms))
        assert ("RateLimit" in named) is (self.usage.bucket is not None)
        assert int(named["Content-Length"]) == len(body)
        assert json.loads(body).get("code", "") == code


@pytest.mark.parametrize("part", range(6))
async def test_request_ends_with_one_answer_at_which_nothing_of_it_is_counted_any_more_whatever_its_steps_come_to(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set[object]()
    for seed in range(60 * part, 60 * part + 60):
        walk = Walk(seed, monkeypatch)
        await walk.walk()
        seen.add(walk.end[0] if walk.end else None)
    assert seen == {None, 200, 409, 429, 500, 503}


async def test_what_is_told_to_a_request_that_has_ended_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        walk = Walk(seed, monkeypatch)
        request = HotRequest(walk.exchange, walk.shared, walk.tell)
        walk.found.route.needs_state = walk.needs_state = False
        walk.size = 0
        monkeypatch.setattr(walk, "maybe_fails", lambda: None)
        request.begin(walk.found, b"")
        waiter = cast("HotRequest", walk.waiter)
        walk.answer()
        if walk.aside:
            continue
        before = list(walk.told), list(walk.observed)
        waiter.set_exception(asyncio.CancelledError())
        waiter.set_exception(REFUSAL)
        assert (walk.told, walk.observed) == before
        assert walk.usage.requests == 2
