"""Named consumers of one flow: their cursors, and which instance may move them.

Owns: fences, cursors, replays, the watermark. Part of the replicated state, pure, deterministic. Must not know
items or files. Read next: :mod:`oncegate.flows.retention`.

The rule of a move, first match wins; ``first .. last`` are the retained batches:

| # | condition | outcome |
|---|---|---|
| 1 | no such consumer | NOT_FOUND |
| 2 | fence older than the newest one | FENCED |
| 3 | fence never given out, batch < 0 or batch > last | BAD_REQUEST |
| 4 | batch = cursor | nothing changes |
| 5 | batch + 1 < first: the batch to read next was dropped | RETENTION_EXCEEDED |
| 6 | batch < cursor, not marked as a replay | BAD_REQUEST |
| 7 | batch < cursor, marked as a replay | cursor = batch, one replay more |
| 8 | otherwise | cursor = batch |

A consumer that retention has overtaken can go on: it moves its cursor to ``first - 1`` or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from oncegate.flows.errors import BadRequestError, FencedError, NotFoundError, QuotaError, RetentionExceededError
from oncegate.flows.flow import CONSUMERS_MAX, check_name

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


class ConsumerState(msgspec.Struct):
    """One consumer, also as it stands in a snapshot.

    Attributes:
        name: of the consumer.
        required: whether retention waits for it.
        cursor: the last batch it has finished, 0 = none.
        fence: the newest fence, 0 = never attached.
        replays: how often its cursor was moved back.
        nonces: (nonce, fence) of the newest attaches, oldest first.
    """

    name: str
    required: bool
    cursor: int = 0
    fence: int = 0
    replays: int = 0
    nonces: tuple[tuple[str, int], ...] = ()


class Consumers:
    """All consumers of a flow, in order of first mention.

    Those that its declaration requires exist from the start with cursor 0, so that nothing is dropped before they
    attach for the first time.
    """

    __slots__ = ("_by_name",)

    def __init__(self, required: tuple[str, ...] = ()) -> None:
        self._by_name = {name: ConsumerState(name, required=True) for name in required}

    def attach(self, name: str, nonce: str, batches: BatchLog) -> Attachment:
        """Become the one instance of a consumer; a new one begins at the oldest retained batch.

        The same nonce gives the same fence: each start of an instance takes a new one. An older nonce, sent again after
        a newer one, gets its own older fence back and fences nobody.

        Raises:
            BadRequestError: the name or nonce is not valid.
            QuotaError: CONSUMERS_MAX consumers exist.
        """
        check_name("consumer", name)
        if not 1 <= len(nonce) <= NONCE_LENGTH_MAX:
            raise BadRequestError(f"a nonce has 1..{NONCE_LENGTH_MAX} characters")
        consumer = self._by_name.get(name)
        if consumer is None:
            if len(self._by_name) >= CONSUMERS_MAX:
                raise QuotaError(f"the flow has {CONSUMERS_MAX} consumers")
            consumer = ConsumerState(name, required=False, cursor=batches.first - 1)
            self._by_name[name] = consumer
        for known, fence in consumer.nonces:
            if known == nonce:
                return Attachment(fence, consumer.cursor)
        consumer.fence += 1
        consumer.nonces = (*consumer.nonces[-NONCES_MAX + 1 :], (nonce, consumer.fence))
        return Attachment(consumer.fence, consumer.cursor)

    def move(self, name: str, batch: int, fence: int, batches: BatchLog, *, replay: bool = False) -> int:
        """Set a cursor by the rule at the top of this module, and return it. Idempotent.

        Raises:
            NotFoundError, FencedError, BadRequestError, RetentionExceededError: by the rule; nothing changed.
        """
        consumer = self._get(name)
        if fence < consumer.fence:
            raise FencedError(f"fence {fence} of {name} is older than {consumer.fence}")
        if fence > consumer.fence:
            raise BadRequestError(f"fence {fence} of {name} was never given out")
        if not 0 <= batch <= batches.last:
            raise BadRequestError(f"batch {batch} is not in 0..{batches.last}")
        if batch != consumer.cursor:
            if batch + 1 < batches.first:
                raise RetentionExceededError(f"batch {batch + 1} was dropped; the oldest is {batches.first}")
            if batch < consumer.cursor:
                if not replay:
                    raise BadRequestError(f"cursor of {name} is {consumer.cursor}; back needs replay")
                consumer.replays += 1
            consumer.cursor = batch
        return batch

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
        """
        consumers = self._by_name.values()
        counting = [consumer for consumer in consumers if consumer.required] or consumers
        return min((consumer.cursor for consumer in counting), default=0)

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
    def restore(cls, state: tuple[ConsumerState, ...]) -> Consumers:
        """Return the consumers that gave ``state``."""
        consumers = cls()
        consumers._by_name = {consumer.name: msgspec.structs.replace(consumer) for consumer in state}
        return consumers
