"""The state machine of one node: how far it is, how old that is, and when it is saved.

Owns the order of applying, in slices of time; the moment at which this node last knew that it had applied all that was
committed; and the joint between the log and a state that keeps itself on disk: where applying begins after a restart,
when a save begins, when the log's head may go. Times are monotonic seconds of this node's own clock.
Read next: :mod:`oncegate.consensus.ports` (``DurableState``), :mod:`oncegate.consensus.log.log_base`,
:mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.core.library import NO_OP_BYTES
from oncegate.consensus.errors import SafetyViolation, StateMissing, StorageError
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.ports import DurableState, SavedPoint, StateMachine

_CHUNK_BYTES = 1024 * 1024

FIRST_APPLIED = 1
"""The library's log begins with an entry of its own, which is applied by definition."""


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


class Freshness:
    """What one node knows of the age of its applied state; pure.

    What counts is when a message came here: its way through the network is not known, the sleep of this node is. A
    message that is handled in the tick that ends a sleep may have come at its beginning.
    """

    __slots__ = ("_applied_index", "_commit_index", "_current_at", "_heard_at", "_sleeps")

    def __init__(self, sleeps_max: int) -> None:
        """Nobody has been heard yet; ``sleeps_max``: how often a leader may sleep before it steps down unconfirmed."""
        self._commit_index = self._applied_index = 0
        self._current_at = self._heard_at = float("-inf")
        self._sleeps: deque[tuple[float, float]] = deque(maxlen=sleeps_max)
        """The latest ends of sleeps, and how long each was."""

    def woke(self, now: float, slept_s: float) -> None:
        """This tick is the first after the node was off the processor for ``slept_s``."""
        self._sleeps.append((now, slept_s))

    def heard(self, commit_index: int, now: float) -> None:
        """The leader of the present term said that everything up to ``commit_index`` is committed."""
        self._commit_index, self._heard_at = commit_index, self._awake(now)

    def applied(self, index: int) -> None:
        """Everything up to ``index`` is applied; call once a tick."""
        if index < self._applied_index:
            self._current_at = float("-inf")  # a snapshot that is older has replaced a damaged state
        self._applied_index = index
        if index >= self._commit_index:
            self._current_at = self._heard_at

    def current_at(self, confirmed_at: float | None) -> float:
        """When the state was current, ``-inf`` if that is not known.

        Args:
            confirmed_at: when a majority last confirmed this node as the leader, sleep excused; None if it does not
                lead, or is not ready to.
        """
        return self._current_at if confirmed_at is None else max(self._current_at, self._awake(confirmed_at))

    def _awake(self, at: float) -> float:
        """Take from ``at`` each sleep that it was moved on by; each sleep of a leader moved it, not the last alone."""
        for woke_at, slept_s in reversed(self._sleeps):
            if at > woke_at:
                break
            at -= slept_s
        return at


def begin_at_saved(machine: StateMachine, log: LibraryLog) -> int:
    """Return the last entry that the state reflects, after the log was made to fit it.

    A state ahead of the log was installed from a snapshot just before a crash: the log restarts behind it.

    A damaged state reflects nothing that counts: it waits at the log's beginning for a snapshot.

    Raises:
        StateMissing: entries between the state and the log are gone; the node must not lead with an older state.
        StorageError: the state contradicts the log, or is of a later term than the ballot knows.
    """
    saved = machine.saved if isinstance(machine, DurableState) else None
    base = log.base
    if isinstance(machine, DurableState) and machine.damaged:
        return max(base.index, FIRST_APPLIED)
    if saved is None:
        if base.index > 0:
            raise StateMissing(f"{log.base_file}: the log begins behind entry {base.index}, but no state is saved")
        return FIRST_APPLIED
    if saved.index < base.index:
        raise StateMissing(
            f"{log.base_file}: the log begins behind entry {base.index}, but the saved state ends at {saved.index}"
        )
    if saved.term > log.getCurrentTerm():
        raise StorageError(f"the saved state knows term {saved.term}, the ballot only {log.getCurrentTerm()}")
    if saved.index > FIRST_APPLIED:
        if saved.index <= log.commit_index and log.term_at(saved.index) != saved.term:
            raise StorageError(
                f"the saved state has term {saved.term} at entry {saved.index}, "
                f"the log has committed it with term {log.term_at(saved.index)}"
            )
        log.reset_to(saved)
    return max(saved.index, FIRST_APPLIED)


class Saving:
    """Saves of one state machine, and the compaction of its log."""

    def __init__(self, config: ReplicaConfig, log: LibraryLog, state: DurableState) -> None:
        self._log = log
        self._state = state
        self._membership = log.membership
        self._node_id = config.node_id
        self._save_bytes = config.save_log_bytes_max
        self._share = 1.0
        self._saved_index = -1
        self._kept_bytes = max(config.journal_segment_bytes, min(config.log_kept_bytes, config.journal_bytes_max // 2))
        self.wanted_from = 0
        """A follower whose state is damaged waits for a snapshot at this entry or a later one."""
        self.needed_from: int | None = None
        """The log from this entry on is needed although it is saved: somebody is about to continue there."""

    def applied(self, index: int) -> None:
        """Everything up to ``index`` is applied: compact what is saved, save what is due."""
        log, state = self._log, self._state
        saved = state.saved
        saved_index = FIRST_APPLIED if saved is None else saved.index
        if not log.base.index <= saved_index <= index:
            raise SafetyViolation(f"a state saved at {saved_index} while {index} is applied behind {log.base.index}")
        if saved is not None and saved_index > log.base.index and log.bytes_used > self._kept_bytes:
            unneeded = saved_index if self.needed_from is None else min(saved_index, self.needed_from - 1)
            log.compact(unneeded, kept_bytes=self._kept_bytes, configuration_at=self._membership.at)
        if index <= saved_index or state.saving:
            return
        if saved_index != self._saved_index:
            self._saved_index = saved_index
            own = saved is not None and log.base.index < saved_index
            self._share = 1.0 if own else first_share(self._node_id, self._membership.current.members)
        bytes_max = int(self._save_bytes * self._share)
        due = log.bytes_after(saved_index) > bytes_max
        asked = self.wanted_from > (0 if saved is None else saved.index)
        if (
            state.unsaved_share >= self._share
            or asked
            or (due and log.bytes_after(saved_index) - log.bytes_after(index) > bytes_max)
        ):
            term = log.term_at(index)
            # A node that joins knows no configuration at first. It waits for one that was in force: or its state, which
            # goes before the log from then on, would say that there are no members.
            if term is not None and self._membership.known_at(index):
                state.begin_save(SavedPoint(index, term, self._membership.at(index)))


def first_share(node_id: str, members: Iterable[str]) -> float:
    """Return how much of what makes a save due makes a node's first one due, so that members save in turn.

    All apply the same log, so each saves once while it grows by the bound; what decides when is the first save. Members
    ``n1``, ``n2``, ``n3`` begin with a third, two thirds and all of the bound, and stay a third apart from then on. A
    node that has its state from a snapshot begins anew: with its sender's it would save at the same moments.
    """
    ids = sorted({node_id, *members})
    return (ids.index(node_id) + 1) / len(ids)
