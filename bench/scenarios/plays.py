"""The scenarios: what happens, in which order, and what must hold at the end.

Owns: the three plays. Must not know how parts are started (`bench.scenarios.scene`) or what a sale is made of
(`bench.scenarios.sales`).
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from bench.scenarios.sales import (
    LINES,
    NEWEST,
    TOTALS,
    Rows,
    first_version,
    lines_of,
    newest,
    newest_of,
    second_version,
    stored,
    totals_of,
)
from bench.scenarios.scene import CONSUMER, Scene
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.stores.claimed import claimed_store
from oncegate.stores.devcassandra.cluster import DevCluster

_SALES: Final = "bench.scenarios.sales"


def replay(scene: Scene, seconds: float) -> None:
    """Revoke what a wrong version made of a range and recompute it with the next one, while live traffic goes on.

    Args:
        scene: entered; its store may be of any kind.
        seconds: how long the wrong version runs.
    """
    traffic = scene.traffic()
    wrong = scene.start_job(first_version, (LINES, TOTALS))
    with scene.phase("the job starts"):
        scene.delivering()
    with scene.phase("the wrong version runs"):
        scene.pass_s(seconds)
    with scene.phase("stopped"):
        scene.check("Wrong version: exit status", 0, wrong.stop())
        # Not its cursor: a micro-batch that was cut off has left rows behind it.
        last, since_s = scene.last_batch(), scene.now_s()
    with claimed_store(scene.store) as store:
        letters = store.count(DEAD_LETTERS)
        scene.check("Wrong version: it left dead letters and wrong totals", True, letters > 0 and last > 0)
    right = scene.start_job(second_version, (LINES, TOTALS))
    with scene.phase("replay beside live traffic", fault=True):
        begin = scene.now_s()
        revised = scene.start_job(
            second_version, (LINES, TOTALS), replay="fix", from_batch=1, to_batch=last, available_now=True
        )
        scene.check("Replay: exit status", 0, revised.ended())
        took_s = scene.now_s() - begin
    with scene.phase("live traffic alone"):
        scene.pass_s(seconds / 4)
        written = traffic.stop()
    with scene.phase("catching up"):
        scene.catch_up()
        right.stop()
    scene.figures["batches revised"] = f"1..{last}, {letters:,} dead letters"
    scene.figures["replay"] = f"{took_s:.1f} s with its start, {since_s / took_s:.1f} times as fast as they came"
    scene.figures["largest lag of the live job"] = f"{scene.behind():,} items"
    with claimed_store(scene.store) as store:
        scene.check_rows("Lines: every commit and amount", lines_of(written), stored(store, LINES))
        scene.check_rows("Totals by shop", totals_of(written), stored(store, TOTALS))
        scene.check("Dead letters", 0, sum(rows.num_rows for rows in store.scan(DEAD_LETTERS)))


def cassandra_down(scene: Scene, cassandra: DevCluster, seconds: float) -> None:
    """Kill all nodes of the store under live traffic, start them ``seconds`` later, and let the job catch up."""
    traffic = scene.traffic()
    running = scene.start_job(newest, (LINES, NEWEST))
    with scene.phase("the job starts"):
        scene.delivering()
    with scene.phase("all nodes of Cassandra run"):
        scene.pass_s(seconds / 2)
        before = scene.cursor()
    with scene.phase("Cassandra is down", fault=True):
        begin = scene.now_s()
        for node in cassandra.nodes:
            cassandra.kill(node.number)
        scene.pass_s(seconds)
        stood = scene.cursor()
    grown = scene.behind()
    with scene.phase("Cassandra starts again"):
        cassandra.up()
    back_s = scene.now_s()
    with scene.phase("catching up under traffic"):
        scene.pass_s(seconds / 2)
        written = traffic.stop()
    with scene.phase("catching up"):
        scene.catch_up()
    scene.check("The job never ended", None, running.status)
    scene.check("Exit status when it is stopped", 0, running.stop())
    scene.check("The cursor moved before, and no batch was lost to it meanwhile", True, 0 < before <= stood)
    scene.check("The lag grew: writes went on", True, grown > scene.rate * seconds / 2)
    scene.figures["largest lag"] = f"{scene.behind(since_s=begin):,} items"
    level = next((one.at_s for one in scene.samples if one.at_s > back_s and one.behind.get(CONSUMER, 1) == 0), None)
    scene.figures["nothing left to read"] = f"{level - back_s:.1f} s after its return" if level else "never"
    with claimed_store(scene.store) as store:
        scene.check_rows("Lines: every commit and amount", lines_of(written), stored(store, LINES))
        scene.check_rows("Newest state of each sale", newest_of(written), stored(store, NEWEST))


def rebuilt(scene: Scene, seconds: float) -> None:
    """Rebuild the gateway over a kept store, twice: the job is refused until the store is adopted, then wiped."""
    kept_lines: Rows = {}
    kept_newest: Rows = {}
    for number, way in enumerate(("init", "adopt", "wipe"), start=1):
        checkpoint = str(scene.directory / f"checkpoint-{way}")
        if number > 1:
            with scene.phase("the gateway is built anew", fault=True):
                scene.rebuild()
        traffic = scene.traffic(number)
        if number > 1:
            with scene.phase("the job is refused"):
                refused = scene.start_job(newest, (LINES, NEWEST), checkpoint=checkpoint)
                scene.check(f"Cluster {number}: exit status over the kept store", 5, refused.ended())
        with scene.phase(f"store {way}"):
            scene.check(f"oncegate store {way}", 0, _store(scene, way))
        if way == "wipe":
            kept_lines, kept_newest = {}, {}
        running = scene.start_job(newest, (LINES, NEWEST), checkpoint=checkpoint)
        with scene.phase(f"cluster {number} delivers"):
            scene.pass_s(seconds)
            written = traffic.stop()
        with scene.phase("catching up"):
            scene.catch_up()
            running.stop()
        kept_lines = {**kept_lines, **lines_of(written)}
        kept_newest = newest_of(written, kept_newest)
        with claimed_store(scene.store) as store:
            scene.check_rows(f"Cluster {number}: lines", kept_lines, stored(store, LINES))
            scene.check_rows(f"Cluster {number}: newest state of each sale", kept_newest, stored(store, NEWEST))
    scene.figures["largest lag"] = f"{scene.behind():,} items"


def _store(scene: Scene, way: str) -> int:
    """Run `oncegate store` as an operator does; its exit status."""
    own = {"init": ["--tables", f"{_SALES}:LINES", "--tables", f"{_SALES}:NEWEST"], "wipe": ["--yes"]}
    command = [sys.executable, "-m", "oncegate", "store", way, scene.store, "--endpoint", scene.cluster.endpoints[0]]
    return subprocess.run([*command, *own.get(way, [])], check=False, capture_output=True).returncode
