"""Commands on their way between a follower and its leader, and their answers on the way back.

Owns: what travels in one frame, how many frames are under way, how long a leader is waited for, and the form of both
frames. One call of the peer protocol is one frame each way; neither end makes a task, a future or a timer for it.
:class:`Forwarding` is the follower's end, :class:`GatheredAnswers` the leader's. What becomes of a command that the
leader has not taken is the proposer's to say (:class:`Owner`).

**Few frames, full ones.** A frame costs both ends fifty times what a command in it does, and becomes an entry of the
log, with its flushes on three nodes. So at most ``FRAMES_MAX`` are under way to a leader; commands that come meanwhile
share the next one, which leaves with the first answer. Nobody waits for a timer, and a lone command for nothing.

Read next: :mod:`oncegate.gateway.node.proposer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from oncegate.consensus import errors as ce
from oncegate.consensus.replica.replica import Replica
from oncegate.gateway.answer_values import MSGPACK
from oncegate.gateway.answers import Answer, relayed_body
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.attempts import end_overdue, not_told, take_overdue
from oncegate.gateway.node.refusals import Refusal, packed, translated, unpacked
from oncegate.gateway.sweep import NEVER
from oncegate.rifl.errors import Code, OncegateError, Outcome

if TYPE_CHECKING:
    from oncegate.gateway.node.attempts import Waiting

PROPOSE: Final = b"p"
"""First byte of a peer call that carries commands; :class:`Relayed` answers are its answer."""
FRAMES_MAX: Final = 2
"""Frames under way to one leader: one on its way while the entry of the other is made durable."""
GRACE_S: Final = 1.0
"""For so much longer than its commands may take, a frame is waited for: a leader that ends them says why."""
LATE_ANSWER_S: Final = 0.1
"""How long the answer of a leader is waited for once another one is known. One that hands over, or hears of the next
term, answers all that it was given; one that is cut off answers nothing."""


class Relayed(msgspec.Struct, array_like=True):
    """An answer on its way from the leader to the node that forwarded the command: its body, or that in msgpack."""

    body: Any = None
    commit: int = 0
    created: bool = False
    refusal: Refusal | None = None
    memory_ms: int | None = None


class Received(Relayed, array_like=True):
    """The same where it arrives: how its body is read depends on the command."""

    body: msgspec.Raw = msgspec.Raw(msgspec.msgpack.encode(None))


_received_answers = msgspec.msgpack.Decoder(list[Received])


class Owner(Protocol):
    """Who gives commands to be forwarded, and holds those who wait for them."""

    def send_on(self, batch: Sequence[Waiting]) -> None:
        """Send commands that nobody has got to whoever leads now."""

    def refused(self, leader: str, batch: Sequence[Waiting], refusal: OncegateError) -> None:
        """The leader has not answered, or not taken, these commands."""

    def fail(self, batch: Sequence[Waiting], refusal: OncegateError) -> None:
        """Nobody goes on with these commands."""

    def release(self, batch: Sequence[Waiting]) -> None:
        """These commands are under way no more."""

    def taken(self, leader: str) -> None:
        """A node has taken commands, so it leads."""


class _Frame:
    """One call under way."""

    __slots__ = ("batch", "leader", "number", "patience")

    def __init__(self, leader: str, batch: list[Waiting]) -> None:
        self.leader = leader
        self.batch = batch
        self.number = 0
        self.patience: asyncio.TimerHandle | None = None
        """Set once another leader is known."""


class Forwarding:
    """A follower's end; belongs to one event loop.

    Bounds: ``FRAMES_MAX`` frames to a leader, ``frame_bytes_max`` of commands in each unless one alone is larger. How
    many commands may wait is the owner's bound.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: Replica,
        owner: Owner,
        *,
        frame_bytes_max: int,
        answer_s: float,
    ) -> None:
        self._answer_s = answer_s
        self._loop = loop
        self._replica = replica
        self._owner = owner
        self._frame_bytes_max = frame_bytes_max
        self._leader = ""
        """Whom those that wait are for."""
        self._waiting: list[Waiting] = []
        self.under_way: list[_Frame] = []

    def send(self, leader: str, batch: Sequence[Waiting]) -> None:
        """Forward commands to the leader, at once or in the next frame that may leave."""
        self._leader = leader
        newest = self._waiting[-1] if self._waiting else batch[0]
        self._waiting += batch
        if batch[0].due_s < newest.due_s:
            # Sent on after another leader had refused it: deadlines are looked at in the order of coming.
            self._waiting.sort(key=lambda item: item.due_s)
        self._fill()

    def leader_known(self, leader: str) -> None:
        """Another leader is known: what an earlier one has and does not answer soon ends with an unknown outcome."""
        for frame in self.under_way:
            if frame.leader != leader and frame.patience is None:
                frame.patience = self._loop.call_later(LATE_ANSWER_S, self._too_late, frame)

    def lead_changed(self) -> None:
        """Somebody else leads, or nobody: hand back what waits, nobody has got it."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._owner.send_on(waiting)

    def end_overdue(self, now_s: float) -> float:
        """End the commands that are due; return when the next is. A frame keeps its place until its own end."""
        late = take_overdue(self._waiting, now_s)
        if late:
            detail = f"no answer within {self._answer_s:g} s: {self._leader} has not answered what came before"
            refusal = OncegateError(Code.TIMEOUT, detail, outcome=Outcome.NOT_APPLIED, retry_after_ms=50)
            self._owner.fail(late, refusal)
        following = self._waiting[0].due_s if self._waiting else NEVER
        for frame in self.under_way:
            detail = f"no answer within {self._answer_s:g} s: {frame.leader} has it, and does not say what became of it"
            refusal = OncegateError(Code.TIMEOUT, detail, outcome=Outcome.UNKNOWN, retry_after_ms=50)
            following = min(following, end_overdue(frame.batch, now_s, refusal))
        return following

    def _fill(self) -> None:
        while self._waiting and sum([frame.leader == self._leader for frame in self.under_way]) < FRAMES_MAX:
            end = size = 0
            for item in self._waiting:
                size += item.size
                if end and size > self._frame_bytes_max:
                    break
                end += 1
            frame = _Frame(self._leader, self._waiting[:end])
            del self._waiting[:end]
            self._pass_on(frame)

    def _pass_on(self, frame: _Frame) -> None:
        try:
            payload = PROPOSE + c.encode_commands([item.command for item in frame.batch])
            answered = partial(self._answered, frame)
            patience_s = self._answer_s + GRACE_S
            frame.number = self._replica.ask(frame.leader, payload, timeout_s=patience_s, answered=answered)
        except Exception as fault:  # noqa: BLE001 - translated for those who wait
            self._owner.refused(frame.leader, frame.batch, translated(fault))
            return
        self.under_way.append(frame)

    def _answered(self, frame: _Frame, came: bytes | ce.ConsensusError) -> None:
        self._end(frame)
        leader, batch, owner = frame.leader, frame.batch, self._owner
        try:
            if not isinstance(came, bytes):
                raise came
            answers = _received_answers.decode(came)
            if len(answers) != len(batch):
                raise OncegateError(Code.INTERNAL, "the leader answered another number of commands")
        except Exception as fault:  # noqa: BLE001 - translated for those who wait
            owner.refused(leader, batch, translated(fault))
            if isinstance(came, ce.Timeout) and leader == self._leader:
                # A leader that stands still for so long has no time for what waits either; nobody has got that.
                waiting, self._waiting = self._waiting, []
                owner.fail(waiting, OncegateError(Code.NO_LEADER, f"{leader} does not answer", retry_after_ms=50))
        else:
            self._hand_out(leader, batch, answers)
        self._fill()

    def _hand_out(self, leader: str, batch: list[Waiting], answers: list[Received]) -> None:
        if any(relayed.refusal is None for relayed in answers):
            self._owner.taken(leader)
        not_led = [relayed.refusal is not None and relayed.refusal[0] == Code.NOT_LEADER for relayed in answers]
        if any(not_led):
            moved = [item for item, moves in zip(batch, not_led, strict=True) if moves]
            self._owner.refused(leader, moved, OncegateError(Code.NOT_LEADER, retry_after_ms=20))
            came = [item for item, moves in zip(batch, not_led, strict=True) if not moves]
            self._owner.release(came)
        else:
            self._owner.release(batch)
        for item, relayed, moves in zip(batch, answers, not_led, strict=True):
            if moves:
                continue
            try:
                if item.is_gone():
                    continue
                try:
                    told = _read(item.command, relayed)
                except Exception as fault:  # noqa: BLE001 - one answer that cannot be read leaves nobody else waiting
                    item.refuse(translated(fault))
                else:
                    item.answer(told)
            except Exception as unheard:  # noqa: BLE001 - nor does one that cannot be taken
                not_told(unheard)

    def _too_late(self, frame: _Frame) -> None:
        self._end(frame)
        self._replica.give_up(frame.number)
        detail = f"{frame.leader} had the command and leads no more"
        unknown = OncegateError(Code.TIMEOUT, detail, outcome=Outcome.UNKNOWN, retry_after_ms=50)
        self._owner.refused(frame.leader, frame.batch, unknown)
        self._fill()

    def _end(self, frame: _Frame) -> None:
        self.under_way.remove(frame)
        if frame.patience is not None:
            frame.patience.cancel()


def _read(command: c.Command, relayed: Received) -> Answer:
    if relayed.refusal is not None:
        raise unpacked(relayed.refusal)
    return Answer(relayed_body(command, relayed.body), relayed.commit, relayed.created, relayed.memory_ms)


class GatheredAnswers:
    """The leader's end: answers to the commands of one frame; the last one makes the frame that goes back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int, tell: Callable[[bytes], None]) -> None:
        """``tell`` gets the bytes once, when every slot has its answer."""
        self._loop = loop
        self._tell = tell
        self._answers = [Relayed()] * count
        self._missing = count
        self.slots = [_Slot(self, at) for at in range(count)]
        if not count:
            self._finish()

    def put(self, at: int, answer: Relayed) -> None:
        """Take the answer to one command."""
        self._answers[at] = answer
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        try:
            told = _ENCODER.encode(self._answers)
        except _ManyValues:
            encoding = self._loop.run_in_executor(None, _encoded, self._answers)
            encoding.add_done_callback(lambda done: done.cancelled() or self._tell(done.result()))
        except Exception as fault:  # noqa: BLE001 - told to who asked; a bug is logged
            self._tell(_refused(fault, len(self._answers)))
        else:
            self._tell(told)


class _ManyValues(Exception):
    pass


def _no_values(_: Any) -> Any:
    raise _ManyValues


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_no_values)
"""Encodes answers whose values are built; values that are not are too many (:mod:`oncegate.gateway.answer_values`)."""


def _encoded(answers: list[Relayed]) -> bytes:
    try:
        return MSGPACK.encode(answers)
    except Exception as fault:  # noqa: BLE001 - told to who asked; a bug is logged
        return _refused(fault, len(answers))


def _refused(fault: Exception, count: int) -> bytes:
    return MSGPACK.encode([Relayed(refusal=packed(translated(fault)))] * count)


class _Slot:
    """Waits for the answer to one command; stands where the future of a caller of this node stands."""

    __slots__ = ("_at", "_gathered", "_taken")

    def __init__(self, gathered: GatheredAnswers, at: int) -> None:
        self._gathered = gathered
        self._at = at
        self._taken = False

    def done(self) -> bool:
        """Tell whether the answer came."""
        return self._taken

    def set_result(self, answer: Answer) -> None:
        """Take the answer."""
        self._taken = True
        body, commit, created, memory_ms = answer
        self._gathered.put(self._at, Relayed(body, commit, created, None, memory_ms))

    def set_exception(self, fault: BaseException) -> None:
        """Take a refusal."""
        self._taken = True
        self._gathered.put(self._at, Relayed(refusal=packed(translated(fault))))
