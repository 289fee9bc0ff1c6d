"""All cases as one job on one flow: each batch has items of every case, and a kill in the middle of it hits them all.

A key is `case/commit/key`: to a case its own writes are the whole log, with commit numbers from 1.
`python -m tests.spark.library.every_case ENDPOINT STORE CHECKPOINT` is the process that is killed.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from oncegate.spark_sink import session
from oncegate.spark_sink.derivation import Change, FlowBatch, Reject
from oncegate.spark_sink.jobs.job import run
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.sink import sink_of
from tests.spark.library.case import Case, Write, all_cases

NAME = "every-case"
BATCHES_PER_TRIGGER = 4
CASES = all_cases()


class EveryCase:
    """Gives each case's derivation the items of its own, as a batch of its own flow."""

    tables = tuple(table for case in CASES.values() for table in case.tables)

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        for name, case in CASES.items():
            own = [at for at, item in enumerate(batch) if item.key.startswith(f"{name}/")]
            if not own:
                continue
            rows = batch.items.take(pa.array(own))
            named = [key.split("/", 2)[1:] for key in rows.column("key").to_pylist()]
            commits = dict(zip((int(commit) for commit, _ in named), rows.column("commit").to_pylist(), strict=True))
            columns = [pa.array(commits, pa.int64()), pa.array([key for _, key in named])]
            items = pa.RecordBatch.from_arrays([*columns, *rows.columns[2:]], schema=rows.schema)
            for change in case.derivation(replace(batch, flow=name, items=items)):
                yield Reject(commits[change.commit], change.error) if isinstance(change, Reject) else change


def writes(chance: random.Random) -> list[Write]:
    """Return the writes of all cases, each from its beginning to its end, spread over the whole."""
    spread = [
        (at / len(found), name, (f"{name}/{at + 1}/{key}", value))
        for name, found in ((name, list(case.writes(chance))) for name, case in CASES.items())
        for at, (key, value) in enumerate(found)
    ]
    return [write for _, _, write in sorted(spread, key=lambda one: one[:2])]


def by_case(written: list[Write]) -> dict[str, list[Write]]:
    """Return the writes of each case, with its own keys."""
    found: dict[str, list[Write]] = {name: [] for name in CASES}
    for key, value in written:
        name, _, own = key.split("/", 2)
        found[name].append((own, value))
    return found


EVERY_CASE = Case(
    NAME,
    EveryCase(),
    EveryCase.tables,
    writes,
    lambda store: {name: case.read(store) for name, case in CASES.items()},
    lambda written: {name: CASES[name].expected(own) for name, own in by_case(written).items()},
)


def main() -> int:
    logging.basicConfig(level=logging.INFO)
    endpoint, store, checkpoint = sys.argv[1:]
    settings = JobSettings(
        tables=EveryCase.tables,
        sink=sink_of(EveryCase(), f"oncegate-{NAME}"),
        endpoints=endpoint,
        flow=NAME,
        consumer=NAME,
        store=store,
        checkpoint=checkpoint,
        batches_per_trigger=BATCHES_PER_TRIGGER,
    )
    spark = session.build(NAME)
    status = run(spark, settings, threading.Event())
    spark.stop()
    return status


if __name__ == "__main__":
    # Spark would pickle a class of `__main__` by value; under its own name it goes by reference.
    from tests.spark.library import every_case

    raise SystemExit(every_case.main())
