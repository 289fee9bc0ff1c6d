"""A join in the store, both sides of one flow: a fifth of the events come late, none too late."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oncegate.spark import Change, ClaimedStore, FlowBatch, Store
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.store_join import store_join
from tests.spark.library.case import Case, Write

AFTER_S = 40
ORDERS, PAYMENTS = (events_by({"order": str}, at="at", unit_ms=1000, where=("kind", kind)) for kind in ("o", "p"))
JOIN = store_join("case_join", ORDERS, PAYMENTS, after_ms=1000 * AFTER_S, lateness_ms=500_000)


def both(batch: FlowBatch) -> Iterator[Change]:
    yield from JOIN.left(batch)
    yield from JOIN.right(batch)


def events(chance: random.Random) -> Iterator[Write]:
    for number in range(2_000):
        late = chance.choice([0, 0, 0, 0, chance.randrange(400)])
        yield f"e{number}", {"kind": chance.choice("op"), "order": f"o{chance.randrange(40)}", "at": number - late}


def read(store: ClaimedStore | Store) -> object:
    passes = [JOIN.assemble(store) for _ in range(2)]
    assert passes[0].evicted > 500
    rows = JOIN.read(store).to_pylist()
    return sorted((row["order"], row["left_commit"], row["right_commit"]) for row in rows)


def recount(writes: list[Write]) -> object:
    sides: dict[str, list[tuple[int, str, int]]] = {"o": [], "p": []}
    for commit, (_, value) in enumerate(writes, 1):
        assert isinstance(value, dict)
        sides[value["kind"]].append((commit, value["order"], value["at"]))
    return sorted(
        (order, left, right)
        for left, order, at in sides["o"]
        for right, other, later in sides["p"]
        if order == other and at <= later <= at + AFTER_S
    )


CASE = Case("join-in-store", both, JOIN.tables, events, read, recount)
