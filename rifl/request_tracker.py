"""Sequence numbers of one session: which are taken, which still wait for a result. RIFL §3.3 and §4, client half.

Owns: the next sequence number, first incomplete and the window. Must not know what an operation is, how it
travels or what time it is. Server half: :mod:`oncegate.rifl.result_tracker`.

A *place* is what the window counts: one operation, or one range whatever its length. A place is in one of five
states; first incomplete is the start of the oldest place that is not complete.

| state | how it got there | how it leaves |
|---|---|---|
| open | ``take_singles``, ``take_range`` | by one of the four below |
| complete | ``complete``: the result has been received | acknowledged as soon as nothing older is missing |
| abandoned | ``abandon``: nobody waits, and its fate is unknown | ``spend``, ``settle``, ``reopen`` |
| spent | ``spend``: its fate is known and kept, or nobody asks | acknowledged when the window needs its place |
| free | ``release``: surely never applied | its number is given out again |

An abandoned number is never acknowledged: its record, or the seal that takes the place of one, is all that can tell its
fate. For example: 1 is abandoned, 2 to 512 are complete, and the window is 512. There is no room for 513, whoever waits
for it, until the fate of 1 is known to the client, which keeps it, and 1 is spent.

A spent number stays unacknowledged as long as there is room, so that other processes can ask for its outcome too; once
acknowledged, a late copy of it is refused as STALE. A free number must be reused rather than acknowledged: the
server bounds first incomplete by what it has seen (apply rule, row 1), which a run of refusals never raises.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import RANGE_LENGTH_MAX, WINDOW_DEFAULT, WINDOW_MAX, SequenceNumber


class RequestTracker:
    """Gives out sequence numbers and computes first incomplete in amortised constant time.

    Args:
        window: places above first incomplete that may be in use, 1..WINDOW_MAX.
    """

    __slots__ = (
        "_abandoned",
        "_free",
        "_held",
        "_highest",
        "_lengths",
        "_next",
        "_order",
        "_spent",
        "_spread",
        "window",
    )

    def __init__(self, *, window: int = WINDOW_DEFAULT) -> None:
        if not 1 <= window <= WINDOW_MAX:
            raise OncegateError(Code.BAD_REQUEST, f"a window is 1 to {WINDOW_MAX} places")
        self.window = window
        self._next = 1
        self._order: deque[int] = deque()  # starts of all places from first incomplete on, ascending
        self._held: set[int] = set()  # those that are not complete
        self._abandoned: set[int] = set()
        self._spent: set[int] = set()
        self._free: list[int] = []  # heap
        self._lengths: dict[int, int] = {}  # of ranges that are not complete
        self._spread = 0  # sequence numbers that those ranges span beyond one each
        self._highest = 0  # highest number the server is known to have recorded

    @classmethod
    def resumed(cls, *, window: int, highest: int, held: Sequence[int]) -> RequestTracker:
        """Return the tracker of a session that its restarted client continues.

        Args:
            window: the session's.
            highest: highest number that the server has recorded.
            held: single numbers whose results are missing; all others up to ``highest`` count as received, those above
                it were never applied.
        """
        tracker = cls(window=window)
        tracker._highest = highest
        tracker._next = max(highest, *held, 0) + 1
        if held:
            first = min(held)
            tracker._held = set(held)
            if first > highest + window:
                # The earlier process gave up numbers below ``first`` that the server never recorded: it would refuse an
                # ack of all of them (BAD_ACK). A free number at the bound stands for them.
                first = highest + window
                tracker._held.add(first)
                tracker._free.append(first)
            tracker._order.extend(range(first, tracker._next))
        return tracker

    @property
    def first_incomplete(self) -> SequenceNumber:
        """Smallest number whose result has not been received: acknowledges everything below it."""
        return SequenceNumber(self._order[0] if self._order else self._next)

    def has_given(self, sequence: int) -> bool:
        """Whether the number is that of an operation, and not one that an operation may yet get."""
        return 1 <= sequence < self._next and sequence not in self._free

    @property
    def incomplete(self) -> int:
        """Number of places that are not complete."""
        return len(self._held)

    @property
    def room_for_singles(self) -> int:
        """How many single numbers may be taken now.

        The server may not have seen a range that has no result yet. It then counts each number of the range as a place,
        and would refuse a single number above it. This property counts in the same way.
        """
        fresh = self.window - len(self._order) - self._spread
        return (fresh if fresh > 0 else 0) + len(self._free)

    @property
    def room_for_range(self) -> bool:
        """Whether a range may be taken now."""
        return len(self._order) < self.window

    def take_singles(self, count: int) -> Sequence[SequenceNumber]:
        """Give out ``count`` numbers, ascending; free ones first.

        Raises:
            OncegateError: WINDOW_FULL when ``count`` is above :attr:`room_for_singles`; nothing is taken.
        """
        if count > self.room_for_singles:
            raise OncegateError(Code.WINDOW_FULL)
        reused: list[SequenceNumber] = []
        while self._free and len(reused) < count:
            reused.append(SequenceNumber(heappop(self._free)))
        fresh = range(self._next, self._next + count - len(reused))
        self._order.extend(fresh)
        self._held.update(fresh)
        self._next = fresh.stop
        # The numbers of a range are plain integers to the type checker.
        numbers: Sequence[SequenceNumber] = fresh  # type: ignore[assignment]
        return [*reused, *numbers] if reused else numbers

    def take_range(self, length: int) -> SequenceNumber:
        """Give out ``length`` contiguous numbers as one place and return the first.

        Raises:
            OncegateError: WINDOW_FULL without :attr:`room_for_range`; BAD_REQUEST for a length outside
                1..RANGE_LENGTH_MAX. Nothing is taken.
        """
        if not 1 <= length <= RANGE_LENGTH_MAX:
            raise OncegateError(Code.BAD_REQUEST, f"a range has 1 to {RANGE_LENGTH_MAX} operations")
        if not self.room_for_range:
            raise OncegateError(Code.WINDOW_FULL)
        first = self._next
        self._next += length
        self._order.append(first)
        self._held.add(first)
        if length > 1:
            self._lengths[first] = length
            self._spread += length - 1
        return SequenceNumber(first)

    def complete(self, firsts: Sequence[int]) -> None:
        """Note that the results of these places have been received; of a range, all results.

        Raises:
            ValueError: one of them is not open; nothing changes.
        """
        held = self._held
        if not held.issuperset(firsts):
            raise ValueError("a completed number is not open")
        held.difference_update(firsts)
        highest = max(firsts, default=0)
        if self._lengths:
            highest = max([highest, *(first + self._forget_length(first) - 1 for first in firsts)])
        self._highest = max(self._highest, highest)
        self._advance()

    def abandon(self, firsts: Sequence[int]) -> None:
        """Give up waiting for these places, whose fate is unknown; they stay unacknowledged until it is known."""
        if not self._held.issuperset(firsts):
            raise ValueError("an abandoned number is not open")
        self._abandoned.update(firsts)

    def spend(self, firsts: Sequence[int], *, recorded: bool = False) -> None:
        """Let open or abandoned places be acknowledged by :meth:`make_room`, when it needs them.

        Args:
            firsts: which.
            recorded: the server has recorded them, or sealed them.
        """
        if not self._held.issuperset(firsts):
            raise ValueError("a spent number is not open")
        self._abandoned.difference_update(firsts)
        self._spent.update(firsts)
        if recorded:
            self._highest = max([self._highest, *(self.last_of(first) for first in firsts)])

    def may_be_asked(self, sequence: int) -> bool:
        """Whether that number is of a place which is open or abandoned: its fate may become known yet."""
        at = bisect_right(self._order, sequence)
        first = self._order[at - 1] if at else sequence
        open_or_abandoned = first in self._held and first not in self._spent
        return open_or_abandoned and sequence <= self.last_of(first) and self.has_given(sequence)

    def is_abandoned(self, first: int) -> bool:
        """Whether that place's fate is unknown and nobody waits for it."""
        return first in self._abandoned

    def last_of(self, first: int) -> int:
        """Return the last number of the place that begins at ``first`` and is not complete."""
        return first + self._lengths.get(first, 1) - 1

    def reopen(self, first: int) -> bool:
        """Wait for an abandoned place again; False, and nothing changes, for any other place."""
        if first not in self._abandoned:
            return False
        self._abandoned.discard(first)
        return True

    def settle(self, first: int) -> bool:
        """Note that the caller of an abandoned or spent place knows its fate; False, without effect, for another."""
        if first not in self._abandoned and first not in self._spent:
            return False
        self._abandoned.discard(first)
        self._spent.discard(first)
        self._held.discard(first)
        self._highest = max(self._highest, first + self._forget_length(first) - 1)
        self._advance()
        return True

    def release(self, firsts: Sequence[int]) -> None:
        """Give back numbers that were surely never applied, to be used again.

        A range can only be given back while it is the newest place; another one is spent.
        """
        if not self._held.issuperset(firsts):
            raise ValueError("a released number is not open")
        for first in sorted(firsts, reverse=True):
            if self._order[-1] == first:
                self._order.pop()
                self._held.discard(first)
                self._forget_length(first)
                self._next = first
            elif first in self._lengths:
                self._spent.add(first)
            else:
                heappush(self._free, first)

    def make_room(self, singles: int = 1, *, told_full: bool = False) -> None:
        """Acknowledge spent and free numbers at the bottom of a full window, oldest first.

        Stops one window above the highest number that the server has recorded: it would refuse to acknowledge more.

        Args:
            singles: how many single numbers are to have room.
            told_full: the server has said WINDOW_FULL. A range that reached it in pieces takes one place a piece there,
                but one place here: one number more is acknowledged, although there seems to be room.
        """
        while self._order and (told_full or not self.room_for_range or self.room_for_singles < singles):
            first = self._order[0]
            free = bool(self._free) and self._free[0] == first
            if not free and first not in self._spent:
                return
            if first + self._lengths.get(first, 1) > self._highest + self.window:
                return
            if free:
                heappop(self._free)
            self._spent.discard(first)
            self._held.discard(first)
            self._forget_length(first)
            self._advance()
            told_full = False

    def _advance(self) -> None:
        order, held = self._order, self._held
        while order and order[0] not in held:
            order.popleft()

    def _forget_length(self, first: int) -> int:
        length = self._lengths.pop(first, 1)
        self._spread -= length - 1
        return length
