"""The load of ``oncegate perf``: single writes through the SDK into a table of its own, which goes afterwards.

Owns: the table's name, how much is written, and that nothing is left. The table has one name, so that what a command
left that was killed is used, and dropped, by the next one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from oncegate.gateway.cli.perf_host import Spread
from oncegate.rifl.errors import Code, OncegateError

if TYPE_CHECKING:
    from oncegate.gateway.client.client import Client
    from oncegate.gateway.client.session import Session

TABLE: Final = "oncegate-perf"
QUOTA_BYTES: Final = 16 * 2**20 + 57
"""Nobody else's table has this quota: one of this name with another is left alone."""
OUTSTANDING: Final = (1, 64)
WRITES_MAX: Final = 500_000
"""Of one load, however fast the cluster is."""
_ROWS: Final = 4_096
_VALUE: Final = "v" * 198
"""200 bytes of JSON."""
_WARM_SHARE: Final = 0.2
_DROP_S: Final = 10.0


class Loaded(NamedTuple):
    """What a load found."""

    outstanding: int
    writes: int
    seconds: float
    latency: Spread

    @property
    def per_s(self) -> float:
        """Writes a second."""
        return self.writes / self.seconds


class TableTaken(Exception):
    """A table of this name was there before, and is not one of this command."""


async def load(client: Client, seconds: float) -> list[Loaded]:
    """Write for a while with each number of outstanding writes; the table is dropped then, also after a failure.

    Args:
        client: an open one, whose token may declare, write and drop a table.
        seconds: of each load.

    Raises:
        OperationFailed: the cluster refused, or did not answer in time.
        TableTaken: see there; nothing was written.
    """
    for table in await client.tables():
        if table.name == TABLE and (table.kind, table.quota_bytes) != ("resident", QUOTA_BYTES):
            raise TableTaken(f"there is a table {TABLE} of another kind or quota: rename or drop it")
    declared = await client.declare_table(TABLE, quota_bytes=QUOTA_BYTES)
    try:
        async with client.session(lease_ms=60_000) as session:
            return [await _loaded(session, outstanding, seconds) for outstanding in OUTSTANDING]
    finally:
        # Whatever stopped the load, also Ctrl-C, which cancels this task.
        await asyncio.shield(_drop(client, declared.incarnation))


async def _drop(client: Client, incarnation: int) -> None:
    try:
        await client.drop_table(TABLE, incarnation=incarnation, force=True, timeout_s=_DROP_S)
    except OncegateError as refusal:
        if refusal.code not in (Code.NOT_FOUND, Code.CONFLICT):  # another command of this kind has dropped it
            raise


async def _loaded(session: Session, outstanding: int, seconds: float) -> Loaded:
    clock, times = time.perf_counter, list[float]()
    began = clock()
    counted_from, until = began + seconds * _WARM_SHARE, began + seconds
    numbers = iter(range(WRITES_MAX))

    async def worker() -> None:
        for number in numbers:
            began = clock()
            if began >= until:
                return
            await session.put(TABLE, f"k{number % _ROWS}", _VALUE)
            if began >= counted_from:
                times.append(clock() - began)

    await asyncio.gather(*(worker() for _ in range(outstanding)))
    took = clock() - counted_from
    if not times:  # the first write alone took all the time there was
        times.append(clock() - began)
        took = times[0]
    return Loaded(outstanding, len(times), took, Spread.of(times))
