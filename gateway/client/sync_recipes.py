"""The recipes without ``await``: the same names, promises and errors, for client and session of :mod:`oncegate.sync`.

Owns: the forms, and the time for which a thread waits: whatever waits takes ``timeout_s``, by default for ever, and
then raises :class:`~oncegate.DeadlineExceeded`; it leaves no trace. What holds while a session lives, and after:
:mod:`oncegate.gateway.client.recipes`, whose classes these name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf
from typing import Any, ClassVar, Generic, TypeVar

from oncegate.gateway.client import recipes as asynchronous
from oncegate.gateway.client.arguments import seconds
from oncegate.gateway.client.failures import DeadlineExceeded
from oncegate.gateway.client.recipes import DeadLetter, Leader
from oncegate.gateway.client.recipes.line import TABLE, Recipe
from oncegate.gateway.client.recipes.lock import Side
from oncegate.gateway.client.results import Value
from oncegate.gateway.client.sync import Client, Session
from oncegate.gateway.client.sync_crossing import Crossing, behind, without_await
from oncegate.gateway.client.transaction import Transaction
from oncegate.rifl.errors import Code, Outcome

H = TypeVar("H", bound="Hold")
L = TypeVar("L", asynchronous.Lock, asynchronous.Semaphore)
R = TypeVar("R", bound=Recipe)
T = TypeVar("T")


class Hold:
    """What a contender has got; see :class:`oncegate.recipes.Hold`."""

    def __init__(self, crossing: Crossing, hold: asynchronous.Hold) -> None:
        self.token = hold.token
        self._crossing, self._hold = crossing, hold

    def _opened(self) -> asynchronous.Hold:
        return self._hold

    @property
    def alive(self) -> bool:
        """Whether it surely holds at this moment, by the session's lease."""
        return self._hold.alive

    def guard(self, transaction: Transaction) -> Transaction:
        """Let a transaction happen only while this hold does. Returns it."""
        return self._hold.guard(transaction)

    lost = without_await(asynchronous.Hold.lost)
    release = without_await(asynchronous.Hold.release)


class Claim(Hold):
    """An item that one consumer has; see :class:`oncegate.recipes.Claim`."""

    def __init__(self, crossing: Crossing, claim: asynchronous.Claim) -> None:
        super().__init__(crossing, claim)
        self.item, self.number, self.attempts = claim.item, claim.number, claim.attempts
        self._claim = claim

    def _opened(self) -> asynchronous.Claim:
        return self._claim

    def item_as(self, kind: type[T]) -> T:
        """Return the item as a type, as :meth:`oncegate.Row.value_as`."""
        return self._claim.item_as(kind)

    def completing(self, effects: Transaction | None = None) -> Transaction:
        """Return the transaction that :meth:`complete` sends, for any session, at any time."""
        return self._claim.completing(effects)

    complete = without_await(asynchronous.Claim.complete)
    bury = without_await(asynchronous.Claim.bury)

    def release(self, *, delay_ms: int | None = None, counts: bool = True) -> bool:
        """Give it back, to be claimed again, at once or after a while."""
        return self._crossing.run(self._claim.release(delay_ms=delay_ms, counts=counts))


class _Recipe(Generic[R]):
    _kind: ClassVar[Callable[..., Any]]

    def __init__(self, client: Client, session: Session, name: str, *figures: int, table: str = TABLE) -> None:
        reads, self._crossing = behind(client)
        self._recipe: R = self._kind(reads, behind(session)[0], name, *figures, table=table)

    def _opened(self) -> R:
        return self._recipe

    def _wait(self, work: Callable[..., Coroutine[Any, Any, T]], timeout_s: float | None, *arguments: Any) -> T:
        """Wait in the client's loop for what may take long; raises DeadlineExceeded."""
        bound_s = inf if timeout_s is None else seconds(timeout_s)

        async def bounded() -> T:
            try:
                async with asyncio.timeout(None if bound_s == inf else bound_s):
                    return await work(*arguments)
            except TimeoutError as late:
                detail = f"not to be had within {bound_s:g} s"
                raise DeadlineExceeded(Code.TIMEOUT, detail, outcome=Outcome.NOT_APPLIED) from late

        return self._crossing.run(bounded())

    def _had(
        self, work: Callable[..., Coroutine[Any, Any, asynchronous.Hold]], timeout_s: float | None, *of: Any
    ) -> Hold:
        return Hold(self._crossing, self._wait(work, timeout_s, *of))


@contextmanager
def _released(hold: H) -> Iterator[H]:
    try:
        yield hold
    finally:
        hold.release()


class _Line(_Recipe[L]):
    def acquire(self, *, timeout_s: float | None = None) -> Hold:
        """Wait for one's turn and return it."""
        return self._had(self._recipe.acquire, timeout_s)

    def try_acquire(self) -> Hold | None:
        """Return a hold if it is to be had at once."""
        hold = self._crossing.run(self._recipe.try_acquire())
        return None if hold is None else Hold(self._crossing, hold)

    @contextmanager
    def held(self, *, timeout_s: float | None = None) -> Iterator[Hold]:
        """Hold it for a block: ``with lock.held() as hold: ...``."""
        with _released(self.acquire(timeout_s=timeout_s)) as hold:
            yield hold


class Lock(_Line[asynchronous.Lock]):
    """Mutual exclusion; see :class:`oncegate.recipes.Lock`."""

    _kind = asynchronous.Lock


class Semaphore(_Line[asynchronous.Semaphore]):
    """At most ``permits`` holders at once; see :class:`oncegate.recipes.Semaphore`."""

    _kind = asynchronous.Semaphore

    def __init__(self, client: Client, session: Session, name: str, permits: int, *, table: str = TABLE) -> None:
        super().__init__(client, session, name, permits, table=table)


class ReadWriteLock(_Recipe[asynchronous.ReadWriteLock]):
    """Many readers or one writer; see :class:`oncegate.recipes.ReadWriteLock`."""

    _kind = asynchronous.ReadWriteLock

    def acquire(self, side: Side, *, timeout_s: float | None = None) -> Hold:
        """Wait for one's turn to ``read`` or ``write``."""
        return self._had(self._recipe.acquire, timeout_s, side)

    def reading(self, *, timeout_s: float | None = None) -> AbstractContextManager[Hold]:
        """Wait, and hold it with other readers for a block."""
        return _released(self.acquire("read", timeout_s=timeout_s))

    def writing(self, *, timeout_s: float | None = None) -> AbstractContextManager[Hold]:
        """Wait, and hold it alone for a block."""
        return _released(self.acquire("write", timeout_s=timeout_s))


class Election(_Recipe[asynchronous.Election]):
    """One leader at a time; see :class:`oncegate.recipes.Election`."""

    _kind = asynchronous.Election

    def campaign(self, value: Value = None, *, timeout_s: float | None = None) -> Hold:
        """Wait until this candidate leads."""
        return self._had(self._recipe.campaign, timeout_s, value)

    @contextmanager
    def leading(self, value: Value = None, *, timeout_s: float | None = None) -> Iterator[Hold]:
        """Lead for a block."""
        with _released(self.campaign(value, timeout_s=timeout_s)) as term:
            yield term

    def leaders(self) -> Iterator[Leader | None]:
        """Yield who leads now and each leader from then on, waiting for each."""
        return self._crossing.steps(self._recipe.leaders())

    leader = without_await(asynchronous.Election.leader)


class Queue(_Recipe[asynchronous.Queue]):
    """Items that are completed exactly once; see :class:`oncegate.recipes.Queue`."""

    _kind = asynchronous.Queue

    def __init__(
        self,
        client: Client,
        session: Session,
        name: str,
        *,
        table: str = TABLE,
        attempts_max: int | None = None,
        visibility_ms: int | None = None,
    ) -> None:
        reads, self._crossing = behind(client)
        bounds = {"attempts_max": attempts_max, "visibility_ms": visibility_ms}
        self._recipe = asynchronous.Queue(reads, behind(session)[0], name, table=table, **bounds)

    def putting(self, item: Value, effects: Transaction | None = None, *, delay_ms: int | None = None) -> Transaction:
        """Return a transaction that puts an item, for any session or key."""
        return self._recipe.putting(item, effects, delay_ms=delay_ms)

    def claim_many(self, count: int, *, timeout_s: float | None = None) -> list[Claim]:
        """Wait for items, and claim those that are there at one stroke."""
        return [Claim(self._crossing, one) for one in self._wait(self._recipe.claim_many, timeout_s, count)]

    def dead(self) -> Iterator[DeadLetter]:
        """Read the dead letters in the order of their numbers."""
        return self._crossing.steps(self._recipe.dead())

    def claim(self, *, timeout_s: float | None = None) -> Claim:
        """Wait for an item that nobody has, and claim it."""
        return Claim(self._crossing, self._wait(self._recipe.claim, timeout_s))

    @contextmanager
    def claimed(self, *, timeout_s: float | None = None) -> Iterator[Claim]:
        """Claim an item for a block; one that is not completed in it is given back."""
        with _released(self.claim(timeout_s=timeout_s)) as claim:
            yield claim

    put = without_await(asynchronous.Queue.put)
    redrive = without_await(asynchronous.Queue.redrive)


class Barrier(_Recipe[asynchronous.Barrier]):
    """Opens once ``parties`` wait at the same time; see :class:`oncegate.recipes.Barrier`."""

    _kind = asynchronous.Barrier

    def __init__(self, client: Client, session: Session, name: str, parties: int, *, table: str = TABLE) -> None:
        super().__init__(client, session, name, parties, table=table)

    def wait(self, *, timeout_s: float | None = None) -> None:
        """Wait until it is open."""
        self._wait(self._recipe.wait, timeout_s)


class RateLimiter(_Recipe[asynchronous.RateLimiter]):
    """At most ``permits`` in each window of ``per_ms``; see :class:`oncegate.recipes.RateLimiter`."""

    _kind = asynchronous.RateLimiter

    def __init__(
        self, client: Client, session: Session, name: str, permits: int, per_ms: int, *, table: str = TABLE
    ) -> None:
        super().__init__(client, session, name, permits, per_ms, table=table)

    def acquire(self, count: int = 1, *, timeout_s: float | None = None) -> None:
        """Take permits, and wait for the next window as often as it takes; a permit that is cut off may be used."""
        self._wait(self._recipe.acquire, timeout_s, count)

    try_acquire = without_await(asynchronous.RateLimiter.try_acquire)


class Registry(_Recipe[asynchronous.Registry]):
    """Names that have one owner each; see :class:`oncegate.recipes.Registry`."""

    _kind = asynchronous.Registry

    def guard(self, transaction: Transaction, entry: str, token: int) -> Transaction:
        """Let a transaction happen only while a name is had under this token. Returns it."""
        return self._recipe.guard(transaction, entry, token)

    take = without_await(asynchronous.Registry.take)
    give_up = without_await(asynchronous.Registry.give_up)
    find = without_await(asynchronous.Registry.find)


class Sequence(_Recipe[asynchronous.Sequence]):
    """Numbers that are handed out once each; see :class:`oncegate.recipes.Sequence`."""

    _kind = asynchronous.Sequence

    next = without_await(asynchronous.Sequence.next)
