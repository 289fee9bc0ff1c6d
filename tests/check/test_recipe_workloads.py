"""Each recipe's workload finds a recipe with a mistake, in this process; the recipe as it is passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncegate import Session, Transaction
from oncegate.gateway.client.recipes import election
from oncegate.gateway.client.recipes.line import Hold
from oncegate.gateway.machine import ending, transactions
from oncegate.gateway.machine.rows import StoredRow
from oncegate.recipes import Barrier, Claim, Queue, RateLimiter, ReadWriteLock, Registry, Semaphore, Sequence
from tests.check.in_memory import made

RUNS_MAX = 20
"""The machine decides who comes first: a run shows what needs two at the same moment, or does not."""


async def test_recipes_as_they_are_are_valid(tmp_path: Path) -> None:
    found = (await made("recipes", tmp_path)).found
    assert [(result.name, result.failures) for result in found if result.verdict != "valid"] == []
    idle = {result.name for result in found if not result.operations}
    assert idle <= {"what is open stays open: barrier"}, "nothing was done"


def _without(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a session's method that ignores an argument."""

    async def called(*args: Any, **named: Any) -> Any:
        return await method(*args, **{key: value for key, value in named.items() if key != name})

    return called


async def _not_at_once(sequence: Any, count: int = 1) -> range:
    key = f"{sequence._prefix}last"
    row = await sequence._client.get(sequence._table, key)
    last = (row.value if row else 0) + count
    await sequence._session.put(sequence._table, key, last)
    return range(last - count + 1, last + 1)


async def _taken_over(registry: Any, entry: str, owner: str, *, bound: bool = False) -> int:
    return int((await registry._session.put(registry._table, registry._prefix + entry, owner, bound=bound)).commit)


async def _given(limiter: Any, count: int = 1) -> bool:
    await limiter._take(count)
    return True


async def _short(session: Any, *args: Any, ttl_ms: int = 0, insert: Any = Session.insert, **named: Any) -> Any:
    return await insert(session, *args, **named, ttl_ms=ttl_ms // 2 or None)


def _twice(queue: Any, *args: Any, putting: Any = Queue.putting, **named: Any) -> Any:
    return putting(queue, *args, **named).put(queue._table, f"{queue._prefix}ready/", [0, args[0]], numbered=True)


async def _unkeyed(queue: Any, item: Any, *, put: Any = Queue.put, **named: Any) -> Any:
    return await put(queue, item, **(named | {"idempotency_key": None}))


def _left_behind(machine: Any, client_id: int, table: Any, op: Any, *more: Any, take: Any = transactions._take) -> Any:
    taken, effects = take(machine, client_id, table, op, *more), more[-1]
    effects[:] = [one for one in effects if one[4] is not None or not one[2].startswith(op.key)]
    return taken


def _lost(machine: Any, table: Any, key: str, row: StoredRow, owner: int, end: Any = ending._end) -> Any:
    assert row.life is not None
    gone = StoredRow(row.version, row.value, row.life._replace(then=""))
    table.change(key, row, gone, row.version)
    return end(machine, table, key, gone, owner)


async def _never_aside(queue: Any, claims: list[Claim]) -> list[Claim]:
    return claims


MISTAKES: dict[str, tuple[str, str, tuple[Any, str, Any]]] = {
    "a guard that checks nothing": (
        "lock",
        "no write of an earlier holder",
        (Hold, "guard", lambda hold, transaction: transaction),
    ),
    "a writer waits for writers only": (
        "read-write-lock",
        "a writer holds alone",
        (ReadWriteLock, "_blocked", lambda lock, before, value: "write" in before.values()),
    ),
    "a permit too many": (
        "semaphore",
        "no more holders than permits",
        (Semaphore, "_blocked", lambda semaphore, before, value: len(before) > semaphore._permits),
    ),
    "observers are told of the last in line": (
        "election",
        "observers are told",
        (election, "_first", lambda line: max(line.values(), key=lambda one: one.token, default=None)),
    ),
    "a barrier opens for one less": (
        "barrier",
        "nobody passes before",
        (Barrier, "__init__", lambda self, *args, init=Barrier.__init__: init(self, *args[:-1], args[-1] - 1)),
    ),
    "a barrier counts the dead": ("barrier", "nobody passes before", (Session, "put", _without("bound", Session.put))),
    "a rate without a ceiling": (
        "rate-limiter",
        "no window has more",
        (
            Transaction,
            "increment",
            lambda self, *args, ceiling, increment=Transaction.increment: increment(self, *args),
        ),
    ),
    "a refusal taken for a permit": (
        "rate-limiter",
        "no window has more",
        (RateLimiter, "try_acquire", _given),
    ),
    "a window of half the time": ("rate-limiter", "windows do not overlap", (Session, "insert", _short)),
    "a name is taken away": ("registry", "a name is its owner's", (Registry, "take", _taken_over)),
    "a completion without a guard": (
        "queue",
        "each item is completed or set aside",
        (Claim, "guard", lambda claim, transaction: transaction),
    ),
    "a take leaves what it takes": (
        "queue",
        "each item is completed or set aside",
        (transactions, "_take", _left_behind),
    ),
    "an end loses what it is to move": ("queue", "each item is completed or set aside", (ending, "_end", _lost)),
    "a take does not count": ("queue", "attempts are counted", (transactions, "counted", lambda value: value)),
    "a put puts twice": ("queue", "each item is completed or set aside", (Queue, "putting", _twice)),
    "a put forgets its key": ("queue", "each item is completed or set aside", (Queue, "put", _unkeyed)),
    "an item is claimed for ever": ("queue", "attempts are counted", (Queue, "_living", _never_aside)),
    "a dead letter is lost": (
        "queue",
        "each item is completed or set aside",
        (Claim, "bury", lambda claim: claim.complete()),
    ),
    "a claim given back forgets its attempts": (
        "queue",
        "attempts are counted",
        (
            Claim,
            "release",
            lambda claim, *, delay_ms=None, counts=True, release=Claim.release: release(claim, counts=False),
        ),
    ),
    "numbers are read and then written": ("sequence", "each number", (Sequence, "next", _not_at_once)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_recipe_with_a_mistake_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    workload, check, (owner, name, replacement) = MISTAKES[mistake]
    monkeypatch.setattr(owner, name, replacement)
    for seed in range(RUNS_MAX):
        if (await made(workload, tmp_path, seed)).invalid(check):
            return
    pytest.fail(f"{RUNS_MAX} runs do not show it")
