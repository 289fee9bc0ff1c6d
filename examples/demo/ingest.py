"""Sending the messages through the SDK: several sessions, single puts and ranges, at an even pace.

Owns: who sends which slice when, and when its copy is due. Must not know how a copy travels
(:mod:`examples.demo.duplicates`) nor what is done to the cluster meanwhile (:mod:`examples.demo.kills`).

A writer owns one session and has one slice under way at a time, so it knows the request ids of a slice before it is
sent: numbers are given out in the order of the calls, and the first one follows the last one of the slice before.
That is how a copy can travel at the same time as its original; a number that is not the one foreseen ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from examples.demo.dataset import MESSAGES_ALL, Messages, key_of
from examples.demo.duplicates import Copier, Original
from examples.demo.errors import CouldNotRun
from examples.demo.plan import Slice, When
from examples.demo.recording import Answer, Recording
from oncegate import Client, Session
from oncegate.rifl.ids import format_client_id

TABLE: Final = "messages"
DURATION_S: Final = 23.0
"""How long sending is spread over, for all messages; kills add what they cost."""
DURATION_S_MIN: Final = 12.0
"""A shorter run still needs room for two kills."""
RANGE_WRITERS: Final = 2
SINGLE_WRITERS: Final = 4
WRITE_TIMEOUT_S: Final = 60.0
TRICKLE_S: Final = 1.0
"""Between two slices of a writer while something lacks."""
HOLD_S_MAX: Final = 120.0
_POLL_S: Final = 0.02


class NumberError(CouldNotRun):
    """The SDK gave a write another request id than the one foreseen."""


class HoldError(CouldNotRun):
    """What should fall among the writes did not come."""


class Pace:
    """Says when a slice is due, so that all are sent evenly over the duration; late ones go at once.

    Kills and the first delivery are to fall among the writes on a slow machine too: until they have taken place the
    last tenth of the messages only trickles, and the last fiftieth waits.
    """

    def __init__(self, messages: int, duration_s: float, kills: int, recording: Recording) -> None:
        self._per_message_s = duration_s / max(1, messages)
        self._trickles_from = messages - messages // 10
        self._waits_from = messages - messages // 50
        self._kills = kills
        self._recording = recording
        self._began_s = recording.now_s()

    async def wait(self, item: Slice) -> None:
        """Wait until the slice is due.

        Raises:
            HoldError: kills or the first delivery did not come within ``HOLD_S_MAX``.
        """
        due_s = self._began_s + (item.first - 1) * self._per_message_s
        await asyncio.sleep(max(0.0, due_s - self._recording.now_s()))
        if item.first > self._trickles_from and not self._nothing_lacks():
            await self._hold(item)

    def _nothing_lacks(self) -> bool:
        return len(self._recording.kills) >= self._kills and bool(self._recording.delivered)

    async def _hold(self, item: Slice) -> None:
        recording = self._recording
        began_s = recording.now_s()
        while not self._nothing_lacks():
            waited_s = recording.now_s() - began_s
            if waited_s > TRICKLE_S and item.first <= self._waits_from:
                break
            if waited_s > HOLD_S_MAX:
                raise HoldError(f"no delivery, or too few kills, {HOLD_S_MAX:.0f} s after nearly all was written")
            await asyncio.sleep(_POLL_S)
        recording.slowed_s += recording.now_s() - began_s
        # What follows keeps its distance from this slice instead of catching up.
        self._began_s = recording.now_s() - (item.first - 1) * self._per_message_s


class Writer:
    """Sends slices through one session, one after the other."""

    def __init__(self, session: Session, messages: Messages, copier: Copier, recording: Recording) -> None:
        self._session = session
        self._messages = messages
        self._copier = copier
        self._recording = recording
        self._next = 1
        self._delayed: Original | None = None

    async def run(self, slices: Iterator[Slice], pace: Pace) -> None:
        """Send what ``slices`` yields; writers share one iterator.

        Raises:
            NumberError: a request id was not the one foreseen.
            OncegateError: a write ended without a result.
            CopyError: a copy got no verdict.
        """
        for item in slices:
            await pace.wait(item)
            await self._send(item)
        if self._delayed is not None:
            # No later request has acknowledged it, so the cluster still remembers.
            await self._copier.send(self._delayed, When.LATER)

    async def _send(self, item: Slice) -> None:
        first = self._next
        original, copy = self._original(item, first), item.copy
        sending = [asyncio.ensure_future(self._range(item) if item.ranged else self._singles(item))]
        if copy is not None and copy.when is When.AT_ONCE:
            sending.append(asyncio.ensure_future(self._copier.send(original, When.AT_ONCE)))
        try:
            await asyncio.gather(*sending)
        finally:
            for task in sending:
                task.cancel()
        self._next = first + item.length
        if self._delayed is not None:
            # The slice that has just been answered carried the acknowledgement of the one before.
            delayed, self._delayed = self._delayed, None
            await self._copier.send(delayed, When.ACKNOWLEDGED)
        if copy is not None and copy.when is When.LATER:
            await self._copier.send(original, When.LATER)
        if copy is not None and copy.when is When.ACKNOWLEDGED:
            self._delayed = original

    def _original(self, item: Slice, first: int) -> Original:
        offset, length = (item.copy.offset, item.copy.length) if item.copy is not None else (0, item.length)
        session = self._session
        return Original(
            format_client_id(session.client_id),
            session.epoch,
            first,
            first + offset,
            item.first + offset,
            length,
            item.ranged,
        )

    async def _range(self, item: Slice) -> None:
        numbers = range(item.first, item.first + item.length)
        rows = [(key_of(number), self._messages.value(number)) for number in numbers]
        began_s = self._recording.now_s()
        result = await self._session.put_many(TABLE, rows)
        self._answered(began_s, item.first, item.length)
        self._check(result.first, self._next)
        for part in result.parts:
            for sequence in range(part.first, part.last + 1):
                number = item.first + sequence - self._next
                self._recording.acknowledge(number, part.commit + sequence - part.first, replayed=part.replayed)

    async def _singles(self, item: Slice) -> None:
        await asyncio.gather(*(self._single(item.first + at, self._next + at) for at in range(item.length)))

    async def _single(self, number: int, sequence: int) -> None:
        began_s = self._recording.now_s()
        result = await self._session.put(TABLE, key_of(number), self._messages.value(number))
        self._answered(began_s, number, 1)
        self._check(result.sequence, sequence)
        self._recording.acknowledge(number, result.commit, replayed=result.replayed)

    def _answered(self, began_s: float, first: int, operations: int) -> None:
        now_s = self._recording.now_s()
        self._recording.answers.append(Answer(now_s, now_s - began_s, first, operations))

    @staticmethod
    def _check(sequence: int, foreseen: int) -> None:
        if sequence != foreseen:
            raise NumberError(f"a write got sequence number {sequence}, {foreseen} was foreseen")


async def ingest(
    endpoints: Sequence[str],
    messages: Messages,
    slices: Sequence[Slice],
    copier: Copier,
    recording: Recording,
    *,
    kills: int,
) -> None:
    """Send all slices, the last of them after ``kills`` leaders have been killed.

    Returns when every message is acknowledged and every copy has its verdict.

    Raises:
        NumberError, OncegateError, CopyError: as :meth:`Writer.run`.
    """
    duration_s = max(DURATION_S_MIN, DURATION_S * len(messages) / MESSAGES_ALL)
    async with Client(endpoints, timeout_s=WRITE_TIMEOUT_S) as client, asyncio.TaskGroup() as group:
        pace = Pace(len(messages), duration_s, kills, recording)
        for ranged, writers in ((True, RANGE_WRITERS), (False, SINGLE_WRITERS)):
            mine = iter([item for item in slices if item.ranged is ranged])
            for _ in range(writers):
                group.create_task(_write(client, messages, copier, recording, mine, pace))


async def _write(
    client: Client,
    messages: Messages,
    copier: Copier,
    recording: Recording,
    slices: Iterator[Slice],
    pace: Pace,
) -> None:
    async with client.session() as session:
        await Writer(session, messages, copier, recording).run(slices, pace)
