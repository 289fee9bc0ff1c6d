"""Raising the feature level: which levels the members' builds know, asked of each of them.

Owns: the question between nodes, that nobody is left behind, and the level of a new cluster
(docs/decisions/0037-level-of-a-new-cluster.md). What a level means: :mod:`oncegate.gateway.machine.levels`. Must not
know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.replica.replica import Replica
from oncegate.gateway.machine import levels
from oncegate.gateway.machine.commands import RaiseLevel
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.errors import Code, OncegateError

LEVELS: Final = b"v"
"""First byte of a peer call that asks which levels a node's build knows; a build without levels refuses it."""
ASK_S: Final = 2.0
FOUNDING_S: Final = 30.0
"""For so long a node that began with an empty state takes the level for one that is about to rise."""
READY_AFTER_S: Final = 10.0
"""For so long, of these, a node of a cluster in which nobody has written yet is not ready: a member may be slow to
start, and is asked again and again."""
_AGAIN_S: Final = 0.2
"""How soon it is, as long as others wait for that."""
log = logging.getLogger(__name__)


class KnownLevels(msgspec.Struct, array_like=True, frozen=True):
    """The feature levels at which a build serves, both inclusive."""

    lowest: int
    highest: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KnownLevels).decode


def serve() -> bytes:
    """Answer a member that asks."""
    return _encode(KnownLevels(levels.FIRST, levels.NEWEST))


async def check_all_know(level: int, replica: Replica, others: Callable[[], list[str]]) -> None:
    """Ask every other member whether its build knows a level.

    A member that is started with an older build afterwards ends at the first entry that it does not know.

    Raises:
        OncegateError: BAD_REQUEST if this build does not know it, CONFLICT if a member does not, or does not answer.
    """
    if not levels.FIRST <= level <= levels.NEWEST:
        raise OncegateError(Code.BAD_REQUEST, f"this build knows the feature levels {levels.FIRST} to {levels.NEWEST}")
    asked = sorted(others())
    highest = await asyncio.gather(*(_highest(replica, node_id) for node_id in asked))
    behind = [f"{node_id} ({known})" for node_id, known in zip(asked, highest, strict=True) if _below(known, level)]
    if behind:
        detail = f"not every member is known to know feature level {level}: {', '.join(behind)}"
        raise OncegateError(Code.CONFLICT, detail)


class Founding:
    """Brings a new cluster to the newest level, by its leader, once every member is known to know it.

    A cluster is new while it has no table and no commit number, and stays so for the process that met it so: a member
    that came too late to be asked in time is asked again. A cluster that was there before is left at its level.

    Args:
        propose: orders a command of the node's own.
    """

    def __init__(
        self, replica: Replica, machine: Machine, others: Callable[[], list[str]], propose: Callable[[RaiseLevel], None]
    ) -> None:
        self._replica = replica
        self._machine = machine
        self._others = others
        self._propose = propose
        self._new = self._asked = False
        self._next_s = 0.0
        self._until_s: float | None = None
        self._ready_s = float("-inf")
        self._told = ""
        self._asking: asyncio.Task[None] | None = None

    def begin(self, now_s: float) -> None:
        """Note what state a node starts with; its log is not applied yet."""
        self._until_s = now_s + (FOUNDING_S if self._is_empty() else 0.0)
        self._ready_s = now_s + READY_AFTER_S

    def is_under_way(self, now_s: float) -> bool:
        """Whether the leader may still be about to raise the level, as far as this node can tell; any node asks."""
        machine = self._machine
        soon = self._until_s is not None and now_s < self._until_s
        return machine.level < levels.NEWEST and (soon or not machine.identity)

    def is_awaited(self, now_s: float) -> bool:
        """Whether this node is not ready yet because the level is about to rise: whoever is told that it is may order
        anything. A cluster in which somebody has written is no new one, and waits for nothing.
        """
        return self._machine.level < levels.NEWEST and self._is_unwritten() and now_s < self._ready_s

    def _is_empty(self) -> bool:
        return self._is_unwritten() and not self._machine.identity

    def _is_unwritten(self) -> bool:
        return not (self._machine.commit or self._machine.tables)

    def look(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Ask, if it is time to; only the leader calls this. Returns whether the cluster may get its identity now.

        The identity comes after the answers, so that a cluster which has one has the level of its founders.
        """
        machine = self._machine
        self._new = self._new or self._is_empty()
        if machine.level >= levels.NEWEST or not self._new:
            return True
        if self._asking is None and loop.time() >= self._next_s:
            now_s = loop.time()
            self._next_s = now_s + (_AGAIN_S if self.is_awaited(now_s) else ASK_S)
            self._asking = loop.create_task(self._ask())
        return self._asked

    async def _ask(self) -> None:
        try:
            await check_all_know(levels.NEWEST, self._replica, self._others)
            self._propose(RaiseLevel(levels.NEWEST))
        except OncegateError as refusal:
            if refusal.detail != self._told:
                self._told = refusal.detail
                log.info("the new cluster stays at feature level %d for now: %s", self._machine.level, refusal.detail)
        finally:
            self._asked, self._asking = True, None

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)


def _below(known: int | str, level: int) -> bool:
    return not isinstance(known, int) or known < level


async def _highest(replica: Replica, node_id: str) -> int | str:
    """Return the highest level that a member's build knows, or why that is not known."""
    try:
        return _decode(await replica.call(node_id, LEVELS, timeout_s=ASK_S)).highest
    except ConsensusError as fault:
        return "an earlier build" if fault.code == "CALL_FAILED" else "no answer"
    except msgspec.DecodeError:
        return "no answer"
