"""A write under a key tells what the same write of a session tells, again too: of twin rows, one written by each."""

from __future__ import annotations

import random
from typing import Any

import pytest

from oncegate import Client, Session, WriteResult


def told(result: WriteResult) -> tuple[object, ...]:
    """What does not depend on who writes; a version is that of the write itself, or of the row that refused it."""
    version = "its own" if result.version == result.commit else "another" if result.version else result.version
    return result.applied, version, result.value, result.code, result.writes


@pytest.mark.parametrize("seed", range(3))
async def test_write_under_a_key_tells_what_that_of_a_session_does_and_tells_it_again(
    client: Client, session: Session, seed: int
) -> None:
    make: Any
    one: WriteResult[Any]
    key: dict[str, Any]
    dice, versions = random.Random(seed), dict[str, int | None]()
    for at in range(40):
        row, key = f"{dice.randint(0, 2)}", {"idempotency_key": f"event {at}"}
        plain, twin = ("rows", f"s{row}"), ("rows", f"k{row}")
        stale = dice.random() < 0.3
        match dice.choice(("put", "insert", "replace", "delete", "increment")):
            case "put":
                value: Any = dice.choice((at, {"a": at}))
                one, make = await session.put(*plain, value), lambda: client.put(*twin, value, **key)  # noqa: B023
            case "insert":
                one = await session.put(*plain, at, if_absent=True)
                make = lambda: client.put(*twin, at, if_absent=True, **key)  # noqa: B023, E731
            case "replace":
                mine, its = (1, 1) if stale else (versions.get(plain[1]) or 1, versions.get(twin[1]) or 1)
                one = await session.put(*plain, at, if_version=mine)
                make = lambda: client.put(*twin, at, if_version=its, **key)  # noqa: B023, E731
            case "delete":
                one, make = await session.delete(*plain), lambda: client.delete(*twin, **key)  # noqa: B023
            case _:
                await session.put(*plain, 5)
                await session.put(*twin, 5)
                by = dice.choice((-9, 3))
                one = await session.increment(*plain, by, floor=0)
                make = lambda: client.increment(*twin, by, floor=0, **key)  # noqa: B023, E731
        other = await make()
        assert told(other) == told(one)
        assert (other.replayed, other.memory_ms_left > 0) == (False, True)
        again = await make()
        assert again.memory_ms_left > 0
        assert (again.replayed, told(again), again.commit) == (True, told(other), other.commit)
        assert again.request_id == other.request_id
        for name in (plain, twin):
            found = await client.get(*name)
            versions[name[1]] = None if found is None else found.version
