"""What this node remembers, until it restarts: the requests that reached it lately, and what each log entry did.

Owns: two bounded memories. :mod:`oncegate.gateway.explain.search` finds attempts in the log; :class:`AttemptLog` adds
those that never reached it, and the node at which each attempt arrived. :class:`VerdictLog` has the commit number
before each of the newest entries, and the verdicts of the few that were not executed as a whole; it knows nothing of
what entries hold. Read next: :mod:`oncegate.gateway.explain.timeline`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from oncegate.gateway.answers import Answer
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.results import AppliedPart, Cascaded, Ended, Endings, Operated, PartVerdict, Ranged
from oncegate.gateway.machine.transactions import Took, Transacted
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.ids import SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT
from oncegate.rifl.range_rule import ReplayPart
from oncegate.rifl.rule import Applied, OpVerdict, Rejected, Replayed

ATTEMPTS_MAX: Final = 32_768
FOUND_MAX: Final = 256
"""Attempts handed to whoever asks, the newest."""
ANSWERED: Final = "answered"
GIVEN_UP: Final = "given up"
ENTRIES_MAX: Final = 1 << 17
"""Entries whose commit number is remembered; 16 bytes each."""
SPOKEN_MAX: Final = 32_768
"""Operations whose verdict is remembered by itself."""

EXECUTED: Final = "executed"
REFUSED: Final = "refused"
DUPLICATE: Final = "duplicate suppressed"
UNKNOWN: Final = "not remembered"


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One HTTP request with operations ``first`` to ``last`` of a session, or with keys mapped to these numbers.

    ``came_ms`` and ``took_ms`` are milliseconds of the node's wall clock and of its answer; ``ended`` is
    ``answered``, the code of the problem that it got, or ``given up``: its caller went away before.
    """

    came_ms: int
    took_ms: int
    client_id: int
    first: int
    last: int
    ended: str


class AttemptLog:
    """The last ``ATTEMPTS_MAX`` attempts at this node. One thread."""

    def __init__(self, attempts_max: int = ATTEMPTS_MAX) -> None:
        self._attempts: deque[Attempt] = deque(maxlen=attempts_max)

    def note(self, attempt: Attempt) -> None:
        """Remember an attempt that has been answered."""
        self._attempts.append(attempt)

    def ended(
        self, command: c.AnyOperate | c.Range, came_s: float, now_s: float, how: str, answer: Answer | None
    ) -> None:
        """Remember the outcome of the attempt to order ``command``; times are seconds of the wall clock.

        Keys that were not accepted have no number, and are not remembered.
        """
        client_id: int = KEYS_CLIENT
        if isinstance(command, c.Keyed):
            sequences = [] if answer is None else [one.sequence for one in answer.body.results if one.sequence]
        elif isinstance(command, c.Range):
            client_id, count = command.client_id, len(command.fingerprints) // FINGERPRINT_BYTES
            sequences = [command.first, SequenceNumber(command.first + count - 1)]
        else:
            client_id, sequences = command.client_id, [op.sequence for op in command.ops]
        if sequences:
            came_ms, took_ms = int(came_s * 1000), int((now_s - came_s) * 1000)
            self.note(Attempt(came_ms, took_ms, client_id, min(sequences), max(sequences), how))

    def of(self, client_id: int, sequences: frozenset[int]) -> list[Attempt]:
        """Return the attempts that carried one of these operations, oldest first, the newest ``FOUND_MAX``."""
        ordered = [*sorted(sequences), 1 << 64]  # the last one is in no attempt
        ours = (attempt for attempt in self._attempts if attempt.client_id == client_id)
        found = [one for one in ours if ordered[bisect_left(ordered, one.first)] <= one.last]
        return found[-FOUND_MAX:]


class Did(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of one attempt in the log: a phrase, and the commit number, 0 if there is none.

    ``number`` is what an idempotency key was mapped to: such an operation brings no sequence number along. ``writes``
    of an applied transaction have commit numbers from ``commit`` on; 1 of any other operation. ``taken``: the keys of
    the rows that its last write has taken, as they are since.
    """

    what: str
    commit: int = 0
    number: int = 0
    writes: int = 1
    taken: tuple[str, ...] = ()


class VerdictLog:
    """Filled as entries are applied. One thread."""

    def __init__(self, entries_max: int = ENTRIES_MAX, spoken_max: int = SPOKEN_MAX) -> None:
        self._entries_max = entries_max
        self._spoken_max = spoken_max
        self._index = array("q", bytes(8 * entries_max))
        self._commit = array("q", bytes(8 * entries_max))
        self._spoken: dict[int, dict[int, Any]] = {}
        self._spoken_size = 0

    def applied(self, index: int, commit: int, results: list[Any]) -> None:
        """Remember entry ``index``: ``commit`` was the commit number before it, ``results`` is what it gave."""
        slot = index % self._entries_max
        self._index[slot], self._commit[slot] = index, commit
        spoken: dict[int, Any] | None = None
        for number, result in enumerate(results):
            kind = type(result)
            if kind is Operated and result.keyed:  # the log does not say which number a key was mapped to
                spoken = spoken or {}
                spoken[number] = _kept(result.verdicts)
            elif kind is Operated:
                for verdict in result.verdicts:
                    if type(verdict) is AppliedPart:
                        continue
                    if type(verdict) is Applied:
                        remembered = verdict.record.result
                        if remembered is None or (remembered.refusal is None and _writes(remembered) == 1):
                            continue
                    spoken = spoken or {}
                    spoken[number] = [did for verdict in result.verdicts for did in _of_verdict(verdict)]
                    break
            elif kind is Ranged and any(type(part) is not AppliedPart for part in result.parts):
                spoken = spoken or {}
                spoken[number] = [(part.first, part.last, *_of_part(part)) for part in result.parts]
            elif kind is Cascaded and result.replayed:
                spoken = spoken or {}
                spoken[number] = [(1, result.operations, DUPLICATE, result.commit)]
            elif kind is Endings and result.rows:
                spoken = spoken or {}
                spoken[number] = result.rows
            elif kind is OncegateError:
                spoken = spoken or {}
                spoken[number] = [(1, c.OPERATIONS_MAX, f"{REFUSED}: {result.code}", 0)]
        if spoken is not None:
            self._spoken[index] = spoken
            self._spoken_size += sum(map(len, spoken.values()))
            while self._spoken_size > self._spoken_max:
                oldest = next(iter(self._spoken))
                self._spoken_size -= sum(map(len, self._spoken.pop(oldest).values()))
                slot = oldest % self._entries_max
                if self._index[slot] == oldest:  # without its verdicts it would seem executed as a whole
                    self._index[slot] = 0

    def of_operation(self, index: int, command: int, position: int, before: int) -> Did:
        """What became of operation ``position`` of a command; ``before`` operations of its entry were executed before.

        ``before`` counts only while every command of the entry so far was executed whole, else it is -1.
        """
        spoken = self._told(index, command)
        if spoken is not None:
            did: Did = spoken[position]
            return did
        return self._plain(index, before + position if before >= 0 else -1)

    def of_range(self, index: int, command: int, first: int, sequence: int, before: int) -> Did:
        """The same for operation ``sequence`` of a range that begins at ``first``, or of a cascade, from 1."""
        spoken = self._spoken.get(index, {}).get(command)
        if spoken is not None:
            for low, high, what, commit in spoken:
                if low <= sequence <= high:
                    return Did(what, commit + sequence - low if commit else 0)
        return self._plain(index, before + sequence - first if before >= 0 else -1)

    def ends(self, index: int, command: int) -> list[Ended] | None:
        """Return the rows that a command without operations has ended; None if that is not remembered."""
        if self._index[index % self._entries_max] != index:
            return None
        told = self._spoken.get(index, {}).get(command, ())
        return [one for one in told if type(one) is Ended]  # a refused one has ended none

    def has_ended(self, index: int, table: str, key: str) -> bool:
        """Tell whether an entry is remembered to have ended a row."""
        told = self._spoken.get(index, {}).values()
        return any(
            type(one) is Ended and one.table == table and key in (one.key, one.then)
            for spoken in told
            for one in spoken
        )

    def has_taken(self, index: int) -> bool:
        """Tell whether an entry is remembered to have taken rows: it names their prefixes, and not their keys."""
        told = self._spoken.get(index, {}).values()
        return any(type(one) is Did and bool(one.taken) for spoken in told for one in spoken)

    def executed(self, index: int, command: int, operations: int) -> int:
        """How many commit numbers a command of so many operations took; -1 if that is not known."""
        spoken = self._told(index, command)
        return operations if spoken is None else _taken(spoken)

    def _told(self, index: int, command: int) -> list[Any] | None:
        spoken: list[Any] | None = self._spoken.get(index, {}).get(command)
        if spoken and type(spoken[0]) is Applied:
            return [_of_operation(verdict, keyed=True) for verdict in spoken]
        return spoken

    def _plain(self, index: int, before: int) -> Did:
        slot = index % self._entries_max
        if self._index[slot] != index:
            return Did(UNKNOWN)
        return Did(EXECUTED, self._commit[slot] + before + 1 if before >= 0 else 0)


def _kept(verdicts: list[OpVerdict]) -> list[OpVerdict] | list[Did]:
    """Return what is kept of operations under keys: their verdicts, if all are plain ones and so have no result."""
    for verdict in verdicts:
        if type(verdict) is not Applied or verdict.record.result is not None:
            return [_of_operation(verdict, keyed=True) for verdict in verdicts]
    return verdicts


def _of_verdict(verdict: OpVerdict | AppliedPart) -> Iterator[Did]:
    if isinstance(verdict, AppliedPart):
        yield from (Did(EXECUTED, verdict.commit + at) for at in range(verdict.last - verdict.first + 1))
    else:
        yield _of_operation(verdict, keyed=False)


def _of_operation(verdict: OpVerdict, *, keyed: bool) -> Did:
    number = verdict.sequence if keyed else 0
    if isinstance(verdict, Rejected):
        return Did(f"{REFUSED}: {verdict.refusal.code}", 0, number)
    record = verdict.record
    if isinstance(verdict, Replayed):
        return Did(DUPLICATE, record.commit, number, _writes(record.result), _keys_taken(record.result))
    refusal = None if record.result is None else record.result.refusal
    more = _writes(record.result), _keys_taken(record.result)
    return Did(EXECUTED if refusal is None else f"{REFUSED}: {refusal}", record.commit, number, *more)


def _writes(result: Any) -> int:
    return result.commits if isinstance(result, Transacted) else 1


def _keys_taken(result: Any) -> tuple[str, ...]:
    return tuple([row.key for row in result.taken]) if isinstance(result, Took) else ()


def _of_part(part: PartVerdict) -> tuple[str, int]:
    if isinstance(part, AppliedPart):
        return (EXECUTED, part.commit)
    if isinstance(part, ReplayPart):
        return (DUPLICATE, part.commit)
    return (f"{REFUSED}: {part.refusal.code}", 0)


def _taken(spoken: list[Any]) -> int:
    if spoken and type(spoken[0]) is Ended:
        return sum([one.commits for one in spoken])
    if spoken and not isinstance(spoken[0], Did):
        return sum(high - low + 1 for low, high, what, _ in spoken if what == EXECUTED)
    # A refusal that is a result of its own took a number too; a duplicate's number is its original's.
    return sum(did.writes for did in spoken if did.commit and did.what != DUPLICATE)
