"""Locks, read-write locks and semaphores."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from random import Random
from typing import Any, Final

from oncegate.gateway.client import Client, Session
from oncegate.gateway.client.recipes import Hold, Lock, ReadWriteLock, Semaphore
from oncegate.gateway.client.recipes.lock import Side
from oncegate.proof.check.workload import Worker
from oncegate.proof.check.workloads.recipes.contended import Contended

PERMITS: Final = 2


class _Locks(Contended):
    """What is given back by its hold."""

    async def release(self, worker: Worker, name: str, hold: Hold) -> None:
        await hold.release()


class LockWorkload(_Locks):
    """Holders write under their fencing token, which other systems compare too."""

    name = "lock"
    proves = "one holder at a time: what an earlier holder still writes is refused by its fencing token"
    letters = "l"
    names = ("l0", "l1")
    fences = True

    def ask(self, client: Client, session: Session, name: str, random: Random) -> tuple[Any, Awaitable[Hold | None]]:
        lock = Lock(client, session, name)
        return None, lock.try_acquire() if random.random() < 0.2 else lock.acquire()


class ReadWriteLockWorkload(_Locks):
    """Readers write too: what they may do under their token, no writer may do at the same time."""

    name = "read-write-lock"
    proves = "a writer holds alone, and readers beside readers only"
    letters = "w"
    names = ("w0", "w1")
    rule = "a writer holds alone"

    def ask(self, client: Client, session: Session, name: str, random: Random) -> tuple[Any, Awaitable[Hold]]:
        side: Side = "write" if random.random() < 0.4 else "read"
        return side, ReadWriteLock(client, session, name).acquire(side)

    @staticmethod
    def may_hold(others: Sequence[Any], asked: Any) -> bool:
        return not others or "write" not in (*others, asked)


class SemaphoreWorkload(_Locks):
    """More want to hold than there are permits."""

    name = "semaphore"
    proves = f"at most {PERMITS} hold at once, counting those whose tokens still let writes happen"
    letters = "s"
    names = ("s0",)
    rule = "no more holders than permits"

    def ask(self, client: Client, session: Session, name: str, random: Random) -> tuple[Any, Awaitable[Hold | None]]:
        semaphore = Semaphore(client, session, name, PERMITS)
        return None, semaphore.try_acquire() if random.random() < 0.2 else semaphore.acquire()

    @staticmethod
    def may_hold(others: Sequence[Any], asked: Any) -> bool:
        return len(others) < PERMITS
