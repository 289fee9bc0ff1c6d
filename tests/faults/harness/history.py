"""What clients saw, and whether the nodes agree with it.

The checker knows nothing of Raft. Positions in the log are the order of everything, so a linearizable read is right
when its position is not below that of any command acknowledged before the read began.
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Acknowledged(NamedTuple):
    """Commands ``first`` … ``first + commands - 1``, all in the entry at ``position``; times are monotonic seconds."""

    sent_at: float
    at: float
    position: int
    first: int
    commands: int


class ReadDone(NamedTuple):
    """A linearizable read."""

    began_at: float
    at: float
    position: int
    node: str


class Violation(AssertionError):
    """A promise is broken."""


@dataclass
class History:
    """What one or more clients issued and were told."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    refused: list[range] = field(default_factory=list)
    """Told: not applied."""
    unknown: list[range] = field(default_factory=list)
    """Told nothing, or: unknown. A late answer may still acknowledge them."""
    reads: list[ReadDone] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    """Errors by their code, of commands."""
    issued: int = 0
    """Ids 1 … ``issued`` were handed out."""

    @property
    def commands(self) -> int:
        """How many commands were acknowledged."""
        return sum(ack.commands for ack in self.acknowledged)

    def longest_gap(self, begin: float, end: float) -> tuple[float, float]:
        """The longest time without an acknowledgement between two moments, in seconds, and when it began."""
        times = [begin, *sorted(ack.at for ack in self.acknowledged if begin < ack.at < end), end]
        return max((later - earlier, earlier) for earlier, later in itertools.pairwise(times))

    def latencies(self, begin: float, end: float) -> list[float]:
        """Seconds from sending to acknowledgement, one a command."""
        return [ack.at - ack.sent_at for ack in self.acknowledged if begin < ack.at < end for _ in range(ack.commands)]


def check(history: History, dumps: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare the history with the state of every node.

    Raises:
        Violation: nodes differ, or an acknowledged command is missing, elsewhere or twice, or a refused one or one that
            nobody sent is there, or a read was stale.
    """
    states = {node: (dump["applied_index"], dump["digest"]) for node, dump in dumps.items()}
    if len(set(states.values())) != 1:
        raise Violation(f"the nodes differ: {states}")
    dump = next(iter(dumps.values()))
    ids, indexes = array("Q"), array("Q")
    ids.frombytes(dump["ids"])
    indexes.frombytes(dump["indexes"])
    where = dict(zip(ids, indexes, strict=True))
    if len(where) != len(ids):
        raise Violation(f"{len(ids) - len(where)} commands were applied twice")
    for ack in history.acknowledged:
        for number in range(ack.first, ack.first + ack.commands):
            if where.get(number) != ack.position:
                raise Violation(f"command {number} was acknowledged at {ack.position}, and is at {where.get(number)}")
    for numbers in history.refused:
        for number in numbers:
            if number in where:
                raise Violation(f"command {number} was refused, and is at {where[number]}")
    if any(not 1 <= number <= history.issued for number in where):
        raise Violation("a command is there that nobody sent")
    check_reads(history)


def check_reads(history: History) -> None:
    """Check that no read was stale; raises :class:`Violation`."""
    times: list[float] = []
    highest: list[int] = []
    for ack in sorted(history.acknowledged, key=lambda ack: ack.at):
        times.append(ack.at)
        highest.append(max(ack.position, highest[-1] if highest else 0))
    for read in history.reads:
        before = bisect.bisect_left(times, read.began_at)
        if before and read.position < highest[before - 1]:
            raise Violation(f"{read.node} answered a read with {read.position}, {highest[before - 1]} was acknowledged")
