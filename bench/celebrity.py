"""How long posts of ordinary authors wait behind one of an author with very many followers, in one task of a job.

    python -m bench.celebrity

Each batch of posts is derived and written into SQLite three times in turn, and timed: without a post of the celebrity,
with one that is copied to all, with one that is one row. From these times follows when each batch is durable if batches
arrive evenly, four times as slowly as they are written without the celebrity, and one is begun when the one before is
done. In turn, so that what else the machine does meets all three alike.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet

from bench.figures import header
from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.library.fan_out import fan_out
from oncegate.spark_sink.library.fields import whole
from oncegate.stores import open_store

STAR = 0
AUTHORS, FOLLOWERS = 2_000, 60
EVERY = 20
ARRIVAL = 4
KINDS = {"no celebrity": (10_000, False), "copied to all": (10**9, True), "one row": (10_000, True)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--followers", type=int, default=300_000)
    options.add_argument("--batches", type=int, default=200)
    options.add_argument("--posts", type=int, default=40, help="in each batch")
    args = options.parse_args()
    header("celebrity", seed=1, durability="SQLite, synchronous=FULL", calibrations={})
    with tempfile.TemporaryDirectory() as directory:
        chance = random.Random(1)
        edges = [(author, chance.randrange(10**6)) for author in range(1, AUTHORS) for _ in range(FOLLOWERS)]
        edges += [(STAR, follower) for follower in range(args.followers)]
        senders, followers = zip(*edges, strict=True)
        file = f"{directory}/followers.parquet"
        pyarrow.parquet.write_table(pa.table({"sender": senders, "follower": followers}), file)
        spent = measured(Path(directory), file, args)
    pace = ARRIVAL * median(spent["no celebrity"])
    print(f"one batch of {args.posts} posts each {pace * 1000:.0f} ms; one of {EVERY} has a post of the celebrity")
    base = 0.0
    for kind, times in spent.items():
        waits = sorted(waited(times, pace))
        p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        base = base or p99
        print(f"{kind:14} others wait p50 {p50 * 1000:8.1f} ms, p99 {p99 * 1000:8.1f} ms: {p99 / base:6.2f} times")


def measured(directory: Path, file: str, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds for each batch by kind."""
    chance = random.Random(2)
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        jobs = {}
        for kind, (over, star) in KINDS.items():
            job = fan_out("feed", whole("author"), file, celebrity_over=over)
            store = stack.enter_context(open_store(f"sqlite://{directory}/{kind.replace(' ', '-')}"))
            store.create((*job.tables, DEAD_LETTERS))
            jobs[kind] = (Applier(job), store, star)
        for number in range(args.batches + 1):
            authors, first = [chance.randrange(1, AUTHORS) for _ in range(args.posts)], number * args.posts + 1
            for kind, (applier, store, star) in jobs.items():
                starred = [STAR, *authors[1:]] if star and number % EVERY == EVERY // 2 else authors
                items = [(f"p{at}", {"author": author}) for at, author in enumerate(starred, first)]
                batch = FlowBatch.of(*items, number=number + 1, first_commit=first)
                begun = time.perf_counter()
                applier.apply(batch, store, Done())
                if number:  # the first one opens files
                    spent[kind].append(time.perf_counter() - begun)
    return spent


def waited(spent: list[float], pace: float) -> list[float]:
    """Seconds from a batch's arrival to its end, one after another."""
    found, free = [], 0.0
    for number, seconds in enumerate(spent):
        free = max(free, number * pace) + seconds
        found.append(free - number * pace)
    return found


if __name__ == "__main__":
    main()
