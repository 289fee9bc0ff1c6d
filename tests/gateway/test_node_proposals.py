"""Commands that wait at one tick share an entry and nothing else: what befalls one befalls no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.consensus import errors as ce
from oncegate.consensus.ports import Role, RoleChange
from oncegate.gateway.answers import Answer, answer
from oncegate.gateway.http.server import running
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import ordering
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.ordering import leaves_now
from oncegate.gateway.machine.results import Operated
from oncegate.gateway.node import proposer
from oncegate.gateway.node.attempts import Waiting, hand_on
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.rifl import lease
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.rule import Refusal, Rejected
from tests.gateway.http_contract import assert_problem, founded, one_node, serving


@pytest.fixture
async def node(files: Settings) -> AsyncIterator[Node]:
    """A node that leads, with the table ``rows`` and session 1."""
    async with running(files) as started:
        await founded(started)
        await started.submit(c.DeclareTable("rows", "resident", 2**30), 64)
        await started.submit(c.OpenSession("n", 60_000, 512), 64)
        yield started


def _put(first: int, count: int, value: bytes) -> c.Operate:
    keys = [f"k{i}" for i in range(first, first + count)]
    ops = [c.Op(first + i, 1, "rows", key, c.fingerprint_put("rows", key, value), value) for i, key in enumerate(keys)]
    return c.Operate(1, 1, 1, ops)


async def _settle(*futures: asyncio.Future[Any]) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*futures, return_exceptions=True)


async def test_commands_of_one_tick_share_an_entry(node: Node) -> None:
    before = node.proposer.entries
    answers = await _settle(*(node.submit(_put(i, 1, b"1"), 64) for i in range(1, 101)))
    assert [each.body.results[0].commit for each in answers] == list(range(1, 101))
    assert node.proposer.entries == before + 1
    assert node.proposer.inflight_commands == node.proposer.inflight_bytes == 0


def test_only_what_is_small_waits_and_only_while_something_is_under_way() -> None:
    small, large = ordering.SMALL_BYTES - 1, ordering.SMALL_BYTES
    assert [leaves_now(small, 0), leaves_now(large, 0), leaves_now(1, 0)] == [True] * 3
    assert [leaves_now(small, 1), leaves_now(small, 9), leaves_now(large, 1), leaves_now(large, 9)] == [
        *(False, False, True, True)
    ]


class Log:
    """Stands where the replica stands: the entries that were proposed, and when each is applied."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[tuple[list[int], asyncio.Future[Any]]] = []
        monkeypatch.setattr(node.replica, "propose", self._proposed)

    def _proposed(self, entry: bytes) -> asyncio.Future[Any]:
        firsts = [one.ops[0].sequence for one in c.decode_entry(entry).commands if isinstance(one, c.Operate)]
        held: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.entries.append((firsts, held))
        return held

    @property
    def firsts(self) -> list[list[int]]:
        """The first sequence number of each command, by entry."""
        return [firsts for firsts, _ in self.entries if firsts]

    def end(self, at: int, fault: Exception | None = None) -> None:
        """Bring an entry to its end."""
        firsts, held = [entry for entry in self.entries if entry[0]][at]
        if fault is None:
            held.set_result([Operated([Rejected(first, Refusal.FENCED)], 0) for first in firsts])
        else:
            held.set_exception(fault)


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def held(node: Node, monkeypatch: pytest.MonkeyPatch) -> Log:
    """The entries of a node that orders nothing of its own."""
    node._housekeep_in(3_600_000)
    await _turns()
    return Log(node, monkeypatch)


async def test_small_commands_wait_for_the_entry_under_way_and_share_the_next_one(node: Node, held: Log) -> None:
    futures = [node.submit(_put(1, 1, b"1"), 64)]
    await _turns()
    for number in range(2, 6):
        futures.append(node.submit(_put(number, 1, b"1"), 64))
        await _turns()
    assert held.firsts == [[1]]
    held.end(0)
    await _turns()
    assert held.firsts == [[1], [2, 3, 4, 5]]
    held.end(1)
    await _settle(*futures)
    assert node.proposer.inflight_commands == node.proposer.inflight_bytes == 0


async def test_large_command_takes_those_that_wait_along_at_once(node: Node, held: Log) -> None:
    futures = [node.submit(_put(1, 1, b"1"), 64)]
    await _turns()
    futures.append(node.submit(_put(2, 1, b"1"), 64))
    await _turns()
    futures.append(node.submit(_put(3, 1, b"1"), ordering.SMALL_BYTES))
    await _turns()
    assert held.firsts == [[1], [2, 3]]
    futures.append(node.submit(_put(4, 1, b"1"), 64))
    held.end(0)
    await _turns()
    assert held.firsts == [[1], [2, 3]], "one is under way still"
    held.end(1)
    await _turns()
    assert held.firsts == [[1], [2, 3], [4]]
    held.end(2)
    await _settle(*futures)


async def test_what_waits_when_the_lead_is_lost_goes_to_the_next_leader(
    node: Node, held: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(node.replica, "ask", lambda leader, *_, **__: asked.append(leader) or 1)
    first = node.submit(_put(1, 1, b"1"), 64)
    await _turns()
    second = node.submit(_put(2, 1, b"1"), 64)
    await _turns()
    _becomes(node, Role.FOLLOWER, ready=False)
    await _turns()
    assert (asked, second.done()) == (["n2"], False), "nobody has got it yet: it is sent on, not refused"
    held.end(0, ce.LeadershipLost("lost"))
    (lost,) = await _settle(first)
    assert (lost.code, lost.outcome) == (Code.TIMEOUT, Outcome.UNKNOWN)


async def test_entry_that_was_given_up_holds_up_nothing_once_the_node_leads_again(node: Node, held: Log) -> None:
    first = node.submit(_put(1, 1, b"1"), 64)
    await _turns()
    _becomes(node, Role.FOLLOWER, ready=False)
    held.end(0, ce.LeadershipLost("lost"))
    await _settle(first)
    _becomes(node, Role.LEADER, ready=True)
    second = node.submit(_put(2, 1, b"1"), 64)
    await _turns()
    assert held.firsts == [[1], [2]], "it waits for an entry that has come to its end"
    held.end(1)
    await _settle(second)


async def test_commands_that_wait_share_entries_up_to_the_bound_also_behind_the_first(
    node: Node, held: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.proposer, "_entry_bytes_max", 200)
    futures = [node.submit(_put(number, 1, b"1"), 64) for number in range(1, 9)]
    await _turns()
    assert held.firsts == [[1, 2, 3], [4, 5, 6], [7, 8]]
    for at in range(3):
        held.end(at)
    await _settle(*futures)


async def test_command_that_is_in_doubt_is_not_sent_again(node: Node, held: Log) -> None:
    """Whatever its code: that nothing was proposed is what the outcome says."""
    future = asyncio.get_running_loop().create_future()
    doubt = OncegateError(Code.NOT_READY, "damaged meanwhile", outcome=Outcome.UNKNOWN, retry_after_ms=20)
    node.proposer.inflight_commands, node.proposer.inflight_bytes = 1, 64
    node.proposer.refused("n1", [Waiting(_put(1, 1, b"1"), 64, future)], doubt)
    await _turns()
    assert held.firsts == []
    (told,) = await _settle(future)
    assert told.outcome is Outcome.UNKNOWN


async def test_puts_are_ordered_in_columns(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered: list[bytes] = []
    propose = node.replica.propose
    monkeypatch.setattr(node.replica, "propose", lambda entry: (ordered.append(entry), propose(entry))[1])
    (answered,) = await _settle(node.submit(_put(1, 6, b"1"), 400))
    ((command,),) = [c.decode_entry(entry).commands for entry in ordered]
    assert [type(part) for part in command.parts] == [c.Puts]
    assert command.ops == _put(1, 6, b"1").ops
    assert [(one.sequence, one.commit, one.replayed) for one in answered.body.results] == [
        (number, number, False) for number in range(1, 7)
    ]


async def test_command_too_large_for_the_log_is_refused_alone(node: Node) -> None:
    value = b'"' + b"x" * 250_000 + b'"'
    small, large, after = await _settle(
        node.submit(_put(1, 1, b"1"), 64),
        node.submit(_put(2, 40, value), 1_000),  # ten megabytes that came as less: escapes grow in canonical form
        node.submit(_put(100, 1, b"1"), 64),
    )
    assert small.body.results[0].status == after.body.results[0].status == "applied"
    assert isinstance(large, OncegateError)
    assert (large.code, large.outcome) == (Code.PAYLOAD_TOO_LARGE, "not_applied")
    assert node.machine.commit == 2
    assert node.proposer.inflight_commands == node.proposer.inflight_bytes == 0


async def test_large_command_takes_no_small_one_over_the_bound(node: Node) -> None:
    value = b'"' + b"x" * 250_000 + b'"'
    submitted = [node.submit(_put(1 + 8 * i, 7, value), 7 * 250_000) for i in range(3)]
    submitted.append(node.submit(_put(40, 31, value), 31 * 250_000))
    submitted.append(node.submit(_put(100, 1, b"1"), 64))
    for done in await _settle(*submitted):
        assert {result.status for result in done.body.results} == {"applied"}


async def test_answer_that_cannot_be_made_leaves_nobody_else_waiting(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(command: c.Command, *rest: Any) -> Any:
        if isinstance(command, c.Operate) and command.ops[0].sequence == 1:
            raise TypeError("a bug")
        return answer(command, *rest)

    monkeypatch.setattr("oncegate.gateway.node.proposer.answer", broken)
    first, second = await _settle(node.submit(_put(1, 1, b"1"), 64), node.submit(_put(2, 1, b"1"), 64))
    assert isinstance(first, OncegateError)
    assert first.code is Code.INTERNAL
    assert second.body.results[0].status == "applied"


class Told:
    """A waiter that is no future: notes its end in a list that it shares."""

    def __init__(self, name: str, told: list[Any]) -> None:
        self._name = name
        self._told = told

    def done(self) -> bool:
        return False

    def set_result(self, answer: Answer) -> None:
        self._told.append((self._name, answer.body.results[0].status))
        asyncio.get_running_loop().call_soon(self._told.append, f"the turn after {self._name}")

    def set_exception(self, fault: BaseException) -> None:
        self._told.append((self._name, fault))


class Deaf(Told):
    """A waiter that fails at its end, whatever that is."""

    def set_result(self, answer: Answer) -> None:
        raise OSError("a bug")

    def set_exception(self, fault: BaseException) -> None:
        raise OSError("a bug")


async def test_waiter_that_cannot_take_its_answer_leaves_nobody_else_waiting(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def uncounted(*entry: Any) -> None:
        raise OSError("no room for a trace")

    monkeypatch.setattr(node.proposer, "on_logged", uncounted)
    for number in (1, 2):
        node.attempt(_put(number, 1, b"1"), 64, Deaf("", []), lambda: None)
    (behind,) = await _settle(node.submit(_put(3, 1, b"1"), 64))
    assert behind.body.results[0].status == "applied"
    assert [_noted(node, sequence) for sequence in (1, 2)] == [["answered"]] * 2
    assert node.proposer.inflight_commands == node.proposer.inflight_bytes == 0
    assert [record.message for record in caplog.records if record.exc_info] == [
        "an entry could not be counted",
        *["a waiter could not be told its end"] * 2,
    ]


async def test_waiter_that_cannot_take_its_refusal_leaves_nobody_else_waiting(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(entry: bytes) -> Any:
        raise ce.Overloaded("journal_room_bytes", 1)

    monkeypatch.setattr(node.replica, "propose", refuses)
    node.attempt(_put(1, 1, b"1"), 64, Deaf("", []), lambda: None)
    (behind,) = await _settle(node.submit(_put(2, 1, b"1"), 64))
    assert behind.code is Code.OVERLOADED
    assert node.proposer.inflight_commands == node.proposer.inflight_bytes == 0


async def test_attempt_whose_end_cannot_be_noted_is_told_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*end: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(node.explainer.attempts, "ended", full)
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.attempt(_put(1, 1, b"1"), 64, answered, lambda: None)
    (told,) = await _settle(answered)
    assert told.body.results[0].status == "applied"


async def test_those_who_wait_for_one_entry_are_told_in_the_turn_in_which_it_is_applied(node: Node) -> None:
    told: list[Any] = []
    for number, name in enumerate("abc", 1):
        node.attempt(_put(number, 1, b"1"), 64, Told(name, told), lambda name=name: told.append(f"end of {name}"))
    assert not told
    async with asyncio.timeout(60):
        while "the turn after c" not in told:
            await asyncio.sleep(0)
    ends = [one for name in "abc" for one in (f"end of {name}", (name, "applied"))]
    assert told == [*ends, *[f"the turn after {name}" for name in "abc"]]


def _noted(node: Node, sequence: int) -> list[str]:
    return [attempt.ended for attempt in node.explainer.attempts.of(1, frozenset((sequence,)))]


async def test_end_of_each_attempt_is_noted_and_told_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str] = []
    hung_up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.attempt(_put(1, 1, b"1"), 64, answered, lambda: ends.append("answered"))
    node.attempt(_put(2, 1, b"1"), 64, hung_up, lambda: ends.append("hung up"))
    hung_up.cancel()
    await _settle(answered)
    monkeypatch.setattr(proposer, "INFLIGHT_COMMANDS_MAX", 0)
    with pytest.raises(OncegateError):
        node.attempt(_put(3, 1, b"1"), 64, answered, lambda: ends.append("never under way"))
    assert ends == ["answered", "hung up"]
    assert [_noted(node, sequence) for sequence in (1, 2, 3)] == [["answered"], ["given up"], ["OVERLOADED"]]


async def test_end_of_an_operation_that_is_watched_is_told_to_nobody_who_has_hung_up() -> None:
    loop, answered = asyncio.get_running_loop(), Answer(None, 1)
    for end in ("result", "refusal", "cancelled"):
        done, hung_up, waits = loop.create_future(), loop.create_future(), loop.create_future()
        hung_up.cancel()
        if end == "result":
            done.set_result(answered)
        elif end == "refusal":
            done.set_exception(OncegateError(Code.QUOTA))
        else:
            done.cancel()
        for waiter in (hung_up, waits):
            hand_on(Waiting(_put(1, 1, b"1"), 64, waiter), done)
        assert hung_up.cancelled()
        (told,) = await _settle(waits)
        assert told is answered if end == "result" else isinstance(told, OncegateError | asyncio.CancelledError)


async def test_bound_of_what_is_in_flight_refuses_before_anything_is_proposed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposer, "INFLIGHT_COMMANDS_MAX", 3)
    accepted = [node.submit(_put(i, 1, b"1"), 64) for i in range(1, 4)]
    with pytest.raises(OncegateError) as refused:
        node.submit(_put(9, 1, b"1"), 64)
    assert (refused.value.code, refused.value.outcome) == (Code.OVERLOADED, "not_applied")
    assert refused.value.retry_after_ms is not None
    assert len(await _settle(*accepted)) == 3
    monkeypatch.setattr(proposer, "INFLIGHT_BYTES_MAX", 100)
    with pytest.raises(OncegateError):
        node.submit(_put(9, 1, b"1"), 101)
    assert node.machine.commit == 3


async def test_node_that_follows_forgets_sessions_that_are_gone(node: Node) -> None:
    """Only the leader reaps, but everybody keeps a queue of leases: a follower's must not grow for ever."""
    await _settle(*(node.submit(c.OpenSession(f"short{i}", 1_000, 8), 64) for i in range(50)))
    sessions = node.machine.sessions
    node.leadership.leads = False  # as after a change of leader; nothing is proposed here any more
    for client_id in range(2, 52):
        apply(node.machine, 0, 1, c.encode_entry(0, [c.CloseSession(client_id, 1)]))
    assert (len(sessions), sessions.filed) == (1, 51)
    apply(node.machine, 0, 1, c.encode_entry(5_000, []))
    async with asyncio.timeout(60):
        while sessions.filed > 1:
            await asyncio.sleep(0.01)
    assert [session.client_id for session in sessions] == [1]


async def test_setting_bounds_the_sessions_and_live_ones_go_on(tmp_path: Path) -> None:
    """Case 34, over HTTP: the bound travels in the entry, so that every replica refuses the same one."""
    async with serving(one_node(tmp_path, sessions_max=2)) as (api, node):
        opened = [await api.call("POST", "/v1/sessions", {"nonce": nonce}) for nonce in "ab"]
        before = (await api.call("GET", "/v1/cluster"))[2]["log_index"]
        assert_problem(await api.call("POST", "/v1/sessions", {"nonce": "c"}), "QUOTA")
        assert (await api.call("GET", "/v1/cluster"))[2]["log_index"] == before
        opened.append(await api.call("POST", "/v1/sessions", {"nonce": "a"}))
        assert [status for status, _, _ in opened] == [201, 201, 200]
        await node.submit(c.DeclareTable("rows", "resident", 2**30), 64)
        (answered,) = await _settle(node.submit(_put(1, 1, b"1"), 64))
        assert answered.body.results[0].status == "applied"


async def test_leader_that_has_not_caught_up_decides_nothing_about_duplicates(node: Node) -> None:
    """Case 24: until the first entry of its term is applied it does not know what its predecessor has done."""
    (first,) = await _settle(node.submit(_put(1, 1, b"1"), 64))
    _becomes(node, Role.LEADER, ready=False)
    (refused,) = await _settle(node.submit(_put(1, 1, b"1"), 64))
    assert isinstance(refused, OncegateError)
    assert (refused.code, refused.outcome, refused.retryable) == (Code.NOT_READY, Outcome.NOT_APPLIED, True)
    _becomes(node, Role.LEADER, ready=True)
    (again,) = await _settle(node.submit(_put(1, 1, b"1"), 64))
    assert again.body.results[0].replayed
    assert again.body.results[0].commit == first.body.results[0].commit


def _wakes_in_s(node: Node) -> float:
    assert node._timer is not None
    return node._timer.when() - asyncio.get_running_loop().time()


def _becomes(node: Node, role: Role, *, ready: bool) -> None:
    leader_id = "n1" if role is Role.LEADER else "n2"
    node._role(RoleChange(role=role, leader_id=leader_id, term=node.replica.status().term, ready=ready))


async def test_follower_wakes_up_for_housework_once_a_second_and_a_new_leader_at_once(node: Node) -> None:
    _becomes(node, Role.FOLLOWER, ready=False)
    node._housekeep()
    assert _wakes_in_s(node) > 0.9
    _becomes(node, Role.LEADER, ready=True)
    assert _wakes_in_s(node) < 0.1


async def test_follower_that_has_more_sessions_to_forget_than_one_look_takes_goes_on_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LOOKS_MAX", 1)
    monkeypatch.setattr(lease, "GONE_KEPT", 0)
    sessions = node.machine.sessions
    for nonce in ("a", "b"):
        session, _ = sessions.open(nonce, 60_000, 64, 0)
        sessions.close(session.client_id)
    _becomes(node, Role.FOLLOWER, ready=False)
    node._housekeep()
    assert _wakes_in_s(node) < 0.1
    node._housekeep()
    assert _wakes_in_s(node) > 0.9
