"""Lists that are appended to: the order of all appends of a key is in every read.

Judged by the list model and by counting: every item is unique.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from oncegate.proof.check.checks import linearizable
from oncegate.proof.check.direct_session import DirectSession
from oncegate.proof.check.durability import exactly_once, no_lost_item
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workload import SessionLoop
from oncegate.proof.lincheck import Event, Operation, Result, operations

TABLE: Final = "lists"
ITEMS_A_LIST: Final = 200
"""After so many appends the workers go on to the next two lists: reads stay short."""


def items(row: Mapping[str, Any] | None) -> list[Any]:
    """Return a read list; an absent one is empty."""
    return [] if row is None else list(row["value"])


class Lists:
    """Hands out items, and remembers which lists they went to."""

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}
        self._items = 0

    def next(self, random: Random) -> tuple[str, int]:
        """Return a list and an item that nobody has sent yet."""
        self._items += 1
        key = f"l{2 * (self._items // (2 * ITEMS_A_LIST)) + random.randrange(2)}"
        self.keys[key] = None
        return key, self._items

    def current(self, random: Random) -> str:
        """Return a list that is appended to now."""
        return f"l{2 * (self._items // (2 * ITEMS_A_LIST)) + random.randrange(2)}"


def append_of(key: str, item: int) -> dict[str, Any]:
    """Return the operation that appends an item, as it travels."""
    return {"op": "append", "table": TABLE, "key": key, "item": item}


def list_checks(found: Sequence[Operation]) -> list[Result]:
    """Return what every workload of lists is judged by."""
    return [linearizable(found, "list", ("append", "read")), no_lost_item(found), exactly_once(found)]


class OnLists:
    """What workloads on lists share: their table, and what is read in the end."""

    def __init__(self) -> None:
        self._lists = Lists()

    async def set_up(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.declare(TABLE)

    async def finish(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.final_reads(TABLE, list(self._lists.keys), answer=items)


class AppendWorkload(OnLists, SessionLoop):
    """Appends and reads."""

    name: ClassVar[str] = "append"
    proves: ClassVar[str] = "appends are applied once, in one order that every node tells"

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Append an item or read a list."""
        if random.random() < 0.3:
            await world.read(process, TABLE, self._lists.current(random), random, answer=items)
            return
        key, item = self._lists.next(random)
        await world.write(process, session, append_of(key, item), "append", item)

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        return list_checks(operations(history))
