"""Calls between nodes: deadlines without a timer for each call, and those that are served without a task."""

from __future__ import annotations

import asyncio

from oncegate.consensus.errors import CallFailed, PeerUnavailable, Timeout
from oncegate.consensus.messages import CallReply, CallRequest
from oncegate.consensus.net.calls import Calls


def calls_to_anyone(**parts):
    return Calls(lambda node_id, message: True, None, 100, **parts)


async def test_calls_of_one_patience_share_a_timer(monkeypatch):
    loop, calls, came = asyncio.get_running_loop(), calls_to_anyone(), []
    made, call_at = [], loop.call_at
    monkeypatch.setattr(loop, "call_at", lambda *args, **kwargs: (made.append(args), call_at(*args, **kwargs))[1])
    for _ in range(100):
        calls.replied("n2", CallReply(calls.ask("n2", b"question", 5.0, came.append), b"answer", None))
    assert (came, len(made), calls._open) == ([b"answer"] * 100, 1, {})
    await calls.stop()


async def test_each_call_ends_at_its_own_deadline_whatever_others_wait_for():
    calls, ended = calls_to_anyone(), {}
    for name, timeout_s in (("later", 60.0), ("first", 0.0), ("last", 3600.0), ("second", 0.0)):
        calls.ask("n2", b"question", timeout_s, lambda came, name=name: ended.update({name: came}))
    async with asyncio.timeout(60):
        while len(ended) < 2:
            await asyncio.sleep(0)
    assert {name: (type(came), came.outcome) for name, came in ended.items()} == {
        "first": (Timeout, "unknown"),
        "second": (Timeout, "unknown"),
    }
    assert calls._timer is not None
    assert calls._timer.when() == min(call.due_s for call in calls._open.values())
    calls.replied("n2", CallReply(1, None, "no"))
    assert isinstance(ended["later"], CallFailed)
    await calls.stop()
    assert isinstance(ended["last"], PeerUnavailable)


async def test_answer_to_a_call_that_was_given_up_is_dropped():
    calls, came = calls_to_anyone(), []
    number = calls.ask("n2", b"question", 5.0, came.append)
    calls.give_up(number)
    calls.replied("n2", CallReply(number, b"late", None))
    await calls.stop()
    assert came == []


async def test_one_that_asks_again_while_its_peer_goes_away_is_not_answered_for_that():
    calls, came = calls_to_anyone(), []
    calls.ask("n2", b"question", 5.0, lambda lost: calls.ask("n2", b"again", 5.0, came.append))
    calls.peer_down("n2")
    assert came == []
    assert [call.node_id for call in calls._open.values()] == ["n2"]
    await calls.stop()


async def test_call_served_at_once_has_no_task_and_is_answered_whatever_comes_of_it():
    def at_once(payload, tell):
        if payload == b"a bug":
            raise ValueError("a bug")
        tell(b"." * int(payload))
        return True

    calls, said = calls_to_anyone(at_once=at_once), []
    for number, payload in enumerate((b"3", b"101", b"a bug")):
        calls.requested("n2", CallRequest(number, payload), said.append)
    assert not calls._serving
    assert said == [
        CallReply(0, b"...", None),
        CallReply(1, None, "the answer is larger than a frame"),
        CallReply(2, None, "ValueError: a bug"),
    ]
