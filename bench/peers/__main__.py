"""``python -m bench.peers [SYSTEM ...]``: the systems beside each other; all of them by default, with the page.

``python -m bench.peers etcd`` runs one; ``page`` draws the page again from the last whole run in
``bench/results/peers.jsonl``. A run of some systems, and a sample (``--quick``), are saved too, and never drawn.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from bench.figures import machine
from bench.harness import Bench, option, save
from bench.options import above_zero, at_least, not_negative
from bench.peers import page
from bench.peers.packages import NotBuilt
from bench.peers.rounds import Plan, play
from bench.peers.systems import PEERS

DURABILITY: Final = "three nodes each, flushed before the answer"


BENCH: Final = Bench(
    "peers", __doc__,
    options=(
        option("--rounds", 3, "that count", quick=1, type=at_least(1)),
        option("--warm", 0.5, "seconds of each load before its window", type=not_negative),
        option("--seconds", 1.7, "of each window", quick=1.0, type=above_zero),
        option("--kills", 5, "of each leader; 0: none", quick=1, type=at_least(0)),
        option("--repeats", 2, "disturbed rounds that may be run again, all together", type=at_least(0)),
        option("--patience", 60.0, "seconds to wait for a quiet machine, each round", type=not_negative),
        option("--only", "", "modes, separated by commas: txn,sync,sdk and so on"),
    ),
)  # fmt: skip


def main() -> int:
    """Run what the command line says; 0 if every system could be built."""
    by_name = {peer.name: peer for peer in PEERS}
    parser = BENCH.parser()
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(by_name)}; or page")
    options = BENCH.parse(parser)
    if options.systems == ["page"]:
        print(f"drawn: {page.write()}")
        return 0
    if unknown := set(options.systems) - by_name.keys():
        parser.error(f"no such system: {', '.join(sorted(unknown))}; there are {', '.join(by_name)}")
    modes = {case.mode for name in options.systems or by_name for case in by_name[name].cases}
    only = frozenset(options.only.split(",")) if options.only else frozenset[str]()
    if only - modes:
        parser.error(f"no such mode: {', '.join(sorted(only - modes))}; there are {', '.join(sorted(modes))}")
    plan = Plan(
        makers={name: by_name[name] for name in options.systems or by_name},
        rounds=options.rounds,
        warm_s=options.warm,
        measured_s=options.seconds,
        repeats=options.repeats,
        patience_s=options.patience,
        kills=options.kills,
        seed=options.seed,
        directory=options.directory,
        only=only,
    )
    began = time.monotonic()
    about = {
        "bench": "peers",
        "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "durability": DURABILITY,
        **machine(),
        "systems": {name: by_name[name].version for name in plan.makers},
        "rounds": plan.rounds,
        "kills": plan.kills,
        "seed": plan.seed,
        "warm_s": plan.warm_s,
        "measured_s": plan.measured_s,
        "only": sorted(plan.only),
        "quick": options.quick,
    }

    def saved(part: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        if not options.no_save:
            save("peers", {**about, **part}, rows)

    try:
        play(plan, saved)
    except NotBuilt as missing:
        print(f"not built: {missing}", file=sys.stderr)
        return 1
    print(f"took {time.monotonic() - began:.0f} s")
    if not options.no_save and page.is_whole(about):
        print(f"drawn: {page.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
