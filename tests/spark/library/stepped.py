"""Stores of a test, and one in which something else happens before a chosen call: death, another process, a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from oncegate.stores import ClaimedStore, claimed_store
from oncegate.stores.tables import StoreTable


@contextmanager
def opening(directory: Path, tables: Sequence[StoreTable]) -> Iterator[Callable[[], ClaimedStore]]:
    """A function that opens another store with these tables, empty, each time."""
    numbers = count()
    with ExitStack() as opened:

        def new() -> ClaimedStore:
            store = claimed_store(f"sqlite://{directory}/{next(numbers)}?shards=1", "one")
            opened.callback(store.close)
            store.create(tables)
            return store

        yield new


class Step(Exception):
    """The process dies here."""


def die() -> None:
    raise Step


class Stepped:
    """Passes calls on; before number ``at`` it does ``action``, and goes on if that did not raise."""

    def __init__(self, store: Any, at: int, action: Callable[[], object]) -> None:
        self._store, self._left, self._action = store, at, action

    @property
    def ended(self) -> bool:
        """Whether there were fewer calls."""
        return self._left > 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self._action()
            found = getattr(self._store, name)(*arguments, **named)
            return list(found) if name == "scan" else found

        return call


def steps(run: Callable[[int], Stepped]) -> int:
    """Run with an action at each call in turn; returns how many there were."""
    at = 1
    while not run(at).ended:
        at += 1
    return at
