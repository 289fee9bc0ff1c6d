"""Rounds: in each, every system in turn on a fresh cluster, with all its loads; the order changes from round to round.

Owns: the order, the calibrations of a round, and that a disturbed round is run again while repeats are left. A figure
is compared with another of its own round only (:mod:`bench.peers.ratios`): the machine changes from minute to minute.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import disturbance
from bench.calibrate import bare_posts, fdatasync_4k
from bench.harness import shown
from bench.peers import kills, measure
from bench.peers.measure import LoadFailed
from bench.peers.peer import Case, Peer

BARE_S: Final = 1.5
FAILURE_CHARS: Final = 200
"""Of a failure that are kept with a run; the whole text, logs included, is printed."""
FAILURES: Final = (LoadFailed, OSError, RuntimeError, subprocess.SubprocessError)
"""Of one system, which the others do not suffer from: it does not start or answer, its disk is full."""
Maker = Callable[[Path], Peer]
"""Makes a system whose data goes below a folder."""


class Plan(NamedTuple):
    """What is run.

    Attributes:
        makers: the systems by name, in the order of the first round.
        rounds: how many of them count.
        warm_s, measured_s: of each load.
        repeats: how many disturbed rounds may be run again, all together.
        patience_s: how long a round waits for a quiet machine.
        kills: of each system's leader, after the rounds.
        seed: shifts the order of the rounds.
        directory: parent of the data; None: the system's temporary one.
        only: modes that are measured; empty: all.
    """

    makers: dict[str, Maker]
    rounds: int
    warm_s: float
    measured_s: float
    repeats: int
    patience_s: float
    kills: int
    seed: int = 1
    directory: Path | None = None
    only: frozenset[str] = frozenset()


Saved = Callable[[dict[str, Any], list[dict[str, Any]]], None]
"""Takes what is known of a part (a round, or the kills), and its rows."""


def play(plan: Plan, save: Saved) -> None:
    """Run all rounds, then the kills; each part is saved when it is over."""
    repeats = plan.repeats
    for number in range(plan.rounds):
        attempt = 0
        while True:
            attempt += 1
            about, rows = one_round(plan, number, give_up=repeats > 0)
            save({"part": "round", "round": number + 1, "attempt": attempt, **about}, rows)
            if about["disturbed"] is None or not repeats:
                break
            repeats -= 1
            print(f"round {number + 1} is run again: {about['disturbed']}", flush=True)
    if plan.kills:
        save({"part": "kills"}, all_kills(plan))


def one_round(plan: Plan, number: int, *, give_up: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run one round; with ``give_up`` it ends at the first sign of a disturbance."""
    print(f"-- round {number + 1}: waits for a quiet machine, {plan.patience_s:.0f} s at most", flush=True)
    disturbed = disturbance.wait_for_quiet(plan.patience_s)
    about: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="oncegate-peers-", dir=plan.directory) as name:
        about["fdatasync_4k_ms"] = fdatasync_4k(Path(name)).p50_ms
    disturbed = disturbed or disturbance.of_disk(about["fdatasync_4k_ms"])
    about["bare_posts_per_s"] = bare_posts(64, BARE_S)
    about["order"] = order(list(plan.makers), number + plan.seed - 1)
    print(
        f"-- round {number + 1}: fdatasync {about['fdatasync_4k_ms']:.3f} ms, "
        f"{about['bare_posts_per_s']:,.0f} bare POSTs/s; {disturbed or 'quiet'}",
        flush=True,
    )
    rows: list[dict[str, Any]] = []
    for one in about["order"]:
        if disturbed and give_up:
            break
        for row in _loads(plan, one):
            print(shown(row), flush=True)
            rows.append(row)
            disturbed = disturbed or row["disturbed"]
    about["disturbed"] = disturbed
    return about, rows


def order(names: Sequence[str], number: int) -> list[str]:
    """Return the order of a round: nobody is always first, nobody always follows the same one."""
    at = number * 2 % len(names)
    turned = [*names[at:], *names[:at]]
    return turned if number % 2 == 0 else turned[::-1]


def _loads(plan: Plan, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one system; one that fails is a row that says so, and the run goes on."""
    with _on_empty_data(plan, name) as peer:
        cases = [case for case in peer.cases if not plan.only or case.mode in plan.only]
        try:
            peer.start()
            for case in (peer.prime_cases or (peer.kill_case,)) if cases else ():
                measure.window(peer, case, warm_s=0.0, measured_s=peer.prime_s)
        except FAILURES as failure:
            yield from (_failed(peer, case, failure) for case in cases)
            return
        for case in cases:
            try:
                yield measure.window(peer, case, warm_s=plan.warm_s, measured_s=plan.measured_s)
            except FAILURES as failure:
                yield _failed(peer, case, failure)


@contextlib.contextmanager
def _on_empty_data(plan: Plan, name: str) -> Iterator[Peer]:
    with (
        tempfile.TemporaryDirectory(prefix="oncegate-peers-", dir=plan.directory) as folder,
        plan.makers[name](Path(folder) / name) as peer,
    ):
        yield peer


def _failed(peer: Peer, case: Case, failure: Exception) -> dict[str, Any]:
    what = {"peer": peer.name, "mode": case.mode, "outstanding": case.outstanding}
    print(f"{peer.name}: {failure}", file=sys.stderr, flush=True)
    said = str(failure).splitlines() or [type(failure).__name__]
    return {**what, "failed": said[0][:FAILURE_CHARS], "disturbed": None}


def all_kills(plan: Plan) -> list[dict[str, Any]]:
    """Kill each system's leader on a cluster of its own."""
    rows = []
    for name in plan.makers:
        with _on_empty_data(plan, name) as peer:
            try:
                peer.start()
                row = kills.run(peer, plan.kills)
            except FAILURES as failure:
                row = {**_failed(peer, peer.kill_case, failure), "gaps_s": [], "acknowledged": None, "lost": None}
            rows.append(row)
            gaps = ", ".join(f"{gap:.3f}" for gap in row["gaps_s"])
            told = row.get("failed") or f"{gaps} s; {row['acknowledged']:,} acknowledged, {row['lost']} lost"
            print(f"{name:<10} leader killed: {told}", flush=True)
    return rows
