"""What became of writes whose callers have not been told: kept as long as the session. Pure.

Owns: the fates, their bounds, and which of them may go. Must not know how a fate is learned
(:mod:`oncegate.gateway.client.doubts`), nor asyncio or HTTP.

| fate | how it got there | how it leaves |
|---|---|---|
| kept | :meth:`Fates.keep`, :meth:`Fates.keep_rows`: nobody has been told | :meth:`Fates.tell`, :meth:`Fates.forget` |
| told | :meth:`Fates.tell`, :meth:`Fates.remember` | when there are more than ``TOLD_MAX``, the oldest |

A kept fate never gives way to another one. At the bound the session takes no further writes until one is told or
forgotten; those under way then may still leave one each, so that a window's worth may lie above the bound.

Neighbours are one *run*, which counts once: numbers that were never applied, and rows of a range, whose commit numbers
are adjacent.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Final

import msgspec

from oncegate.gateway.client.results import Resolution, WriteResult
from oncegate.rifl.ids import ClientId, RequestId, SequenceNumber

FATES_MAX: Final = 65_536
"""Runs of kept fates from which a session takes no further writes."""
FATES_BYTES_MAX: Final = 64 * 2**20
"""The same in bytes: results with the values that they carry."""
TOLD_MAX: Final = 1_024
"""Told fates that a session remembers, so that whoever asks again gets the same answer."""

SEALED: Final = Resolution("sealed")
_RUN_BYTES: Final = 64
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(Resolution).decode


class _Run(msgspec.Struct, gc=False):
    """Numbers ``first``..``last``: sealed, or rows of a range from commit number ``commit`` on; or one, ``body``."""

    first: int
    last: int
    commit: int = 0
    body: bytes = b""

    @property
    def size(self) -> int:
        return _RUN_BYTES + len(self.body)

    def fate(self, request: RequestId) -> Resolution:
        if self.body:
            return _DECODE(self.body)
        if not self.commit:
            return SEALED
        at = self.commit + request.sequence - self.first
        return Resolution("applied", WriteResult(*request, True, at, at, None, False, 0))

    def part(self, first: int, last: int) -> _Run:
        return _Run(first, last, self.commit and self.commit + first - self.first, self.body)

    def goes_on_with(self, run: _Run) -> bool:
        plain = not self.body and not run.body and self.last + 1 == run.first
        return plain and run.commit == (self.commit and self.commit + run.first - self.first)


class Fates:
    """The fates of one session, also under the client ids that it had before it was opened anew."""

    def __init__(self, *, fates_max: int = FATES_MAX, bytes_max: int = FATES_BYTES_MAX) -> None:
        self._fates_max = fates_max
        self._bytes_max = bytes_max
        self._starts: dict[ClientId, list[int]] = {}
        self._runs: dict[tuple[ClientId, int], _Run] = {}
        self._told: OrderedDict[RequestId, Resolution] = OrderedDict()
        self.bytes = 0
        """Bytes of what is kept."""

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def is_full(self) -> bool:
        """Whether no further write may be taken."""
        return len(self._runs) >= self._fates_max or self.bytes >= self._bytes_max

    def find(self, request: RequestId) -> Resolution | None:
        """Return the fate of a request, or None while it is not known here."""
        told = self._told.get(request)
        if told is not None:
            return told
        run = self._run_of(*request)
        return None if run is None else run.fate(request)

    def keep(self, request: RequestId, fate: Resolution) -> None:
        """Keep a fate until its caller is told; the first one stands."""
        if self.find(request) is None:
            body = b"" if fate.state == "sealed" else _ENCODE(fate)
            self._add(request.client_id, _Run(request.sequence, request.sequence, 0, body))

    def keep_rows(self, client_id: ClientId, first: int, last: int, commit: int) -> None:
        """Keep that rows ``first``..``last`` of a range were applied, from commit number ``commit`` on."""
        begun = first
        for number in range(first, last + 2):
            if number <= last and self.find(RequestId(client_id, SequenceNumber(number))) is None:
                continue
            if begun < number:
                self._add(client_id, _Run(begun, number - 1, commit + begun - first))
            begun = number + 1

    def tell(self, request: RequestId) -> Resolution | None:
        """Return a fate whose caller is told now; None, and nothing changes, if it is not known here."""
        fate = self.find(request)
        if fate is not None:
            self.remember(request, fate)
        return fate

    def remember(self, request: RequestId, fate: Resolution) -> None:
        """Remember what a caller has been told, for a while."""
        self.forget(request)
        self._told[request] = fate
        if len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)

    def forget(self, request: RequestId) -> None:
        """Drop a fate that nobody will ask for."""
        self._told.pop(request, None)
        run = self._run_of(*request)
        if run is None:
            return
        client_id, number = request
        self._remove(client_id, run)
        if run.first < number:
            self._put(client_id, run.part(run.first, number - 1))
        if number < run.last:
            self._put(client_id, run.part(number + 1, run.last))

    def _run_of(self, client_id: ClientId, number: int) -> _Run | None:
        run = self._before(client_id, number)
        return run if run is not None and number <= run.last else None

    def _before(self, client_id: ClientId, number: int) -> _Run | None:
        """Return the last run that begins at or below a number."""
        starts = self._starts.get(client_id, ())
        at = bisect_right(starts, number)
        return self._runs[client_id, starts[at - 1]] if at else None

    def _add(self, client_id: ClientId, run: _Run) -> None:
        below = self._before(client_id, run.first)
        if below is not None and below.goes_on_with(run):
            below.last = run.last
        else:
            self._put(client_id, run)

    def _put(self, client_id: ClientId, run: _Run) -> None:
        insort(self._starts.setdefault(client_id, []), run.first)
        self._runs[client_id, run.first] = run
        self.bytes += run.size

    def _remove(self, client_id: ClientId, run: _Run) -> None:
        starts = self._starts[client_id]
        del starts[bisect_right(starts, run.first) - 1]
        if not starts:
            del self._starts[client_id]
        del self._runs[client_id, run.first]
        self.bytes -= run.size
