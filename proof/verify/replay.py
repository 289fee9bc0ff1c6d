"""Replaying a log in memory, and what every applied entry must give.

Owns: a machine on its way through committed entries, the batches it seals on the way, and that commit numbers come
without a gap. Read next: :mod:`oncegate.proof.verify.records`, :mod:`oncegate.proof.verify.batches`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import google_crc32c
import msgspec

from oncegate.consensus.log.entries import Entry
from oncegate.flows import segment
from oncegate.flows.chunks import SealedBatch
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import AppliedPart, Operated, Ranged
from oncegate.proof.verify.findings import Difference
from oncegate.proof.verify.node_files import NodeFiles, is_command
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.rule import Applied


class Built(NamedTuple):
    """A batch as the log gives it: length and CRC32C of its payload, and the entry that sealed it."""

    length_bytes: int
    crc: int
    entry: int


class Replay:
    """A machine and the entries it has applied.

    Args:
        node: whose log it is, for words.
        machine: as it was saved, or empty.
        index: the entry it stands at.
    """

    def __init__(self, node: NodeFiles, machine: Machine, index: int) -> None:
        self.node = node
        self.machine = machine
        self.index = index
        self.built: dict[tuple[str, int], Built] = {}

    def run(self, entries: Iterable[Entry]) -> None:
        """Apply entries that follow; raises Difference for one that cannot be applied or that counts wrongly."""
        machine = self.machine
        for command, index, term in entries:
            if is_command(command):
                before = int(machine.commit)
                try:
                    results = machine.apply(index, term, command)
                except msgspec.DecodeError as fault:
                    raise self._difference(index, "an entry of the machine", fault) from None
                except InvariantViolation as broken:
                    raise self._difference(index, "records that say of each operation: executed once", broken) from None
                except Exception as fault:  # noqa: BLE001 - apply is total: whatever comes out of it is a finding
                    raise self._difference(index, "an entry that can be applied", repr(fault)) from None
                for commit in _new_commits(results):
                    before += 1
                    if commit != before:
                        raise self._difference(index, f"commit number {before}", commit)
                if before != machine.commit:
                    raise self._difference(index, f"{machine.commit} as the newest commit number", before)
                for batch in machine.take_sealed():
                    self._build(batch, index)
                machine.flows.take_dropped()
            self.index = index

    def _build(self, batch: SealedBatch, index: int) -> None:
        payload = segment.build(batch.chunks, batch.flow, batch.table, batch.number)
        self.built[batch.flow, batch.number] = Built(len(payload), google_crc32c.value(payload), index)

    def _difference(self, index: int, expected: object, found: object) -> Difference:
        return Difference(self.node.node, self.node.path / "raft", f"entry {index}", expected, found)


def _new_commits(results: Iterable[object]) -> Iterator[int]:
    """Yield the commit numbers that an entry gave out, in order."""
    for result in results:
        if isinstance(result, Operated):
            for verdict in result.verdicts:
                if isinstance(verdict, Applied):
                    yield verdict.record.commit
        elif isinstance(result, Ranged):
            for part in result.parts:
                if isinstance(part, AppliedPart):
                    yield from range(part.commit, part.commit + part.last - part.first + 1)
