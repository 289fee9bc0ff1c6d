"""Message filters that keep PySyncObj 0.3.17 inside Raft; pure: no I/O, no clock, no library.

Each function is one repair. B1: a follower keeps what already matches, and the leader's next index is never
moved back by an acknowledgement. B2: a snapshot chunk does not move the commit index. B3, B4: an
acknowledgement counts only in the term and on the connection it belongs to.
Read next: :mod:`oncegate.consensus.core.message_handling`, which applies them, and tests/consensus/test_repairs.py,
which shows the library with and without each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from oncegate.consensus.errors import ProtocolError, SafetyViolation
from oncegate.consensus.messages import Ack, Append
from oncegate.consensus.ports import SavedPoint


class LogView(Protocol):
    """What the follower's filter must know of the local log."""

    base: SavedPoint
    last_index: int
    last_term: int
    commit_index: int

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``, None when there is none."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """An append as the library may see it, and the acknowledgement to send once it is flushed."""

    append: Append
    success: bool
    index: int
    """Last matched entry, or, refused, the entry to send next."""


def admit_append(append: Append, log: LogView) -> Admitted:
    """B1: drop the part that already matches, so that the library never removes a matching suffix (Raft §5.3).

    The library removes everything behind ``prev_index`` before it adds entries, also when the message is
    an old or repeated one. After this filter, whatever lies behind ``prev_index`` really conflicts.
    The commit index is capped at the last entry known to match (Raft figure 2, AppendEntries step 5).

    Raises:
        SafetyViolation: the leader contradicts a committed entry.
        ProtocolError: the entries are not consecutive.
    """
    prev_index = append.prev_index
    entries = append.entries
    if entries and entries[-1][1] != prev_index + len(entries):
        raise ProtocolError("entries of an append are not consecutive")
    base = log.base
    if prev_index < base.index:
        # Everything up to the base is committed, so it is the leader's too (Leader Completeness, Raft §5.4.3).
        last = prev_index + len(entries)
        if last <= base.index:
            seen = Append(append.term, log.last_index, log.last_term, min(append.commit, base.index), [])
            return Admitted(seen, success=True, index=last)
        gone = base.index - prev_index
        if entries[gone - 1][2] != base.term:
            raise SafetyViolation(f"entry {base.index} is committed with term {base.term}, the leader has another")
        append = Append(append.term, base.index, base.term, append.commit, entries[gone:])
        prev_index, entries = append.prev_index, append.entries
    term = log.term_at(prev_index)
    if term != append.prev_term or term is None:
        if term is not None and prev_index <= log.commit_index:
            raise SafetyViolation(
                f"entry {prev_index} is committed with term {term}, the leader has {append.prev_term}"
            )
        # Everything up to the commit index matches any leader's log (Leader Completeness, Raft §5.4.3), so
        # one refusal finds the place, however long the conflicting tail is.
        hint = log.last_index + 1 if term is None else log.commit_index + 1
        refused = Append(append.term, prev_index, append.prev_term, log.commit_index, [])
        return Admitted(refused, success=False, index=hint)
    matched = prev_index
    known = 0
    if entries and entries[0][1] <= log.last_index:
        for _, index, entry_term in entries:
            if log.term_at(index) != entry_term:
                break
            matched = index
            known += 1
    if known == len(entries):
        # Nothing new: the library is shown the end of the log, behind which there is nothing to remove.
        seen = Append(append.term, log.last_index, log.last_term, min(append.commit, matched), [])
        return Admitted(seen, success=True, index=matched)
    if known:
        prev_index = matched
        append = Append(append.term, matched, entries[known - 1][2], append.commit, entries[known:])
    if prev_index < log.commit_index:
        raise SafetyViolation(f"entry {prev_index + 1} is committed, the leader replaces it")
    last = prev_index + len(append.entries)
    if append.commit > last:
        append = Append(append.term, append.prev_index, append.prev_term, last, append.entries)
    return Admitted(append, success=True, index=last)


def without_entries(admitted: Admitted, log: LogView) -> Admitted:
    """The same append from a leader whose entries there is no room for: what matches before them is acknowledged."""
    matched = admitted.append.prev_index
    commit = min(admitted.append.commit, max(matched, log.commit_index))
    seen = Append(admitted.append.term, log.last_index, log.last_term, commit, [])
    return Admitted(seen, success=True, index=matched)


def ack_counts(ack: Ack, *, term: int, epoch: int | None) -> bool:
    """B3, B4: an acknowledgement counts only for the leader's own term and the peer's present connection."""
    return ack.term == term and ack.epoch == epoch


def next_index_after_ack(next_index: int, matched: int) -> int:
    """B1: an acknowledgement moves the next index forward only; what is in flight is not sent again."""
    return max(next_index, matched + 1)


def cap_snapshot_chunk(message: Mapping[str, Any], commit_index: int) -> Mapping[str, Any]:
    """B2, B8: a message that carries a snapshot chunk never moves the commit index over an unmatched tail."""
    if "serialized" not in message or message["commit_index"] <= commit_index:
        return message
    return {**message, "commit_index": commit_index}
