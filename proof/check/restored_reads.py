"""What a backup holds, in the history: rows of a cluster that began with it are reads, judged like all others.

A backup holds everything that was acknowledged before it was asked for. So a row of the new cluster is a linearizable
read that began when the backup was asked for, and ended when the new cluster answered. Called from threads of faults;
the history belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from oncegate.gateway.client.paths import row_path
from oncegate.gateway.local.blocking_http import RequestRefused, send_json
from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.check.recorder import OpenOperation
from oncegate.proof.check.workload import Workload, World

T = TypeVar("T")
ROWS_MAX: Final = 8
_READ_S: Final = 10.0


class RestoredReads:
    """Reads of a workload's rows, under the highest numbers of workers; one backup at a time."""

    def __init__(self, world: World, workload: Workload) -> None:
        self._world, self._workload = world, workload
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, OpenOperation] = {}

    def begin(self, node: str) -> bool:
        """Begin to read; call before ``node`` is asked for the backup. False: there is nothing to judge it by."""

        def work() -> bool:
            lanes = range(PROCESSES_MAX - 1, self._world.plan.processes - 1, -1)[:ROWS_MAX]
            for process, key in zip(lanes, self._workload.restorable(), strict=False):
                self._open[key] = self._world.recorder.begin(process, self._workload.f, key, node=node)
            return bool(self._open)

        return self._on_loop(work)

    def end(self, endpoint: str) -> int:
        """Read at the new cluster; returns how many rows. Raises RequestRefused, Unreachable: :meth:`give_up` then."""
        rows = {key: _row(f"{endpoint}{row_path(self._workload.table, key)}") for key in self._open}

        def work() -> int:
            for key, row in rows.items():
                self._open.pop(key).ok(self._workload.seen(row))
            return len(rows)

        return self._on_loop(work)

    def give_up(self, why: str) -> None:
        """There is no answer."""

        def work() -> None:
            for recorded in self._open.values():
                recorded.fail(why)
            self._open.clear()

        self._on_loop(work)

    def _on_loop(self, work: Callable[[], T]) -> T:
        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


def _row(url: str) -> Mapping[str, Any] | None:
    try:
        return send_json("GET", url, None, _READ_S)
    except RequestRefused as refusal:
        if str(refusal).startswith("NOT_FOUND"):
            return None
        raise
