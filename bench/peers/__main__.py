"""``python -m bench.peers [SYSTEM ...]``: the systems beside each other; all of them by default, with the page.

``python -m bench.peers etcd`` runs one; ``page`` draws the page again from the last whole run in
``bench/results/peers.jsonl``. A run of some systems, and a sample (``--quick``), are saved too, and never drawn.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from bench.figures import machine, save
from bench.options import above_zero, at_least, end_in_order, folder, not_negative
from bench.peers import page
from bench.peers.packages import NotBuilt
from bench.peers.rounds import Plan, play
from bench.peers.systems import PEERS

DURABILITY: Final = "three nodes each, flushed before the answer"


def main() -> int:
    """Run what the command line says; 0 if every system could be built."""
    by_name = {peer.name: peer for peer in PEERS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(by_name)}; or page")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--warm", type=not_negative, default=0.5, help="seconds of each load before its window")
    parser.add_argument("--seconds", type=above_zero, default=1.7, help="of each window")
    parser.add_argument("--kills", type=at_least(0), default=5, help="of each leader; 0: none")
    parser.add_argument(
        "--repeats", type=at_least(0), default=2, help="disturbed rounds that may be run again, all together"
    )
    parser.add_argument(
        "--patience", type=not_negative, default=60.0, help="seconds to wait for a quiet machine, each round"
    )
    parser.add_argument("--seed", type=at_least(0), default=1, help="of the order of the systems")
    parser.add_argument("--directory", type=folder, help="parent of the data; the system's temporary one by default")
    parser.add_argument("--only", default="", help="modes, separated by commas: txn,sync,sdk and so on")
    parser.add_argument("--quick", action="store_true", help="one round, windows of a second, one kill")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    if options.systems == ["page"]:
        print(f"drawn: {page.write()}")
        return 0
    if unknown := set(options.systems) - by_name.keys():
        parser.error(f"no such system: {', '.join(sorted(unknown))}; there are {', '.join(by_name)}")
    modes = {case.mode for name in options.systems or by_name for case in by_name[name].cases}
    only = frozenset(options.only.split(",")) if options.only else frozenset[str]()
    if only - modes:
        parser.error(f"no such mode: {', '.join(sorted(only - modes))}; there are {', '.join(sorted(modes))}")
    if options.quick:
        options.rounds, options.seconds, options.warm, options.kills = 1, 1.0, 0.5, min(1, options.kills)
    end_in_order()
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
