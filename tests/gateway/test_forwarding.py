"""Commands that a follower forwards: what travels in a frame, and what becomes of it when the leader changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from oncegate.consensus import errors as ce
from oncegate.consensus.net.calls import Answered
from oncegate.consensus.ports import Role, RoleChange
from oncegate.gateway import answer_values, wire
from oncegate.gateway.answer_values import MSGPACK
from oncegate.gateway.answers import Answer
from oncegate.gateway.http.server import running
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node import between_leaders, forwarding
from oncegate.gateway.node.attempts import Waiting
from oncegate.gateway.node.forwarding import FRAMES_MAX, PROPOSE, Relayed
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import Code, OncegateError, Outcome
from tests.gateway.http_contract import founded

_SENT = bytes.fromhex(
    "709298a16f090101919ba16f0101a174a16b07c401310000c0c0a161a0c297a2736fa16ecdea6040a0ce001e8480ce001e8480"
)
_ANSWERED = bytes.fromhex(
    "929582a7726573756c74739185a873657175656e636501a6737461747573a76170706c696564a6636f6d6d697405a776657273696f6e05"
    "a87265706c61796564c2a96d656d6f72795f6d73cdea6005c2c0cdea6095c000c294a551554f5441a466756c6cc0ab6e6f745f6170706c"
    "696564c0"
)
"""What builds of protocol version 3 send and answer."""


class Peers:
    """Stands where the network stands: the frames that a node has sent, and who waits for their answers."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, list[str], Answered]] = []
        self.unreachable: set[str] = set()
        monkeypatch.setattr(node.replica, "ask", self._ask)

    def _ask(self, leader: str, payload: bytes, *, timeout_s: float, answered: Answered) -> int:
        if leader in self.unreachable:
            raise ce.PeerUnavailable(leader, "not connected", outcome="not_applied")
        assert payload[:1] == PROPOSE
        nonces = [command.nonce for command in c.decode_commands(payload[1:]) if isinstance(command, c.OpenSession)]
        self.sent.append((leader, nonces, answered))
        return len(self.sent)

    @property
    def frames(self) -> list[tuple[str, list[str]]]:
        """To whom, and what."""
        return [(leader, nonces) for leader, nonces, _ in self.sent]

    def answer(self, at: int, *answers: Relayed) -> None:
        """Answer a frame; by default, every command of it."""
        _, nonces, answered = self.sent[at]
        body = wire.SessionOpened("1", 1, 60_000, 64)
        answered(MSGPACK.encode(answers or [Relayed(body, 1)] * len(nonces)))


def _follows(node: Node, leader_id: str | None) -> None:
    term = node.replica.status().term
    node._role(RoleChange(role=Role.FOLLOWER, leader_id=leader_id, term=term, ready=False))


async def _submit(node: Node, *nonces: str) -> list[asyncio.Future[Any]]:
    """Submit commands in one turn of the loop, and let them leave."""
    futures = [node.submit(c.OpenSession(nonce, 60_000, 64), 64) for nonce in nonces]
    await asyncio.sleep(0)
    return futures


async def _refusal(future: asyncio.Future[Any]) -> OncegateError:
    with pytest.raises(OncegateError) as refused:
        async with asyncio.timeout(60):
            await future
    return refused.value


@asynccontextmanager
async def _following(files: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Node, Peers]]:
    """A node that follows n2, and what it sends to its peers."""
    async with running(files) as node:
        await founded(node)
        peers = Peers(node, monkeypatch)
        _follows(node, "n2")
        yield node, peers


def _nothing_is_left(node: Node) -> bool:
    return node.proposer.inflight_commands == node.proposer.inflight_bytes == len(_under_way(node)) == 0


def _under_way(node: Node) -> list[Any]:
    return node.proposer._forwarding.under_way


async def test_commands_that_come_while_frames_are_under_way_share_the_next_one(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _following(files, monkeypatch) as (node, peers):
        first = await _submit(node, "a", "b")
        assert peers.frames == [("n2", ["a", "b"])], "one turn of the loop, one frame, and nothing to wait for"
        futures = [*first]
        for nonce in "cdefg":
            futures += await _submit(node, nonce)
        assert len(peers.frames) == FRAMES_MAX
        peers.answer(0)
        assert peers.frames[FRAMES_MAX:] == [("n2", list("cdefg")[FRAMES_MAX - 1 :])]
        for at in range(1, len(peers.frames)):
            peers.answer(at)
        assert [future.result().commit for future in futures] == [1] * 7
        assert _nothing_is_left(node)


async def test_frame_has_a_bound_of_bytes_and_a_larger_command_a_frame_of_its_own(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _following(files, monkeypatch) as (node, peers):
        await _submit(node, "under way")
        await _submit(node, "too")
        futures = [
            node.submit(c.OpenSession(nonce, 60_000, 64), size)
            for nonce, size in (("a", 2**20), ("b", 2**20), ("c", 1), ("d", 3 * 2**20), ("e", 1))
        ]
        await asyncio.sleep(0)
        for at in range(5):
            peers.answer(at)
        assert [nonces for _, nonces in peers.frames[FRAMES_MAX:]] == [["a", "b"], ["c"], ["d"], ["e"]][
            : 5 - FRAMES_MAX + 1
        ]
        peers.answer(5)
        assert all(future.done() for future in futures)
        assert _nothing_is_left(node)


async def test_what_waits_for_a_frame_when_the_leader_changes_goes_to_the_next_one(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _following(files, monkeypatch) as (node, peers):
        for nonce in "abc"[:FRAMES_MAX]:
            await _submit(node, nonce)
        (waits,) = await _submit(node, "waits")
        _follows(node, "n3")
        assert peers.frames[FRAMES_MAX:] == [("n3", ["waits"])]
        peers.answer(FRAMES_MAX)
        assert waits.result().commit == 1
        for at in range(FRAMES_MAX):
            peers.answer(at)
        assert _nothing_is_left(node)


async def test_what_is_due_when_the_leader_changes_goes_to_nobody(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _following(files, monkeypatch) as (node, peers):
        sent = [future for nonce in "abc"[:FRAMES_MAX] for future in await _submit(node, nonce)]
        late, waits = await _submit(node, "late", "waits")
        node.proposer._forwarding._waiting[0].due_s = asyncio.get_running_loop().time()
        _follows(node, "n3")
        assert peers.frames[FRAMES_MAX:] == [("n3", ["waits"])]
        refusal = await _refusal(late)
        assert (refusal.code, refusal.outcome) == (Code.TIMEOUT, Outcome.NOT_APPLIED)
        assert not waits.done()
        for at in range(FRAMES_MAX + 1):
            peers.answer(at)
        await asyncio.gather(*sent, waits, return_exceptions=True)
        assert _nothing_is_left(node)


async def test_what_waits_behind_frames_that_were_given_up_is_due_at_its_own_time(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _following(files, monkeypatch) as (node, _):
        futures = [future for nonce in "abc"[:FRAMES_MAX] for future in await _submit(node, nonce)]
        futures += await _submit(node, "waits", "waits longer")
        behind = node.proposer._forwarding
        now_s = asyncio.get_running_loop().time()
        for frame in behind.under_way:
            frame.batch[0].due_s = now_s
        first, second = behind._waiting
        first.due_s, second.due_s = now_s + 60, now_s + 70
        assert behind.end_overdue(now_s) == now_s + 60
        assert behind.end_overdue(now_s + 60) == now_s + 70
        behind.end_overdue(now_s + 70)
        await asyncio.gather(*futures, return_exceptions=True)


async def test_what_waits_behind_a_connection_that_is_lost_was_not_applied(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_leaders, "HOLD_MS", 0)
    async with _following(files, monkeypatch) as (node, peers):
        sent = [(await _submit(node, nonce))[0] for nonce in "abc"[:FRAMES_MAX]]
        (waits,) = await _submit(node, "waits")
        peers.unreachable.add("n2")
        for _, _, answered in list(peers.sent):
            answered(ce.PeerUnavailable("n2", "the connection was lost", outcome="unknown"))
        assert [(await _refusal(future)).outcome for future in sent] == [Outcome.UNKNOWN] * FRAMES_MAX
        refused = await _refusal(waits)
        assert (refused.code, refused.outcome) == (Code.NO_LEADER, Outcome.NOT_APPLIED)
        assert _nothing_is_left(node)


async def test_leader_that_does_not_answer_in_time_leaves_its_commands_unknown_and_those_behind_not_applied(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _following(files, monkeypatch) as (node, peers):
        sent = [(await _submit(node, nonce))[0] for nonce in "abc"[:FRAMES_MAX]]
        (waits,) = await _submit(node, "waits")
        for _, _, answered in list(peers.sent):
            answered(ce.Timeout("the call to n2", 5.0, outcome="unknown"))
        assert [(await _refusal(future)).outcome for future in sent] == [Outcome.UNKNOWN] * FRAMES_MAX
        refused = await _refusal(waits)
        assert (refused.code, refused.outcome) == (Code.NO_LEADER, Outcome.NOT_APPLIED)
        assert len(peers.frames) == FRAMES_MAX
        assert _nothing_is_left(node)


async def test_what_a_cut_off_leader_has_is_unknown_once_the_next_one_is_known(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(files) as node:
        await founded(node)
        Peers(node, monkeypatch)
        _follows(node, "n2")
        (future,) = await _submit(node, "a")
        _follows(node, "n2")
        _follows(node, None)
        (frame,) = _under_way(node)
        assert frame.patience is None, "it may still answer"
        _follows(node, "n3")
        due_s = frame.patience.when()
        assert due_s <= asyncio.get_running_loop().time() + forwarding.LATE_ANSWER_S
        _follows(node, "n4")
        assert frame.patience.when() == due_s
        refused = await _refusal(future)
        assert refused.detail == "n2 had the command and leads no more"
        assert (refused.code, refused.outcome) == (Code.TIMEOUT, Outcome.UNKNOWN)
        assert _nothing_is_left(node)


async def test_what_is_held_for_a_leader_that_goes_on_leading_is_sent_on_and_the_next_hold_is_another(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_leaders, "HOLD_MS", 600_000)
    async with _following(files, monkeypatch) as (node, peers):
        (first,) = await _submit(node, "held")
        peers.answer(0, Relayed(refusal=("NOT_LEADER", "a transfer", None, "not_applied")))
        (second,) = await _submit(node, "taken")
        assert not first.done()
        peers.answer(1)
        peers.answer(2)
        assert first.result().commit == second.result().commit == 1
        assert [nonces for _, nonces in peers.frames] == [["held"], ["taken"], ["held"]]
        assert node.proposer._between.until_s is None
        assert _nothing_is_left(node)


@pytest.mark.parametrize("count", [1, 3])
async def test_answer_of_another_length_tells_each_caller_that_its_outcome_is_unknown(
    files: Settings, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async with _following(files, monkeypatch) as (node, peers):
        futures = await _submit(node, "a", "b")
        peers.answer(0, *[Relayed(wire.SessionOpened("1", 1, 60_000, 64), 1)] * count)
        refusals = [await _refusal(future) for future in futures]
        assert [(one.code, one.outcome) for one in refusals] == [(Code.INTERNAL, Outcome.UNKNOWN)] * 2
        assert _nothing_is_left(node)


async def test_what_waits_for_a_leader_that_is_back_leaves_when_its_frames_are_given_up(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "LATE_ANSWER_S", 0.01)
    forgotten: list[int] = []
    async with _following(files, monkeypatch) as (node, peers):
        monkeypatch.setattr(node.replica, "give_up", forgotten.append)
        sent = [(await _submit(node, nonce))[0] for nonce in "abc"[:FRAMES_MAX]]
        _follows(node, "n3")
        _follows(node, "n2")
        (waits,) = await _submit(node, "waits")
        assert len(peers.frames) == FRAMES_MAX
        assert [(await _refusal(future)).outcome for future in sent] == [Outcome.UNKNOWN] * FRAMES_MAX
        assert forgotten == [*range(1, FRAMES_MAX + 1)], "their late answers would be read"
        assert peers.frames[FRAMES_MAX:] == [("n2", ["waits"])]
        peers.answer(FRAMES_MAX)
        assert waits.result().commit == 1
        assert _nothing_is_left(node)


async def test_frame_that_was_answered_is_given_up_no_more(files: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _following(files, monkeypatch) as (node, peers):
        monkeypatch.setattr(forwarding, "LATE_ANSWER_S", 600.0)
        await _submit(node, "a")
        _follows(node, "n3")
        (frame,) = _under_way(node)
        peers.answer(0)
        assert frame.patience.cancelled()
        assert _nothing_is_left(node)


async def test_command_that_moves_on_is_alone_in_flight_and_those_beside_it_have_their_answers(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_leaders, "HOLD_MS", 600_000)
    async with _following(files, monkeypatch) as (node, peers):
        answered, moves = await _submit(node, "answered", "moves")
        moved = Relayed(refusal=("NOT_LEADER", "a transfer", None, "not_applied"))
        _follows(node, None)
        peers.answer(0, Relayed(wire.SessionOpened("1", 1, 60_000, 64), 1), moved)
        assert (answered.result().commit, moves.done()) == (1, False)
        assert (node.proposer.inflight_commands, node.proposer.inflight_bytes) == (1, 64)
        _follows(node, "n3")
        assert peers.frames[1:] == [("n3", ["moves"])]
        peers.answer(1)
        assert moves.result().commit == 1
        assert _nothing_is_left(node)


async def test_silence_of_an_earlier_leader_refuses_nothing_that_waits_for_the_next_one(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "LATE_ANSWER_S", 600.0)
    async with _following(files, monkeypatch) as (node, peers):
        await _submit(node, "a")
        _follows(node, "n3")
        for nonce in "bcd"[:FRAMES_MAX]:
            await _submit(node, nonce)
        (waits,) = await _submit(node, "waits")
        peers.sent[0][2](ce.Timeout("the call to n2", 5.0, outcome="unknown"))
        assert not waits.done()
        for at in range(1, FRAMES_MAX + 2):
            peers.answer(at)
        assert waits.result().commit == 1
        assert _nothing_is_left(node)


async def test_node_that_is_elected_and_not_ready_goes_on_with_the_hold_that_has_begun(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_leaders, "HOLD_MS", 600_000)
    async with running(files) as node:
        await founded(node)
        _follows(node, None)
        (held,) = await _submit(node, "held")
        until_s = node.proposer._between.until_s
        assert until_s is not None
        role = RoleChange(role=Role.LEADER, leader_id=node.settings.node, term=node.replica.status().term, ready=False)
        node._role(role)
        assert node.proposer._between.until_s == until_s
        node._role(replace(role, ready=True))
        async with asyncio.timeout(60):
            await held


async def test_leader_that_hands_over_still_answers_what_it_was_given(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "LATE_ANSWER_S", 600.0)
    async with _following(files, monkeypatch) as (node, peers):
        (future,) = await _submit(node, "a")
        _follows(node, "n3")
        peers.answer(0, Relayed(refusal=("QUOTA", "full", None, "not_applied")))
        assert (await _refusal(future)).code is Code.QUOTA
        assert _nothing_is_left(node)


async def test_callers_that_give_up_while_their_command_is_held_leave_nothing_in_flight(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_leaders, "HOLD_MS", 600_000)
    async with running(files) as node:
        await founded(node)
        _follows(node, None)
        gone, stays = await _submit(node, "gone", "stays")
        assert node.proposer._between._held
        gone.cancel()
        node._role(RoleChange(role=Role.LEADER, leader_id="n1", term=node.replica.status().term, ready=True))
        async with asyncio.timeout(60):
            await stays
            while node.proposer.inflight_commands:  # what a new cluster orders by itself is under way for a moment
                await asyncio.sleep(0.01)
        assert node.proposer.inflight_bytes == 0


async def _served(node: Node, payload: bytes, then: Callable[[], None] = lambda: None) -> list[Any]:
    told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    before = asyncio.all_tasks()
    assert node._serve_at_once(payload, told.set_result)
    assert asyncio.all_tasks() == before, "a frame has no task"
    then()
    async with asyncio.timeout(60):
        return forwarding._received_answers.decode(await told)


async def test_commands_of_one_frame_share_an_entry_and_each_gets_the_answer_that_a_caller_here_gets(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(files) as node:
        await founded(node)
        before = node.proposer.entries
        commands: list[c.Command] = [
            c.DeclareTable("rows", "resident", 2**30),
            c.OpenSession("n", 60_000, 512),
            c.CloseSession(77, 1),
            c.Operate(1, 1, 1, [c.Op(1, 1, "rows", "k", c.fingerprint_put("rows", "k", b"1"), b"1")]),
        ]
        here: list[asyncio.Future[Any]] = []
        answers = await _served(
            node,
            PROPOSE + c.encode_commands(commands),
            lambda: here.extend(node.submit(command, 64) for command in commands),
        )
        assert node.proposer.entries == before + 1
        locally = await asyncio.gather(*here, return_exceptions=True)
        for command, relayed, local in zip(commands, answers, locally, strict=True):
            if isinstance(local, OncegateError):
                assert relayed.refusal[:2] == (local.code.value, local.detail)
                continue
            assert not isinstance(local, BaseException)
            assert relayed.commit == local.commit
            assert type(forwarding._read(command, relayed).body) is type(local.body)
        assert answers[3].refusal is None
        assert await _served(node, PROPOSE + c.encode_commands([])) == []


async def test_node_that_does_not_lead_and_one_without_room_refuse_each_command_of_a_frame_alone(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(files) as node:
        await founded(node)
        payload = PROPOSE + c.encode_commands([c.OpenSession(nonce, 60_000, 64) for nonce in "abc"])
        async with asyncio.timeout(60):
            while node.proposer.inflight_commands:  # what a new cluster orders by itself is under way for a moment
                await asyncio.sleep(0.01)
        monkeypatch.setattr("oncegate.gateway.node.proposer.INFLIGHT_COMMANDS_MAX", 2)
        refusals = [one.refusal and one.refusal[0] for one in await _served(node, payload)]
        assert refusals == [None, None, "OVERLOADED"]
        _follows(node, "n2")
        assert [one.refusal[0] for one in await _served(node, payload)] == ["NOT_LEADER"] * 3


async def test_frame_for_a_node_that_was_just_elected_waits_until_it_may_propose(files: Settings) -> None:
    async with running(files) as node:
        await founded(node)
        elected = RoleChange(
            role=Role.LEADER, leader_id=node.settings.node, term=node.replica.status().term, ready=False
        )
        node._role(elected)
        payload = PROPOSE + c.encode_commands([c.OpenSession(nonce, 60_000, 64) for nonce in "ab"])
        served = asyncio.create_task(_served(node, payload))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not served.done(), "refused: the follower would hold it for half a second"
        node._role(replace(elected, ready=True))
        assert [one.refusal for one in await served] == [None, None]


async def test_frames_are_those_of_their_protocol_version(files: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    put = c.Operate(9, 1, 1, [c.Op(1, 1, "t", "k", 7, b"1")], "a", "")
    async with running(files) as node:
        await founded(node)
        sent: list[tuple[bytes, Answered]] = []

        def ask(leader: str, payload: bytes, *, timeout_s: float, answered: Answered) -> int:
            sent.append((payload, answered))
            return 1

        monkeypatch.setattr(node.replica, "ask", ask)
        _follows(node, "n2")
        first, second = node.submit(put, 64), node.submit(c.OpenSession("n", 60_000, 64), 64)
        await asyncio.sleep(0)
        ((payload, answered),) = sent
        assert payload == _SENT
        answered(_ANSWERED)
        done = first.result()
        assert (done.commit, done.memory_ms, done.body.results[0].version) == (5, 60_000, 5)
        assert ((await _refusal(second)).code, second.done()) == (Code.QUOTA, True)
    told: list[bytes] = []
    gathered = forwarding.GatheredAnswers(asyncio.get_running_loop(), 2, told.append)
    gathered.slots[1].set_exception(OncegateError(Code.QUOTA, "full"))
    gathered.slots[0].set_result(done)
    assert told == [_ANSWERED]


class _Deaf:
    """A waiter that fails at its end."""

    def done(self) -> bool:
        return False

    def set_result(self, answer: Answer) -> None:
        raise OSError("a bug")

    def set_exception(self, fault: BaseException) -> None:
        raise OSError("a bug")


async def test_waiter_that_cannot_take_a_forwarded_answer_leaves_nobody_else_waiting(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _following(files, monkeypatch) as (node, peers):
        for nonce in "ab":
            node.proposer.order(Waiting(c.OpenSession(nonce, 60_000, 64), 64, _Deaf()))
        (behind,) = await _submit(node, "c")
        refused = Relayed(refusal=("QUOTA", "full", None, "not_applied"))
        peers.answer(0, Relayed(wire.SessionOpened("1", 1, 60_000, 64), 1), refused, refused)
        assert (await _refusal(behind)).code is Code.QUOTA
        assert _nothing_is_left(node)


async def test_command_of_a_frame_that_cannot_be_ordered_leaves_no_other_unanswered(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(files) as node:
        await founded(node)
        order = node.proposer.order

        def ordered(waiting: Waiting) -> None:
            if waiting.command.nonce == "a":
                raise TypeError("a bug")
            order(waiting)

        monkeypatch.setattr(node.proposer, "order", ordered)
        frame = c.encode_commands([c.OpenSession(nonce, 60_000, 64) for nonce in "ab"])
        one, other = await _served(node, PROPOSE + frame)
        assert (one.refusal[0], other.refusal) == ("INTERNAL", None)


async def test_frame_whose_answers_cannot_be_encoded_is_refused_whole() -> None:
    told: list[bytes] = []
    gathered = forwarding.GatheredAnswers(asyncio.get_running_loop(), 2, told.append)
    gathered.slots[0].set_result(Answer(None, 2**70))
    gathered.slots[1].set_result(Answer(None, 1))
    (frame,) = told
    assert [one.refusal[0] for one in forwarding._received_answers.decode(frame)] == ["INTERNAL"] * 2


@pytest.mark.parametrize(
    ("values", "beside"), [([b"1"], False), ([b'"' + b"x" * 40_000 + b'"'], True), ([object()], True)]
)
async def test_frame_whose_answers_hold_many_values_is_encoded_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, *, values: list[Any], beside: bool
) -> None:
    loop, threads = asyncio.get_running_loop(), list[object]()
    run = loop.run_in_executor
    monkeypatch.setattr(loop, "run_in_executor", lambda pool, *work: (threads.append(work), run(pool, *work))[1])
    told: asyncio.Future[bytes] = loop.create_future()
    gathered = forwarding.GatheredAnswers(loop, 2, told.set_result)
    shown = [answer_values.shown(value) if isinstance(value, bytes) else value for value in values]
    results = [wire.OperationResult(1, "applied", 5, 5, value, replayed=False) for value in shown]
    gathered.slots[0].set_result(Answer(wire.OperationsResponse(results, 60_000), 5))
    gathered.slots[1].set_exception(OncegateError(Code.QUOTA, "full"))
    async with asyncio.timeout(60):
        answers = forwarding._received_answers.decode(await told)
    assert bool(threads) == beside
    if isinstance(values[0], bytes):
        body = forwarding._read(c.Operate(1, 1, 1, []), answers[0]).body
        assert answer_values.json_of(body.results[0].value) == values[0]
        assert answers[1].refusal[0] == "QUOTA"
    else:
        assert [one.refusal[0] for one in answers] == ["INTERNAL"] * 2, "nobody waits for what cannot be encoded"
