"""The doubts of a session: numbers whose callers do not know what became of their writes. Pure.

Owns: which numbers are in doubt, which are being asked about, and what the window may do with them. Must not know
asyncio or HTTP. What is known: :mod:`oncegate.gateway.client.fates`. Who asks: :mod:`oncegate.gateway.client.learning`.

**The rule.** A number whose fate its caller has not been told is never acknowledged unless the fate is known here.

| state | how it got there | the tracker's place |
|---|---|---|
| in doubt | ``gave_up``: deadline or cancellation, and no verdict | abandoned: never acknowledged |
| being asked | ``ask`` | abandoned |
| known | ``heard``: its answer came late; ``learned``: somebody asked | spent: acknowledged when the window needs it |
| told | ``told``: the application asked | complete, if it is no range |
| lost | ``lose``: the cluster has forgotten it, or another process owns it | spent |

A range is one place, and each of its rows has a fate of its own. The place is in doubt as long as one of its rows is.
For example: rows 5 to 8 are in doubt, and a part of them was answered: 5 and 6 are known at once, 7 and 8 are asked
about, and with the fate of 8 the place 5 is spent.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from oncegate.gateway.client.fates import Fates
from oncegate.gateway.client.results import Resolution, RowsPart
from oncegate.rifl.ids import ClientId, Epoch, RequestId, SequenceNumber
from oncegate.rifl.request_tracker import RequestTracker

UNWANTED_MIN: Final = 1_024
"""Forgotten numbers that are remembered before it is looked which of them may still become known."""


class Question(NamedTuple):
    """A request to ask about, and the epoch under which it was sent."""

    request: RequestId
    epoch: Epoch


class _Place(msgspec.Struct, gc=False):
    """A place in doubt: its numbers, and those of them that are not known."""

    epoch: Epoch
    first: int
    last: int
    unknown: set[int]


class Doubts:
    """What a session does not know, and what it knows and has told nobody.

    Args:
        client_id, epoch, tracker: the session's; :meth:`go_on` replaces them.
        fates: where fates are kept.
    """

    def __init__(self, client_id: ClientId, epoch: Epoch, tracker: RequestTracker, fates: Fates) -> None:
        self.fates = fates
        self._client_id = client_id
        self._epoch = epoch
        self._tracker = tracker
        self._firsts: dict[ClientId, list[int]] = {}
        self._places: dict[tuple[ClientId, int], _Place] = {}
        self._asked: set[RequestId] = set()
        self._unwanted: set[RequestId] = set()
        self._unwanted_max = UNWANTED_MIN

    def __len__(self) -> int:
        """Return the number of places in doubt."""
        return len(self._places)

    @property
    def of_this_session(self) -> bool:
        """Whether a place of the present session is in doubt, rather than of one that was lost."""
        return self._client_id in self._firsts

    def go_on(self, client_id: ClientId, epoch: Epoch, tracker: RequestTracker) -> None:
        """Note that the session was opened anew; what is in doubt in the one before stays so."""
        self._client_id, self._epoch, self._tracker = client_id, epoch, tracker

    def gave_up(self, firsts: Iterable[int]) -> None:
        """Take open places of the session whose callers were told that the outcome is unknown, or are gone."""
        for first in firsts:
            self._tracker.abandon([first])
            last = self._tracker.last_of(first)
            known = self.fates.find
            unknown = {one for one in range(first, last + 1) if known(_id(self._client_id, one)) is None}
            if not unknown:
                self._tracker.spend([first], recorded=True)
                continue
            insort(self._firsts.setdefault(self._client_id, []), first)
            self._places[self._client_id, first] = _Place(self._epoch, first, last, unknown)

    def heard(
        self, firsts: Sequence[int], fates: Iterable[tuple[int, Resolution]] = (), rows: Iterable[RowsPart] = ()
    ) -> None:
        """Keep fates of the session that came when nobody waited for them.

        Args:
            firsts: open places that have all their fates now, whoever was told.
            fates: numbers, each with its fate.
            rows: parts of ranges that were applied.
        """
        for number, fate in fates:
            self._keep(_id(self._client_id, number), fate)
        for part in rows:
            self.fates.keep_rows(self._client_id, part.first, part.last, part.commit)
            for number in range(part.first, part.last + 1) if self._unwanted else ():
                if (one := _id(self._client_id, number)) in self._unwanted:
                    self.fates.forget(one)
        if firsts:
            self._tracker.spend(firsts, recorded=True)

    def learned(self, request: RequestId, fate: Resolution, *, told: bool = False) -> None:
        """Note the fate of a request in doubt; ``told``: the application asked, and is told now."""
        if told:
            self.fates.remember(request, self.fates.find(request) or fate)
            self._unwanted.discard(request)
        else:
            self._keep(request, fate)
        self._known(request)
        if told and request.client_id == self._client_id:
            self._complete(request.sequence)

    def told(self, request: RequestId) -> Resolution | None:
        """Return a fate that is known here, and note that the application knows it now; None if it is not known."""
        fate = self.fates.tell(request)
        if fate is not None and request.client_id == self._client_id:
            self._complete(request.sequence)
        return fate

    def forget(self, request: RequestId) -> None:
        """Note that the application will not ask for a fate: it is not kept, now or when it becomes known."""
        self.fates.forget(request)
        if not self._may_become_known(request):
            return
        self._unwanted.add(request)
        if len(self._unwanted) > self._unwanted_max:  # most of them are over: their callers have had their answers
            self._unwanted = set(filter(self._may_become_known, self._unwanted))
            self._unwanted_max = max(UNWANTED_MIN, 2 * len(self._unwanted))

    def release(self, firsts: Sequence[int]) -> None:
        """Give open places of the session back: their numbers may be those of other writes, and nobody forgot those."""
        for first in firsts if self._unwanted else ():
            numbers = range(first, self._tracker.last_of(first) + 1)
            self._unwanted.difference_update([_id(self._client_id, number) for number in numbers])
        self._tracker.release(firsts)

    def wants(self, request: RequestId) -> bool:
        """Whether a fate that becomes known now is to be kept: nobody knows it, and somebody may ask."""
        return request not in self._unwanted and self.fates.find(request) is None

    def lose(self, request: RequestId) -> None:
        """Note that nobody can know the fate of a request any more."""
        self._known(request)

    def lose_all(self, client_id: ClientId) -> None:
        """Note the same of all that is in doubt under a client id."""
        for first in list(self._firsts.get(client_id, ())):
            place = self._places[client_id, first]
            for number in list(place.unknown):
                self._known(_id(client_id, number))

    def reopen(self, first: int) -> bool:
        """Wait again for a place of the session that is in doubt; False, and nothing changes, for any other."""
        place = self._places.get((self._client_id, first))
        if place is None or place.last != first or not self._tracker.reopen(first):
            return False
        self._remove(self._client_id, place)
        return True

    def ask(self, count: int) -> list[Question]:
        """Return up to ``count`` requests to ask about next, oldest first; each until :meth:`asked`."""
        questions: list[Question] = []
        for client_id in sorted(self._firsts):
            for first in self._firsts[client_id]:
                place = self._places[client_id, first]
                for number in sorted(place.unknown) if len(place.unknown) > 1 else place.unknown:
                    request = _id(client_id, number)
                    if len(questions) == count:
                        return questions
                    if request not in self._asked:
                        self._asked.add(request)
                        questions.append(Question(request, place.epoch))
        return questions

    def asked(self, request: RequestId) -> None:
        """Note that nobody is asking about a request any more, whatever came of it."""
        self._asked.discard(request)

    def reach(self, number: int) -> None:
        """Acknowledge what is spent below a number that the server would find above its window."""
        tracker = self._tracker
        before = 0
        while before < tracker.first_incomplete <= number - tracker.window:
            before = tracker.first_incomplete
            tracker.make_room(told_full=True)

    def is_unknown(self, request: RequestId) -> bool:
        """Whether that number is in doubt."""
        place = self._place_of(*request)
        return place is not None and request.sequence in place.unknown

    def _keep(self, request: RequestId, fate: Resolution) -> None:
        if request not in self._unwanted:
            self.fates.keep(request, fate)

    def _may_become_known(self, request: RequestId) -> bool:
        client_id, number = request
        return self.is_unknown(request) or (client_id == self._client_id and self._tracker.may_be_asked(number))

    def _place_of(self, client_id: ClientId, number: int) -> _Place | None:
        """Return the place in doubt that has a number, or None."""
        firsts = self._firsts.get(client_id)
        at = bisect_right(firsts, number) if firsts else 0
        if not firsts or not at:
            return None
        place = self._places[client_id, firsts[at - 1]]
        return place if number <= place.last else None

    def _known(self, request: RequestId) -> None:
        client_id, number = request
        place = self._place_of(client_id, number)
        if place is None:
            return
        place.unknown.discard(number)
        if place.unknown:
            return
        self._remove(client_id, place)
        if client_id == self._client_id and self._tracker.is_abandoned(place.first):
            self._tracker.spend([place.first], recorded=True)

    def _complete(self, number: int) -> None:
        """Acknowledge a number whose caller knows its fate; a range waits until the window needs its place."""
        if self._tracker.last_of(number) == number and (self._client_id, number) not in self._places:
            self._tracker.settle(number)

    def _remove(self, client_id: ClientId, place: _Place) -> None:
        firsts = self._firsts[client_id]
        del firsts[bisect_right(firsts, place.first) - 1]
        if not firsts:
            del self._firsts[client_id]
        del self._places[client_id, place.first]


def _id(client_id: ClientId, number: int) -> RequestId:
    return RequestId(client_id, SequenceNumber(number))
