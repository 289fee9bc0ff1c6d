"""From commands that wait to log entries, and from results back to those who wait.

Owns: grouping (all commands that wait at a tick become one entry), the bounds of what is in flight, forwarding to the
leader, and what callers see of errors below: in doubt, the outcome is unknown. Must not know HTTP. One wake-up a tick,
not one an operation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from oncegate.consensus import errors as ce
from oncegate.consensus.replica.replica import Replica
from oncegate.flows.errors import FlowError
from oncegate.gateway.answers import Answer, answer, relayed_body
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.cluster_clock import ClusterClock
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.errors import Code, OncegateError, Outcome

ENTRY_BYTES_MAX: Final = 2 * 2**20
"""Commands share an entry up to this size; a larger one travels alone, so that it cannot take others down with it."""
INFLIGHT_BYTES_MAX: Final = 64 * 2**20
INFLIGHT_COMMANDS_MAX: Final = 20_000
FORWARD_TIMEOUT_S: Final = 5.0
log = logging.getLogger(__name__)

Refusal = tuple[str, str, int | None, str]
"""A refusal on its way between nodes: code, detail, retry_after_ms, outcome."""


def packed(refusal: OncegateError) -> Refusal:
    """Return a refusal as plain data, for :func:`unpacked` at another node."""
    return refusal.code.value, refusal.detail, refusal.retry_after_ms, refusal.outcome.value


def unpacked(refusal: Refusal) -> OncegateError:
    """Undo :func:`packed`."""
    code, detail, retry_after_ms, outcome = refusal
    return OncegateError(Code(code), detail, retry_after_ms=retry_after_ms, outcome=Outcome(outcome))


def translated(fault: BaseException) -> OncegateError:
    """Return the typed refusal for an exception of a lower layer; a bug becomes INTERNAL and is logged."""
    match fault:
        case OncegateError():
            return fault
        case FlowError():
            return OncegateError(Code(fault.code), str(fault))
        case ce.CommandRefused():
            return OncegateError(Code.PAYLOAD_TOO_LARGE, str(fault))
        case ce.Overloaded():
            return OncegateError(Code.OVERLOADED, str(fault), retry_after_ms=100)
        case ce.ChangePending():
            return OncegateError(Code.CONFLICT, str(fault), retry_after_ms=100)
        case ce.ChangeRefused():
            return OncegateError(Code.CONFLICT, str(fault))
        case ce.NotReady():
            return OncegateError(Code.NOT_READY, str(fault), retry_after_ms=20)
        case ce.ConsensusError() if fault.outcome == "not_applied":
            return OncegateError(Code.NO_LEADER, str(fault), retry_after_ms=50)
        case ce.ConsensusError():
            return OncegateError(Code.TIMEOUT, str(fault), outcome=Outcome.UNKNOWN, retry_after_ms=50)
        case _:
            log.error("unexpected error", exc_info=fault)
            return OncegateError(Code.INTERNAL, type(fault).__name__)


@dataclass(slots=True)
class Leadership:
    """What this node believes of the lead; kept current by role changes."""

    leads: bool = False
    """This node leads and has applied its term's first entry, so that it may decide."""
    leader_id: str | None = None
    node_id: str = ""
    """This node."""


class Waiting(NamedTuple):
    """A command and the future of its answer."""

    command: c.Command
    size: int
    future: asyncio.Future[Answer]


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
        *,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        self._replica = replica
        self._leadership = leadership
        self._machine = machine
        self._clock = clock
        self._entry_bytes_max = entry_bytes_max
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Waiting] = []
        self._scheduled = False
        self._inflight: set[asyncio.Task[None]] = set()
        self.inflight_bytes = 0
        self.inflight_commands = 0
        self.entries = 0

    def submit(self, command: c.Command, size: int) -> asyncio.Future[Answer]:
        """Order a command of roughly ``size`` bytes; it leaves with everything else that waits at the end of this loop
        iteration.

        The future of its answer fails with OncegateError and never hangs. Raises OVERLOADED; then nothing was proposed.
        """
        if self.inflight_commands >= INFLIGHT_COMMANDS_MAX or self.inflight_bytes + size > INFLIGHT_BYTES_MAX:
            raise OncegateError(Code.OVERLOADED, "too many commands wait for the log", retry_after_ms=50)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append(Waiting(command, size, future))
        self.inflight_bytes += size
        self.inflight_commands += 1
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._scheduled = False
        waiting, self._waiting = self._waiting, []
        start = total = 0
        for at, item in enumerate(waiting):
            if at > start and total + item.size > self._entry_bytes_max:
                self._send(waiting[start:at])
                start, total = at, 0
            total += item.size
        if start < len(waiting):
            self._send(waiting[start:] if start else waiting)

    def _send(self, batch: list[Waiting]) -> None:
        if self._leadership.leads:
            self._propose(batch)
            return
        leader = self._leadership.leader_id
        if leader is None or leader == self._leadership.node_id:
            code = Code.NO_LEADER if leader is None else Code.NOT_READY
            self._fail(batch, OncegateError(code, retry_after_ms=50))
            return
        task = self._loop.create_task(self._forward(leader, batch))
        self._inflight.add(task)
        task.add_done_callback(self._inflight.discard)

    def _propose(self, batch: list[Waiting]) -> None:
        try:
            entry = c.encode_entry(self._clock.stamp_ms(time.monotonic()), [item.command for item in batch])
            future = self._replica.propose(entry)
        except ce.CommandRefused as fault:
            if len(batch) == 1:
                self._fail(batch, translated(fault))
                return
            # Canonical form can be larger than what was received: only the command that is too large is refused.
            for item in batch:
                self._propose([item])
            return
        except Exception as fault:  # noqa: BLE001 - translated for those who wait
            self._fail(batch, translated(fault))
            return
        self.entries += 1
        future.add_done_callback(lambda done: self._applied(batch, done))

    def _applied(self, batch: list[Waiting], done: asyncio.Future[Any]) -> None:
        fault = asyncio.CancelledError() if done.cancelled() else done.exception()
        if fault is not None:
            self._fail(batch, translated(fault))
            return
        self._release(batch)
        for item, result in zip(batch, done.result(), strict=True):
            if item.future.done():
                continue  # the caller has gone away; the operation stands
            try:
                item.future.set_result(answer(item.command, result, self._machine))
            except Exception as refusal:  # noqa: BLE001 - one answer that cannot be made leaves nobody else waiting
                item.future.set_exception(translated(refusal))

    async def _forward(self, leader: str, batch: list[Waiting]) -> None:
        payload = PROPOSE + c.encode_commands([item.command for item in batch])
        try:
            reply = await self._replica.call(leader, payload, timeout_s=FORWARD_TIMEOUT_S)
            answers = _reply_decoder.decode(reply)
            if len(answers) != len(batch):
                raise OncegateError(Code.INTERNAL, "the leader answered another number of commands")
        except Exception as fault:  # noqa: BLE001 - translated for those who wait
            self._fail(batch, translated(fault))
            return
        self._release(batch)
        for item, relayed in zip(batch, answers, strict=True):
            if item.future.done():
                continue
            try:
                item.future.set_result(_received(item.command, relayed))
            except Exception as fault:  # noqa: BLE001 - one answer that cannot be read leaves nobody else waiting
                item.future.set_exception(translated(fault))

    async def serve_forwarded(self, payload: bytes) -> bytes:
        """Answer, at the leader, what a follower forwarded.

        Raises:
            OncegateError: NOT_LEADER when this node does not lead: a command is forwarded once only.
        """
        commands = c.decode_commands(payload)
        if not self._leadership.leads:
            return _encoder.encode([_relayed(OncegateError(Code.NOT_LEADER, retry_after_ms=20))] * len(commands))
        size = len(payload) // max(1, len(commands))
        futures: list[asyncio.Future[Answer]] = []
        refused: dict[int, OncegateError] = {}
        for at, command in enumerate(commands):
            try:
                futures.append(self.submit(command, size))
            except OncegateError as refusal:
                refused[at] = refusal
        done = iter(await asyncio.gather(*futures, return_exceptions=True))
        return _encoder.encode([_relayed(refused[at] if at in refused else next(done)) for at in range(len(commands))])

    def _fail(self, batch: list[Waiting], refusal: OncegateError) -> None:
        self._release(batch)
        for item in batch:
            if not item.future.done():
                item.future.set_exception(refusal)

    def _release(self, batch: list[Waiting]) -> None:
        self.inflight_commands -= len(batch)
        self.inflight_bytes -= sum(item.size for item in batch)


class Relayed(msgspec.Struct, array_like=True):
    """An answer on its way from the leader to the node that forwarded the command."""

    body: Any = None
    commit: int = 0
    created: bool = False
    refusal: Refusal | None = None
    memory_ms: int | None = None


PROPOSE: Final = b"p"
"""First byte of a peer call that carries commands."""
_encoder = msgspec.msgpack.Encoder()
_reply_decoder = msgspec.msgpack.Decoder(list[Relayed])


def _relayed(done: Answer | BaseException) -> Relayed:
    if isinstance(done, Answer):
        return Relayed(done.body, done.commit, done.created, memory_ms=done.memory_ms)
    return Relayed(refusal=packed(translated(done)))


def _received(command: c.Command, relayed: Relayed) -> Answer:
    if relayed.refusal is not None:
        raise unpacked(relayed.refusal)
    return Answer(relayed_body(command, relayed.body), relayed.commit, relayed.created, relayed.memory_ms)
