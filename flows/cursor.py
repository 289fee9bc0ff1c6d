"""Named consumers of one flow: their cursors, and which instance may move them.

Owns: fences, cursors, replays, the watermark, and who leaves. Part of the replicated state,
pure, deterministic. Must not know items or files. Read next: :mod:`oncegate.flows.retention`.

The rule of a move, first match wins; ``first .. last`` are the retained batches:

| # | condition | outcome |
|---|---|---|
| 1 | no such consumer | NOT_FOUND; FENCED if it may be one that was removed |
| 2 | fence older than the newest one | FENCED |
| 3 | fence never given out, batch < 0 or batch > last | BAD_REQUEST |
| 4 | batch = cursor | nothing changes |
| 5 | batch + 1 < first: the batch to read next was dropped | RETENTION_EXCEEDED |
| 6 | batch < cursor, not marked as a replay | BAD_REQUEST |
| 7 | batch < cursor, marked as a replay | cursor = batch, one replay more |
| 8 | otherwise | cursor = batch |

A consumer that retention has overtaken can go on: it moves its cursor to ``first - 1`` or later.

Fences are never given out twice in a flow, whatever is removed and made again under its name: a job of the consumer
that was removed cannot move the one that is there now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from oncegate.flows.errors import BadRequestError, FencedError, NotFoundError, QuotaError, RetentionExceededError
from oncegate.flows.flow import CONSUMERS_MAX, check_name
from oncegate.flows.parts import NO_PARTS, Parts

if TYPE_CHECKING:
    from oncegate.flows.batch_log import BatchLog

NONCE_LENGTH_MAX: Final = 128
NONCES_MAX: Final = 16
"""Attaches of a consumer whose retries are recognised; an older one attaches anew."""


class Attachment(NamedTuple):
    """Answer to an attach: the fence to move with, and the last finished batch."""

    fence: int
    cursor: int


class Lag(NamedTuple):
    """How far a consumer is behind: sealed batches above its cursor, their retained items, and the cluster time since
    the oldest of them was sealed, 0 if there is none.
    """

    batches: int
    items: int
    ms: int


class WrittenPart(NamedTuple):
    """A part that was written before: the cursor now, and its first commit number, None if it is not remembered."""

    cursor: int
    commit: int | None


class ConsumerState(msgspec.Struct):
    """One consumer, also as it stands in a snapshot.

    Attributes:
        name: of the consumer.
        required: whether retention waits for it.
        cursor: the last batch it has finished, 0 = none.
        fence: the newest fence, 0 = never attached.
        replays: how often its cursor was moved back.
        nonces: (nonce, fence) of the newest attaches, oldest first.
        begun: the cursor it was made with.
        alive_ms: cluster time at which it was made, attached or moved last.
        expired: it has never moved, and retention waits for it no longer; until it attaches or moves.
        parts: what it has written through the gateway of the newest batch of which it has written anything.
    """

    name: str
    required: bool
    cursor: int = 0
    fence: int = 0
    replays: int = 0
    nonces: tuple[tuple[str, int], ...] = ()
    begun: int = 0
    alive_ms: int = 0
    expired: bool = False
    parts: Parts = NO_PARTS

    @property
    def attached(self) -> bool:
        """Whether an instance has ever attached."""
        return bool(self.nonces)

    @property
    def moved(self) -> bool:
        """Whether its cursor has ever moved."""
        return self.cursor != self.begun or self.replays > 0


class Consumers:
    """All consumers of a flow, in order of first mention.

    Those that its declaration requires exist from the start, so that nothing is dropped before they attach for the
    first time.

    Args:
        required: those that the declaration names.
        cursor: where they begin.
        fences: every fence up to this one may be known to somebody.
        now_ms: cluster time.

    Attributes:
        fences: as above; a consumer that is made now has this fence, which nobody has got.
    """

    __slots__ = ("_by_name", "fences")

    def __init__(self, required: tuple[str, ...] = (), *, cursor: int = 0, fences: int = 0, now_ms: int = 0) -> None:
        self.fences = fences
        self._by_name: dict[str, ConsumerState] = {}
        for name in required:
            self._make(name, cursor, now_ms, required=True)

    def _make(self, name: str, cursor: int, now_ms: int, *, required: bool) -> ConsumerState:
        made = ConsumerState(name, required, cursor, self.fences, begun=cursor, alive_ms=now_ms)
        self._by_name[name] = made
        return made

    def attach(
        self, name: str, nonce: str, batches: BatchLog, now_ms: int = 0, *, cursor: int | None = None
    ) -> Attachment:
        """Become the one instance of a consumer; a new one begins at the oldest retained batch.

        The same nonce gives the same fence: each start of an instance takes a new one. An older nonce, sent again after
        a newer one, gets its own older fence back and fences nobody.

        Args:
            name: of the consumer.
            nonce: of the start of an instance.
            batches: of the flow.
            now_ms: cluster time.
            cursor: where it is to stand from now on; None: where it stands. Back is a replay, as with :meth:`move`.

        Raises:
            BadRequestError: the name or nonce is not valid, or ``cursor`` is above the newest batch.
            QuotaError: CONSUMERS_MAX consumers exist.
            RetentionExceededError: the batch after ``cursor`` was dropped.
        """
        check_name("consumer", name)
        if not 1 <= len(nonce) <= NONCE_LENGTH_MAX:
            raise BadRequestError(f"a nonce has 1..{NONCE_LENGTH_MAX} characters")
        consumer = self._by_name.get(name)
        for known, fence in () if consumer is None else consumer.nonces:
            if known == nonce and consumer is not None:
                return Attachment(fence, consumer.cursor)
        if cursor is not None:
            _check_cursor(cursor, batches)
        if consumer is None:
            if len(self._by_name) >= CONSUMERS_MAX:
                raise QuotaError(f"the flow has {CONSUMERS_MAX} consumers")
            begin = batches.first - 1 if cursor is None else cursor
            consumer = self._make(name, begin, now_ms, required=False)
        if cursor is not None:
            consumer.replays += cursor < consumer.cursor
            consumer.cursor, consumer.parts = cursor, NO_PARTS
        consumer.alive_ms, consumer.expired = now_ms, False
        consumer.fence += 1
        consumer.nonces = (*consumer.nonces[-NONCES_MAX + 1 :], (nonce, consumer.fence))
        return Attachment(consumer.fence, consumer.cursor)

    def remove(self, name: str) -> None:
        """Forget a consumer; whoever holds one of its fences is FENCED from now on.

        Raises:
            NotFoundError: no such consumer.
        """
        self.fences = max(self.fences, self._get(name).fence + 1)
        del self._by_name[name]

    def fence_off(self, skipped: int, slept_ms: int) -> None:
        """Fence whoever has attached, by fences ``skipped`` higher; ``slept_ms`` of cluster time count for nobody."""
        self.fences += skipped
        for one in self._by_name.values():
            one.fence += skipped
            one.alive_ms += slept_ms

    def require(self, names: tuple[str, ...], batches: BatchLog, now_ms: int) -> None:
        """Make ``names`` the required ones.

        New ones begin at the oldest retained batch. One that is not required any more stays as a consumer that nobody
        waits for, unless it has never attached: then there was nobody, and it is removed.

        Raises:
            QuotaError: there would be more than CONSUMERS_MAX; nothing changed.
        """
        left = [one for one in self._by_name.values() if one.required and one.name not in names]
        gone = {one.name for one in left if not one.attached}
        if len(self._by_name.keys() - gone | set(names)) > CONSUMERS_MAX:
            raise QuotaError(f"a flow has {CONSUMERS_MAX} consumers at most")
        for one in left:
            one.required = False
            if one.name in gone:
                self.remove(one.name)
        for name in names:
            if name in self._by_name:
                self._by_name[name].required = True
            else:
                self._make(name, batches.first - 1, now_ms, required=True)

    def overdue(self, expiry_ms: int, since_ms: int, now_ms: int) -> list[str]:
        """Return the required consumers that have never moved and gave no sign of life for ``expiry_ms``.

        The time counts from ``since_ms`` at the earliest, which is cluster time as ``now_ms``. 0 expires nobody.
        """
        return [
            one.name
            for one in self._by_name.values()
            if expiry_ms
            and one.required
            and not one.expired
            and not one.moved
            and now_ms - max(one.alive_ms, since_ms) >= expiry_ms
        ]

    def expire(self, name: str) -> None:
        """Let retention no longer wait for a consumer, until it attaches or moves."""
        self._get(name).expired = True

    def move(
        self, name: str, batch: int, fence: int, batches: BatchLog, *, replay: bool = False, now_ms: int = 0
    ) -> int:
        """Set a cursor by the rule at the top of this module, and return it. Idempotent.

        Raises:
            NotFoundError, FencedError, BadRequestError, RetentionExceededError: by the rule; nothing changed.
        """
        consumer = self._fenced(name, fence)
        if not 0 <= batch <= batches.last:
            raise BadRequestError(f"batch {batch} is not in 0..{batches.last}")
        if batch != consumer.cursor:
            if batch + 1 < batches.first:
                raise RetentionExceededError(f"batch {batch + 1} was dropped; the oldest is {batches.first}")
            if batch < consumer.cursor:
                if not replay:
                    raise BadRequestError(f"cursor of {name} is {consumer.cursor}; back needs replay")
                consumer.replays += 1
            consumer.cursor, consumer.parts = batch, NO_PARTS
        consumer.alive_ms, consumer.expired = now_ms, False
        return batch

    def part(
        self, name: str, batch: int, part: int, fence: int, fingerprint: int, batches: BatchLog, *, last: bool
    ) -> WrittenPart | None:
        """Judge a part by the rule of :mod:`oncegate.flows.parts`; changes nothing.

        Returns:
            What a part that was written before is answered with; None for a new one.

        Raises:
            NotFoundError, FencedError, BadRequestError, PayloadMismatchError, RetentionExceededError: by the rule.
        """
        consumer = self._fenced(name, fence)
        if not 1 <= batch <= batches.last:
            raise BadRequestError(f"batch {batch} is not in 1..{batches.last}")
        commit = consumer.parts.known(batch, part, fingerprint)
        if commit is not None or batch <= consumer.cursor:
            return WrittenPart(consumer.cursor, commit)
        if consumer.cursor + 1 < batches.first:
            raise RetentionExceededError(f"batch {consumer.cursor + 1} was dropped; the oldest is {batches.first}")
        if batch != consumer.cursor + 1:
            raise BadRequestError(f"batch {batch} is not the next one: the cursor of {name} is {consumer.cursor}")
        consumer.parts.check_next(batch, part, last=last)
        return None

    def wrote(self, name: str, batch: int, fingerprint: int, commit: int, now_ms: int, *, last: bool) -> int:
        """Remember a part that :meth:`part` has called new, move the cursor with the last one, and return it."""
        consumer = self._get(name)
        consumer.parts = consumer.parts.having(batch, fingerprint, commit)
        if last:
            consumer.cursor = batch
        consumer.alive_ms, consumer.expired = now_ms, False
        return consumer.cursor

    def _fenced(self, name: str, fence: int) -> ConsumerState:
        """Return the consumer of whom ``fence`` is the newest; raises as :meth:`move`."""
        if name not in self._by_name and 0 < fence < self.fences:
            raise FencedError(f"consumer {name} was removed")
        consumer = self._get(name)
        if fence < consumer.fence:
            raise FencedError(f"fence {fence} of {name} is older than {consumer.fence}")
        if fence > consumer.fence:
            raise BadRequestError(f"fence {fence} of {name} was never given out")
        return consumer

    def _get(self, name: str) -> ConsumerState:
        consumer = self._by_name.get(name)
        if consumer is None:
            raise NotFoundError(f"no consumer {name}")
        return consumer

    def get(self, name: str) -> ConsumerState:
        """Return a copy of a consumer's state.

        Raises:
            NotFoundError: no consumer of that name has attached or is required.
        """
        return msgspec.structs.replace(self._get(name))

    def all(self) -> tuple[ConsumerState, ...]:
        """Return copies of all consumers' states."""
        return tuple(msgspec.structs.replace(consumer) for consumer in self._by_name.values())

    def watermark(self) -> int:
        """Return the delivery watermark: batches up to it are delivered.

        The smallest cursor of the required consumers; of all consumers if none is required; 0 without consumers.
        Those that have expired do not count.
        """
        return min((consumer.cursor for consumer in self._counting()), default=0)

    def slowest(self) -> tuple[ConsumerState, ...]:
        """Return copies of the consumers that stand at the watermark."""
        counting = self._counting()
        mark = self.watermark()
        return tuple(msgspec.structs.replace(consumer) for consumer in counting if consumer.cursor == mark)

    def counting(self) -> tuple[ConsumerState, ...]:
        """Return copies of the consumers that retention waits for."""
        return tuple(msgspec.structs.replace(consumer) for consumer in self._counting())

    def _counting(self) -> list[ConsumerState]:
        waited = [consumer for consumer in self._by_name.values() if not consumer.expired]
        return [consumer for consumer in waited if consumer.required] or waited

    def lag(self, name: str, batches: BatchLog, now_ms: int) -> Lag:
        """Return how far a consumer is behind the newest sealed batch at cluster time ``now_ms``.

        Raises:
            NotFoundError: no such consumer.
        """
        cursor = self._get(name).cursor
        oldest_ms = batches.sealed_ms_after(cursor)
        return Lag(
            batches.last - cursor,
            batches.items_after(cursor),
            0 if oldest_ms is None else max(0, now_ms - oldest_ms),
        )

    def snapshot(self) -> tuple[ConsumerState, ...]:
        """Return the state as plain data, which later calls do not change."""
        return self.all()

    @classmethod
    def restore(cls, state: tuple[ConsumerState, ...], fences: int = 0) -> Consumers:
        """Return the consumers that gave ``state`` and had these :attr:`fences`."""
        consumers = cls(fences=fences)
        consumers._by_name = {consumer.name: msgspec.structs.replace(consumer) for consumer in state}
        return consumers


def _check_cursor(cursor: int, batches: BatchLog) -> None:
    if cursor > batches.last:
        raise BadRequestError(f"batch {cursor} is not sealed; the newest is {batches.last}")
    if cursor + 1 < batches.first:
        raise RetentionExceededError(f"batch {cursor + 1} was dropped; the oldest is {batches.first}")
