"""From commands that wait to log entries, and from results back to those who wait.

Owns: grouping (all commands that wait become one entry, when :mod:`oncegate.gateway.machine.ordering` lets them
leave), the bounds of what is in flight, the deadline of each command, who gets a command when the lead changes, and
what callers see then: in doubt, the outcome is unknown. Must not know HTTP. One wake-up a tick, not one an operation.

**Deadlines.** Each command ends ``answer_s`` after it was ordered at this node, at the latest: TIMEOUT, with an outcome
that is unknown if it was proposed or forwarded, ``not_applied`` if it still waited here. One timer looks at all of
them, which in a healthy node goes off once in ``answer_s``. What is in the log goes on, and counts as in flight until
its end.

**A stall.** While nothing commits (:mod:`oncegate.gateway.node.commit_stall`), what waits and what comes is NOT_READY.
The entries under way tell that the stall is over: they commit as soon as any can.

Read next: :mod:`oncegate.gateway.node.forwarding`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final

from oncegate.consensus import errors as ce
from oncegate.consensus.histogram import Histogram
from oncegate.consensus.replica.replica import Replica
from oncegate.gateway.answers import Answer, answer
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import levels
from oncegate.gateway.machine.idempotency_keys import check_room
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import ClusterClock, in_columns, leaves_now
from oncegate.gateway.node.attempts import Waiting, end_overdue, not_told, take_overdue
from oncegate.gateway.node.between_leaders import BetweenLeaders
from oncegate.gateway.node.commit_stall import is_stalled
from oncegate.gateway.node.forwarding import Forwarding, GatheredAnswers
from oncegate.gateway.node.refusals import translated
from oncegate.gateway.sweep import NEVER, Sweep
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.key_table import KEYS_BYTES_DEFAULT

log = logging.getLogger(__name__)

ENTRY_BYTES_MAX: Final = 2 * 2**20
"""Commands share an entry up to this size; a larger one travels alone, so that it cannot take others down with it."""
INFLIGHT_BYTES_MAX: Final = 64 * 2**20
INFLIGHT_COMMANDS_MAX: Final = 20_000
ANSWER_S: Final = 5.0
SWEEP_S: Final = 0.1
"""At least so much lies between two looks at deadlines, and by so much one may be overrun."""
STALL_RETRY_MS: Final = 1_000
_COMMAND: Final = attrgetter("command")
_SIZE: Final = attrgetter("size")


@dataclass(slots=True)
class Leadership:
    """What this node believes of the lead; kept current by role changes."""

    leads: bool = False
    """This node leads and has applied its term's first entry, so that it may decide."""
    leader_id: str | None = None
    node_id: str = ""
    """This node."""


class Proposer:
    """Orders commands through the leader, wherever it is.

    Bounds: ``INFLIGHT_COMMANDS_MAX`` and ``INFLIGHT_BYTES_MAX``; beyond them OVERLOADED, before anything is proposed.
    """

    def __init__(
        self,
        replica: Replica,
        machine: Machine,
        clock: ClusterClock,
        leadership: Leadership,
        is_founding: Callable[[float], bool],
        *,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
        answer_s: float = ANSWER_S,
        keys_bytes_max: int = KEYS_BYTES_DEFAULT,
    ) -> None:
        self._answer_s = answer_s
        self._replica = replica
        self._leadership = leadership
        self._machine = machine
        self._clock = clock
        self._is_founding = is_founding
        self._entry_bytes_max = entry_bytes_max
        self._keys_bytes_max = keys_bytes_max
        self._loop = asyncio.get_running_loop()
        self._between: BetweenLeaders[Sequence[Waiting]] = BetweenLeaders(self._loop, self.send_on, self.fail)
        self._waiting: list[Waiting] = []
        self._waiting_bytes = 0
        self._proposed: dict[int, Sequence[Waiting]] = {}
        """Entries proposed here that have not come to their end, by number, in order."""
        self._swept = 0
        """Number of an entry: of its commands, and of those before, nobody waits any more."""
        self._due_s = 0.0
        """When the commands that are ordered in this turn of the loop are due."""
        self._sweep = Sweep(self._loop, self._end_overdue)
        self._stall = ""
        self._scheduled = False
        self._forwarding = Forwarding(self._loop, replica, self, frame_bytes_max=entry_bytes_max, answer_s=answer_s)
        self.inflight_bytes = 0
        self.inflight_commands = 0
        self.entries = 0
        self.entry_times = Histogram()
        """From the proposal of an entry, here at the leader, to its result."""
        self.on_logged: Callable[[list[str], float, int], None] | None = None
        """Told of each entry's result: the trace contexts of its commands, seconds since its proposal, commands."""

    def submit(self, command: c.Command, size: int) -> asyncio.Future[Answer]:
        """Order a command of roughly ``size`` bytes; it leaves with everything else that waits, at the end of this loop
        iteration or of the entries under way.

        The future of its answer fails with OncegateError and never hangs. Raises OVERLOADED, CONFLICT for a command
        above the cluster's feature level (NOT_READY while that may be about to rise), QUOTA for keys without room, or
        NOT_READY while nothing commits; then nothing was proposed.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.order(Waiting(command, size, future))
        return future

    def order(self, waiting: Waiting) -> None:
        """Order a command as :meth:`submit` does; who waits for it is told its end later, never from in here."""
        command, size = waiting.command, waiting.size
        if self._machine.level < levels.NEWEST:
            levels.check_level(command, self._machine.level, founded=not self._is_founding(self._loop.time()))
        # Asked anew: who finds this node ready as soon as entries commit again is not refused until the next look.
        if self._stall and is_stalled(self._replica.stalled_s()):
            raise self._stalled()
        if isinstance(command, c.Keyed) and self._leadership.leads:
            check_room(self._machine, command, self._keys_bytes_max, lambda: self._clock.stamp_ms(time.monotonic()))
        if self.inflight_commands >= INFLIGHT_COMMANDS_MAX or self.inflight_bytes + size > INFLIGHT_BYTES_MAX:
            raise OncegateError(Code.OVERLOADED, "too many commands wait for the log", retry_after_ms=50)
        self._waiting.append(waiting)
        self._waiting_bytes += size
        self.inflight_bytes += size
        self.inflight_commands += 1
        if not self._scheduled:
            self._flush_soon()
        waiting.due_s = self._due_s

    def _flush_soon(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
            self._due_s = due_s = self._loop.time() + self._answer_s
            if due_s < self._sweep.at:
                self._sweep.arm(due_s)

    def _flush(self) -> None:
        self._scheduled = False
        if self._leadership.leads and not leaves_now(self._waiting_bytes, len(self._proposed)):
            return  # until an entry comes to its end, or more comes
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        start = total = 0
        for at, item in enumerate(waiting):
            if at > start and total + item.size > self._entry_bytes_max:
                self._send(waiting[start:at])
                start, total = at, 0
            total += item.size
        if start < len(waiting):
            self._send(waiting[start:] if start else waiting)

    def _send(self, batch: Sequence[Waiting]) -> None:
        if self._leadership.leads:
            self._propose(batch)
            return
        leader = self._leadership.leader_id
        if leader is None or leader == self._leadership.node_id:
            code = Code.NO_LEADER if leader is None else Code.NOT_READY
            self._between.hold(batch, OncegateError(code, retry_after_ms=50))
            return
        self._forwarding.send(leader, batch)

    def _propose(self, batch: Sequence[Waiting]) -> None:
        try:
            commands = [*map(in_columns, map(_COMMAND, batch))]
            began_s = time.monotonic()
            entry = c.encode_entry(self._clock.stamp_ms(began_s), commands)
            future = self._replica.propose(entry)
        except ce.CommandRefused as fault:
            if len(batch) == 1:
                self.fail(batch, translated(fault))
                return
            # Canonical form can be larger than what was received: only the command that is too large is refused.
            for item in batch:
                self._propose([item])
            return
        except (ce.NotLeader, ce.Transferring) as fault:
            self._between.hold(batch, translated(fault))
            return
        except Exception as fault:  # noqa: BLE001 - translated for those who wait
            self.fail(batch, translated(fault))
            return
        self.entries += 1
        number = self.entries
        self._proposed[number] = batch
        if self._between.until_s is not None:
            self._between.led()
        future.add_done_callback(partial(self._applied, number, began_s))

    def _applied(self, number: int, began_s: float, done: asyncio.Future[Any]) -> None:
        batch = self._proposed.pop(number)
        self._flush_soon()
        fault = asyncio.CancelledError() if done.cancelled() else done.exception()
        if isinstance(fault, ce.NotLeader):
            self.refused(self._leadership.node_id, batch, translated(fault))
            return
        if fault is not None:
            self.fail(batch, translated(fault))
            return
        try:
            self.entry_times.observe(time.monotonic() - began_s)
            if self.on_logged is not None:
                traced = [trace for item in batch if (trace := getattr(item.command, "traceparent", ""))]
                self.on_logged(traced, began_s, len(batch))
        except Exception:  # its commands stand, and their callers are told
            log.exception("an entry could not be counted")
        self.release(batch)
        for item, result in zip(batch, done.result(), strict=True):
            try:
                if item.is_gone():
                    continue  # the caller has gone away; the operation stands
                try:
                    told = answer(item.command, result, self._machine)
                except Exception as refusal:  # noqa: BLE001 - one answer that cannot be made leaves nobody else waiting
                    item.refuse(translated(refusal))
                else:
                    item.answer(told)
            except Exception as unheard:  # noqa: BLE001 - nor does one that cannot be taken
                not_told(unheard)

    def leader_known(self, leader: str) -> None:
        """Another leader is known: what an earlier one has and does not answer soon ends with an unknown outcome."""
        self._forwarding.leader_known(leader)

    def refused(self, leader: str, batch: Sequence[Waiting], refusal: OncegateError) -> None:
        """Whoever was taken for the leader has not taken the batch: the next one may; else nobody knows what became."""
        if refusal.code not in _NOT_LED or refusal.outcome is not Outcome.NOT_APPLIED:
            self.fail(batch, refusal)
        elif self._leadership.leads or self._leadership.leader_id not in (leader, None):
            self.send_on(batch)
        else:
            self._between.hold(batch, refusal)

    def led(self) -> None:
        """The lead has changed: send on what waits for it, if somebody has it."""
        self._flush_soon()
        self._forwarding.lead_changed()
        if self._leadership.leads or self._leadership.leader_id not in (None, self._leadership.node_id):
            self._between.led()

    def taken(self, leader: str) -> None:
        """A node has taken commands: if it is said to lead, it does, and gets what is held."""
        if leader == self._leadership.leader_id:
            # A transfer may fail: the leader that refused goes on leading, and nothing is said of a new one.
            self._between.led()

    def send_on(self, batch: Sequence[Waiting]) -> None:
        """Send commands that nobody has got to whoever leads now."""
        left, gone, late = list[Waiting](), list[Waiting](), list[Waiting]()
        now_s = self._loop.time()
        for item in batch:
            (gone if item.is_gone() else late if item.due_s <= now_s else left).append(item)
        self.release(gone)
        if late:
            self.fail(late, self._late("it waited for a leader"))
        if left:
            # A look at the deadlines does not see what is held: the next one may have been put off beyond these.
            self._sweep.arm(min([item.due_s for item in left]))
            self._send(left)

    def stall(self, why: str) -> None:
        """Refuse what waits and what comes, because nothing commits; with an empty text, take commands again."""
        self._stall = why
        if why and self._waiting:
            waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self.fail(waiting, self._stalled())

    def close(self) -> None:
        """Look at deadlines no more: the replica ends what is under way."""
        self._sweep.cancel()

    def _stalled(self) -> OncegateError:
        return OncegateError(Code.NOT_READY, self._stall, retry_after_ms=STALL_RETRY_MS)

    def _late(self, why: str, outcome: Outcome = Outcome.NOT_APPLIED) -> OncegateError:
        detail = f"no answer within {self._answer_s:g} s: {why}"
        return OncegateError(Code.TIMEOUT, detail, outcome=outcome, retry_after_ms=50)

    def _end_overdue(self, now_s: float) -> float:
        """End what is due, and return when to look again."""
        late = take_overdue(self._waiting, now_s)
        if late:
            self._waiting_bytes -= sum(map(_SIZE, late))
            self.fail(late, self._late("it waited for the entries before it, and was not proposed"))
        following = self._waiting[0].due_s if self._waiting else NEVER
        refusal = self._late("it was proposed, and no majority has stored it yet", Outcome.UNKNOWN)
        told = True
        for number, batch in list(self._proposed.items()):
            if number > self._swept:
                due_s = end_overdue(batch, now_s, refusal)
                told = told and due_s == NEVER
                if told:
                    self._swept = number
                following = min(following, due_s)
        return max(min(following, self._forwarding.end_overdue(now_s)), now_s + SWEEP_S)

    def serve_forwarded(self, payload: bytes, tell: Callable[[bytes], None]) -> None:
        """Order, at the leader, what a follower forwarded in one frame; ``tell`` gets the bytes of all answers.

        NOT_LEADER for each command when another node leads, or nobody: a command is forwarded once only. A node that
        was elected a moment ago holds them until it may propose, as it holds what its own callers send. Raises
        ``msgspec.DecodeError``.
        """
        commands = c.decode_commands(payload)
        answers = GatheredAnswers(self._loop, len(commands), tell)
        size = len(payload) // max(1, len(commands))
        elected = self._leadership.leads or self._leadership.leader_id == self._leadership.node_id
        for command, slot in zip(commands, answers.slots, strict=True):
            try:
                if not elected:
                    raise OncegateError(Code.NOT_LEADER, retry_after_ms=20)
                self.order(Waiting(command, size, slot))
            except Exception as refusal:  # noqa: BLE001 - one command that cannot be ordered leaves no other unanswered
                slot.set_exception(refusal)

    def fail(self, batch: Sequence[Waiting], refusal: OncegateError) -> None:
        """Nobody goes on with these commands: tell those who wait."""
        self.release(batch)
        for item in batch:
            try:
                if not item.is_gone():
                    item.refuse(refusal)
            except Exception as unheard:  # noqa: BLE001 - one refusal that cannot be taken leaves nobody else waiting
                not_told(unheard)

    def release(self, batch: Sequence[Waiting]) -> None:
        """These commands are in flight no more."""
        self.inflight_commands -= len(batch)
        self.inflight_bytes -= sum(map(_SIZE, batch))


_NOT_LED: Final = frozenset({Code.NOT_LEADER, Code.NO_LEADER, Code.NOT_READY})
"""Refusals before anything was proposed, for want of a leader."""
