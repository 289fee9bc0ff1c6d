"""The derivations over event time on real messages: items a second of processor time, from items to rows of the table.

    python -m bench.event_time [--rounds N]

`python loop` is what a derivation makes that goes over the items one by one, as docs/spark.md shows it: the same counts
as `tumbling`. No store and no Spark: the rows are made and thrown away.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.figures import header
from oncegate.spark import FlowBatch
from oncegate.spark_sink.derivation import Change, Derivation, changes_of
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.sessions import sessions
from oncegate.spark_sink.library.store_join import store_join
from oncegate.spark_sink.library.windows import sliding, tumbling

DATA = Path(__file__).parents[1] / "examples" / "collegemsg.txt.gz"
PER_BATCH = 20_000
HOUR_MS = 3_600_000
EVENTS = events_by({"sender": int}, at="sent_at", unit_ms=1000)
TUMBLING = tumbling("tumbling", EVENTS, size_ms=HOUR_MS)
JOIN = store_join("join", EVENTS, EVENTS, after_ms=HOUR_MS, lateness_ms=0)


def python_loop(batch: FlowBatch) -> Iterator[Change]:
    """One item after the other."""
    counts: Counter[tuple[int, int]] = Counter()
    for item in batch:
        message = item.json()
        counts[message["sender"], message["sent_at"] * 1000 // HOUR_MS * HOUR_MS] += 1
    for (sender, pane_ms), count in counts.items():
        yield batch.upsert(TUMBLING.table, sender=sender, pane_ms=pane_ms, batch=batch.number, events=count)


WAYS: dict[str, Derivation] = {
    "python loop": python_loop,
    "tumbling": TUMBLING,
    "sliding": sliding("sliding", EVENTS, size_ms=24 * HOUR_MS, slide_ms=HOUR_MS),
    "sessions": sessions("sessions", EVENTS, gap_ms=HOUR_MS),
    "join side": JOIN.left,
}


def batches() -> list[FlowBatch]:
    """Return all messages of the file."""
    with gzip.open(DATA, "rt") as lines:
        next(lines)
        rows = [dict(zip(("sender", "receiver", "sent_at"), map(int, line.split()), strict=True)) for line in lines]
    written = [(f"m{at}", row) for at, row in enumerate(rows)]
    cuts = range(0, len(written), PER_BATCH)
    return [
        FlowBatch.of(*written[at : at + PER_BATCH], number=number, first_commit=at + 1)
        for number, at in enumerate(cuts, 1)
    ]


def main() -> None:
    """Print the best round of each way; rounds alternate."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    rounds = options.parse_args().rounds
    header("event_time", seed=0, durability="none: rows are made and not written", calibrations={})
    given = batches()
    items = sum(batch.items.num_rows for batch in given)
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, derivation in WAYS.items():
            begin = time.process_time()
            for batch in given:
                for _ in changes_of(derivation, batch):
                    pass
            best[name] = max(best.get(name, 0), items / (time.process_time() - begin))
    for name, rate in best.items():
        print(f"{name:12} {rate:12,.0f} items/s  {rate / best['python loop']:6.1f}")


if __name__ == "__main__":
    main()
