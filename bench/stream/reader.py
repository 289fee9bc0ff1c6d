"""The recount's own readers: the job's rows from the store, and the batches themselves over plain HTTP.

Owns: how both are read. Shares no code with the job, its source or the SDK but the form of a key and of a run.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bench.stream.events import RUNS, TABLE, Recount, Runs, numbers_of, recount, runs_of
from oncegate.gateway.local.blocking_http import download, get_json
from oncegate.stores import open_store

TIMEOUT_S = 60.0


def in_store(url: str, acknowledged: Mapping[int, int]) -> Recount:
    """Recount what the job has made of the events."""
    with open_store(url) as store:
        parts = [
            Runs(*(np.asarray(rows.column(name), dtype=np.int64) for name in Runs._fields)) for rows in store.scan(RUNS)
        ]
    return recount(acknowledged, Runs.joined(parts))


class InFlow(NamedTuple):
    """A recount of batches: from ``first_batch`` on, 1 unless some were dropped by the flow's bound of bytes."""

    first_batch: int
    last_batch: int
    recount: Recount


def in_flow(endpoints: Sequence[str], acknowledged: Mapping[int, int], opener: int) -> InFlow:
    """Recount the batches that are retained; all have to be sealed.

    Args:
        endpoints: of the nodes, asked in turn.
        acknowledged: events by caller.
        opener: the caller that wrote into the first batch alone.

    Raises:
        LookupError: no node answers for the flow.
    """
    state = next((found for at in endpoints if (found := get_json(f"{at}/v1/flows/{TABLE}", TIMEOUT_S))), None)
    if state is None:
        raise LookupError(f"no node describes the flow {TABLE}")
    first, last = int(state["first_batch"]), int(state["last_batch"])
    parts = []
    for number in range(first, last + 1):
        data = download(f"{endpoints[number % len(endpoints)]}/v1/flows/{TABLE}/batches/{number}", TIMEOUT_S)
        with pa.ipc.open_stream(io.BytesIO(data)) as stream:
            parts += [runs_of(*numbers_of(part.column("key"))) for part in stream]
    return InFlow(first, last, retained(acknowledged, Runs.joined(parts), first, opener))


def retained(acknowledged: Mapping[int, int], runs: Runs, first_batch: int, opener: int) -> Recount:
    """Recount what the batches from ``first_batch`` on have: of each caller from its first event there to its last.

    Every caller but the ``opener`` writes until the end, so one that has no event there has lost all.
    """
    if first_batch == 1:
        return recount(acknowledged, runs)
    begins = {int(one): int(runs.first[runs.caller == one].min()) for one in np.unique(runs.caller)}
    return recount({one: count for one, count in acknowledged.items() if one != opener}, runs, begins)
