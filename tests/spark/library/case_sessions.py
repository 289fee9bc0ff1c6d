"""Sessions of event time: a fifth of the events come late."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

from oncegate.spark import ClaimedStore, Store
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.sessions import sessions
from tests.spark.library.case import Case, Write

GAP_S = 60
JOB = sessions("case_sessions", events_by({"user": int}, at="at", unit_ms=1000), gap_ms=GAP_S * 1000)


def events(chance: random.Random) -> Iterator[Write]:
    for number in range(2_000):
        late = chance.choice([0, 0, 0, 0, chance.randrange(1_000)])
        yield f"e{number}", {"user": chance.randrange(30), "at": 2 * number - late}


def read(store: ClaimedStore | Store) -> object:
    rows = JOB.read(store).to_pylist()
    return sorted((row["user"], row["start_ms"] // 1000, row["end_ms"] // 1000, row["events"]) for row in rows)


def recount(writes: list[Write]) -> object:
    times: dict[int, list[int]] = defaultdict(list)
    for _, value in writes:
        assert isinstance(value, dict)
        times[value["user"]].append(value["at"])
    found = []
    for user, ordered in ((user, sorted(each)) for user, each in times.items()):
        begin = 0
        for at in range(1, len(ordered) + 1):
            if at == len(ordered) or ordered[at] - ordered[at - 1] > GAP_S:
                found.append((user, ordered[begin], ordered[at - 1], at - begin))
                begin = at
    return sorted(found)


CASE = Case("sessions", JOB, JOB.tables, events, read, recount)
