"""Every job of the library, killed with -9 in the middle of a batch in which it has items, ends exact.

They run as one job: a JVM and the processes of a query start once a kill, not once a kill and job.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from oncegate.gateway.local.waiting import wait_for
from oncegate.stores import ClaimedStore, claimed_store
from oncegate.stores.tables import WRITE_TS, StoreTable
from tests.spark.fake_gateway import FakeFlow, serving
from tests.spark.library.every_case import BATCHES_PER_TRIGGER, CASES, NAME, by_case, writes
from tests.spark.test_kill import killed, log

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SEED = 15
BATCHES = 12


def test_each_job_of_the_library_ends_exact_when_it_is_killed_in_the_middle_of_a_batch(
    store_url: str, tmp_path: Path
) -> None:
    written = writes(random.Random(SEED))
    own = by_case(written)
    flow = FakeFlow(NAME, NAME)
    per_batch = -(-len(written) // BATCHES)
    flow.seal_all(
        [(commit, key, None if value is None else json.dumps(value)) for commit, (key, value) in enumerate(written, 1)],
        per_batch,
    )
    held, release, again = threading.Event(), threading.Event(), threading.Event()
    middle = 2 * BATCHES_PER_TRIGGER

    def hold(number: int) -> None:
        if number == middle:
            held.set()
            release.wait(600)

    with serving(flow) as node, claimed_store(store_url) as store:
        command = [sys.executable, "-m", "tests.spark.library.every_case", node.url, store_url, f"{tmp_path}/state"]

        def started(number: int) -> subprocess.Popen[bytes]:
            with log(tmp_path, number) as out:
                return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

        # First: one task has written its share of the second micro-batch, the other one still waits for its last batch.
        node.before_batch = hold
        job = started(1)
        assert held.wait(300)
        for name, case in CASES.items():
            finished = len(own[name]) * BATCHES_PER_TRIGGER // BATCHES + 1
            hit = partial(any_row_behind, store, case.tables, finished)
            wait_for(hit, 300, f"rows of {name} that the cursor has not passed", every_s=0.5)
        killed(job)
        release.set()
        assert flow.consumers[NAME].cursor == BATCHES_PER_TRIGGER
        # Second: wherever it is when it reads the last batch of all.
        node.before_batch = lambda number: again.set() if number == BATCHES else None
        job = started(2)
        assert again.wait(600)
        killed(job)
        assert flow.consumers[NAME].cursor < BATCHES
        assert started(3).wait(600) == 0, (tmp_path / "job-3.log").read_text()[-3000:]
        assert flow.consumers[NAME].cursor == flow.last_batch == BATCHES
        for name, case in CASES.items():
            assert case.read(store) == case.expected(own[name]), name


def any_row_behind(store: ClaimedStore, tables: tuple[StoreTable, ...], commit: int) -> bool:
    return any(
        rows.num_rows and np.asarray(rows.column(WRITE_TS)).max() > commit
        for table in tables
        for rows in store.scan(table)
    )
