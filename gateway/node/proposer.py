"""From commands that wait to log entries, and from results back to those who wait.

Owns: grouping (all commands that wait become one entry, when :mod:`oncegate.gateway.node.group_commit` lets them
leave), the bounds of what is in flight, who gets a command when the lead changes, and what callers see then: in doubt,
the outcome is unknown. Must not know HTTP. One wake-up a tick, not one an operation. Read next:
:mod:`oncegate.gateway.node.forwarding`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oncegate.consensus import errors as ce
from oncegate.consensus.histogram import Histogram
from oncegate.consensus.replica.replica import Replica
from oncegate.gateway.answers import Answer, answer
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.cluster_clock import ClusterClock
from oncegate.gateway.machine.idempotency_keys import check_share
from oncegate.gateway.machine.levels import NEWEST, RUNS, check_level
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.put_runs import in_columns
from oncegate.gateway.node.attempts import Waiting, not_told
from oncegate.gateway.node.between_leaders import BetweenLeaders
from oncegate.gateway.node.forwarding import Forwarding, GatheredAnswers
from oncegate.gateway.node.group_commit import leaves_now
from oncegate.gateway.node.refusals import translated
from oncegate.rifl.errors import Code, OncegateError, Outcome

log = logging.getLogger(__name__)

ENTRY_BYTES_MAX: Final = 2 * 2**20
"""Commands share an entry up to this size; a larger one travels alone, so that it cannot take others down with it."""
INFLIGHT_BYTES_MAX: Final = 64 * 2**20
INFLIGHT_COMMANDS_MAX: Final = 20_000


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
    ) -> None:
        self._replica = replica
        self._leadership = leadership
        self._machine = machine
        self._clock = clock
        self._is_founding = is_founding
        self._entry_bytes_max = entry_bytes_max
        self._loop = asyncio.get_running_loop()
        self._between: BetweenLeaders[Sequence[Waiting]] = BetweenLeaders(self._loop, self.send_on, self.fail)
        self._waiting: list[Waiting] = []
        self._waiting_bytes = 0
        self._under_way = 0
        """Entries proposed here that have not come to their end."""
        self._scheduled = False
        self._forwarding = Forwarding(self._loop, replica, self, frame_bytes_max=entry_bytes_max)
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
        above the cluster's feature level (NOT_READY while that may be about to rise), or QUOTA for keys over their
        tenant's share; then nothing was proposed.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.order(Waiting(command, size, future))
        return future

    def order(self, waiting: Waiting) -> None:
        """Order a command as :meth:`submit` does; who waits for it is told its end later, never from in here."""
        command, size = waiting.command, waiting.size
        if self._machine.level < NEWEST:
            check_level(command, self._machine.level, founded=not self._is_founding(self._loop.time()))
        if isinstance(command, c.UNDER_KEYS) and self._leadership.leads:
            check_share(self._machine, command)
        if self.inflight_commands >= INFLIGHT_COMMANDS_MAX or self.inflight_bytes + size > INFLIGHT_BYTES_MAX:
            raise OncegateError(Code.OVERLOADED, "too many commands wait for the log", retry_after_ms=50)
        self._waiting.append(waiting)
        self._waiting_bytes += size
        self.inflight_bytes += size
        self.inflight_commands += 1
        if not self._scheduled:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._leadership.leads and not leaves_now(self._waiting_bytes, self._under_way):
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
            commands = [item.command for item in batch]
            if self._machine.level >= RUNS:
                commands = [in_columns(command) for command in commands]
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
        self._under_way += 1
        self._between.led()
        future.add_done_callback(lambda done: self._applied(batch, done, began_s))

    def _applied(self, batch: Sequence[Waiting], done: asyncio.Future[Any], began_s: float) -> None:
        self._under_way -= 1
        self._flush_soon()
        fault = asyncio.CancelledError() if done.cancelled() else done.exception()
        if isinstance(fault, ce.NotLeader):
            self.refused(self._leadership.node_id, batch, translated(fault))
            return
        if fault is not None:
            self.fail(batch, translated(fault))
            return
        lasted_s = time.monotonic() - began_s
        try:
            self.entry_times.observe(lasted_s)
            if self.on_logged is not None:
                traced = [trace for item in batch if (trace := getattr(item.command, "traceparent", ""))]
                self.on_logged(traced, lasted_s, len(batch))
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
        left, gone = list[Waiting](), list[Waiting]()
        for item in batch:
            (gone if item.is_gone() else left).append(item)
        self.release(gone)
        if left:
            self._send(left)

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
        self.inflight_bytes -= sum(item.size for item in batch)


_NOT_LED: Final = frozenset({Code.NOT_LEADER, Code.NO_LEADER, Code.NOT_READY})
"""Refusals before anything was proposed, for want of a leader."""
