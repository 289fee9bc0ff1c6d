"""Applying committed entries, in order, in slices of time.

Owns how far the state machine is. Read next: :mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

from collections.abc import Callable

from oncegate.consensus.core.library import NO_OP_BYTES
from oncegate.consensus.errors import StorageError
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.ports import DurableState, StateMachine

_CHUNK_BYTES = 1024 * 1024


class Applier:
    """Feeds one state machine from one log."""

    def __init__(
        self, machine: StateMachine, log: Journal, clock: Callable[[], float], slice_s: float, applied_index: int
    ) -> None:
        """``applied_index`` is the last entry that the machine reflects already."""
        self._machine = machine
        self._durable = machine if isinstance(machine, DurableState) else None
        self._log = log
        self._clock = clock
        self._slice_s = slice_s
        self.applied_index = applied_index

    @property
    def damaged(self) -> bool:
        """See :attr:`oncegate.consensus.ports.DurableState.damaged`."""
        return self._durable is not None and self._durable.damaged

    def apply_to(self, commit_index: int, on_applied: Callable[[int, object], None]) -> bool:
        """Apply entries for at most one slice of time; returns whether some are left.

        After a restart a whole log may be due: sockets and heartbeats get their turn between slices. An exception out
        of ``apply`` goes through: the entry is not retried, the node ends. If it comes upon damage of the state,
        nothing is applied from then on, until a snapshot replaces all of the state.
        """
        if self.applied_index >= commit_index or self.damaged:
            return False
        stop_at = self._clock() + self._slice_s
        apply = self._machine.apply
        configurations = self._log.membership.indexes
        while True:
            for command, index, term in self._log.entries(self.applied_index + 1, commit_index, bytes_max=_CHUNK_BYTES):
                own = len(command) <= NO_OP_BYTES or index in configurations
                try:
                    result = None if own else apply(index, term, command)
                except StorageError:
                    if self._durable is None or not self._durable.damaged:
                        raise
                    return False
                self.applied_index = index
                on_applied(index, result)
            if self.applied_index >= commit_index:
                return False
            if self._clock() >= stop_at:
                return True
