"""What becomes of commands that come back, or come from another node, in each state of the lead: tables over all cases.

A batch that a leader has not taken goes to the next one at once if another one is known, and else waits; never back to
who refused it. What may be in the log goes nowhere. What is sent on is asked first: has its caller gone, is it due?
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.attempts import Waiting
from oncegate.gateway.node.forwarding import Received
from oncegate.gateway.node.proposer import Proposer
from oncegate.gateway.node.refusals import unpacked
from oncegate.rifl.errors import Code, OncegateError, Outcome
from tests.gateway.test_proposer_model import Loop, Told, Walk

LEADS = ((True, "n1"), (False, "n1"), (False, "n2"), (False, "n3"), (False, None))
"""Whether n1, this node, may decide, and who is said to lead."""


class Noted:
    """A proposer of which the next steps are noted instead of taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = Loop()
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "get_running_loop", lambda: self.loop)
            self.walk = Walk(0, self.loop)
        self.proposer: Proposer = self.walk.proposer
        self.steps: list[tuple[Any, ...]] = []

    def note(self, name: str, owner: Any = None) -> None:
        vars(owner or self.proposer)[name] = lambda *args: self.steps.append((name, *args))

    def lead(self, leads: bool, leader: str | None) -> None:
        self.walk.leadership.leads, self.walk.leadership.leader_id = leads, leader
        self.steps.clear()

    def waiting(self, number: int, due_s: float = 0.0) -> Waiting:
        waiting = Waiting(c.OpenSession(str(number), 60_000, 64), 10 + number, Told())
        waiting.due_s = due_s
        return waiting

    def ordered(self, due_s: float = 0.0) -> Waiting:
        """Return a command that counts as in flight."""
        waiting = self.waiting(1, due_s)
        self.proposer.inflight_commands += 1
        self.proposer.inflight_bytes += waiting.size
        return waiting


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


def test_what_was_refused_goes_on_only_if_it_is_in_no_log_and_to_nobody_who_refused_it(noted: Noted) -> None:
    for name in ("fail", "send_on"):
        noted.note(name)
    noted.note("hold", noted.proposer._between)
    for code, outcome, who, (leads, leader) in itertools.product(Code, Outcome, ("n1", "n2", "n3"), LEADS):
        noted.lead(leads, leader)
        batch, refusal = [noted.waiting(1)], OncegateError(code, outcome=outcome)
        noted.proposer.refused(who, batch, refusal)
        is_led = code in (Code.NOT_LEADER, Code.NO_LEADER, Code.NOT_READY) and outcome is Outcome.NOT_APPLIED
        if not is_led:
            assert noted.steps == [("fail", batch, refusal)], (code, outcome)
        elif leads or leader not in (who, None):
            assert noted.steps == [("send_on", batch)], (who, leads, leader)
        else:
            assert noted.steps == [("hold", batch, refusal)], (who, leads, leader)


def test_what_is_held_is_sent_on_as_soon_as_somebody_leads_who_may_take_it(noted: Noted) -> None:
    noted.note("led", noted.proposer._between)
    noted.note("lead_changed", noted.proposer._forwarding)
    for leads, leader in LEADS:
        noted.lead(leads, leader)
        noted.proposer.led()
        somebody = leads or leader in ("n2", "n3")
        assert noted.steps == [("lead_changed",), *[("led",)] * somebody], (leads, leader)
        for who in ("n1", "n2", "n3"):
            noted.lead(leads, leader)
            noted.proposer.taken(who)
            assert noted.steps == [("led",)] * (who == leader), (who, leader)


def test_what_is_sent_on_is_what_somebody_waits_for_and_is_not_due(noted: Noted) -> None:
    proposer, now_s = noted.proposer, noted.loop.now_s
    noted.note("_send")
    for dues in itertools.product((now_s - 1, now_s, now_s + 0.5, now_s + 2, None), repeat=3):
        noted.lead(True, "n1")
        proposer.close()
        batch = [noted.ordered(now_s + 1 if due_s is None else due_s) for due_s in dues]
        for one, due_s in zip(batch, dues, strict=True):
            one.waiter.gone = due_s is None  # type: ignore[attr-defined]
        proposer.send_on(batch)
        left = [one for one, due_s in zip(batch, dues, strict=True) if due_s is not None and due_s > now_s]
        assert noted.steps == ([("_send", left)] if left else [])
        assert proposer._sweep.at == min((one.due_s for one in left), default=float("inf"))
        assert proposer.inflight_commands == len(left), "the others count no more"
        assert proposer.inflight_bytes == sum(one.size for one in left)
        for one, due_s in zip(batch, dues, strict=True):
            ends = one.waiter.ends  # type: ignore[attr-defined]
            is_late = due_s is not None and due_s <= now_s
            assert [(end.code, end.outcome) for end in ends] == [(Code.TIMEOUT, Outcome.NOT_APPLIED)] * is_late
        proposer.release(left)


def test_a_stall_refuses_what_waits_and_its_end_does_not(noted: Noted) -> None:
    for why, count in itertools.product(("", "it stands"), (0, 1, 3)):
        batch = [noted.ordered() for _ in range(count)]
        noted.proposer._waiting, noted.proposer._waiting_bytes = list(batch), 11 * count
        noted.proposer.stall(why)
        left = batch if not why else []
        assert noted.proposer._waiting == left
        assert noted.proposer._waiting_bytes == noted.proposer.inflight_bytes == 11 * len(left)
        for one in batch:
            ends = one.waiter.ends  # type: ignore[attr-defined]
            assert [(end.code, end.detail, end.outcome) for end in ends] == (
                [(Code.NOT_READY, why, Outcome.NOT_APPLIED)] if why else []
            )
        noted.proposer.release(left)


@pytest.mark.parametrize(("leads", "leader"), LEADS)
def test_what_another_node_forwards_is_ordered_where_it_may_be_and_sent_back_elsewhere(
    leads: bool, leader: str | None, noted: Noted
) -> None:
    """Also one command by one, where the bounds take some of them only."""
    noted.lead(leads, leader)
    told, taken = list[bytes](), list[Waiting]()

    def order(waiting: Waiting) -> None:
        if len(taken) == 2:
            raise OncegateError(Code.OVERLOADED, "full", retry_after_ms=7)
        taken.append(waiting)

    vars(noted.proposer)["order"] = order
    payload = c.encode_commands([c.OpenSession(str(number), 60_000, 64) for number in range(3)])
    noted.proposer.serve_forwarded(payload, told.append)
    is_here = leads or leader == "n1"
    assert len(taken) == (2 if is_here else 0)
    for one in taken:
        assert not told, "all answers of a frame travel together"
        one.refuse(OncegateError(Code.QUOTA))
    noted.loop.settle()
    (answers,) = told
    refusals = [unpacked(one.refusal) for one in msgspec.msgpack.decode(answers, type=list[Received]) if one.refusal]
    expected = [Code.QUOTA, Code.QUOTA, Code.OVERLOADED] if is_here else [Code.NOT_LEADER] * 3
    assert [one.code for one in refusals] == expected
    assert {one.outcome for one in refusals} == {Outcome.NOT_APPLIED}
