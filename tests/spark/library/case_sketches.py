"""Sketches that are small enough to be exact, three in one job, as the common kill test runs them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from oncegate.spark import ClaimedStore, Store
from oncegate.spark_sink.library.fields import text, whole
from oncegate.spark_sink.library.sketches import distinct, most_frequent, quantiles
from oncegate.spark_sink.library.together import together
from tests.spark.library.case import Case, Write

VISITORS = distinct("visitors", [text("page")], text("who"))
READERS = most_frequent("readers", [text("page")], text("who"))
TIMES = quantiles("times", [text("page")], whole("ms"), ranks=[0, 1])


def writes(chance: random.Random) -> Iterator[Write]:
    for number in range(2_000):
        who = f"w{int(chance.paretovariate(0.5)) % 50}"
        yield f"v{number}", {"page": f"p{chance.randrange(5)}", "who": who, "ms": chance.randrange(10**6)}


def visitors(store: ClaimedStore | Store) -> object:
    return {row["page"]: row["estimate"] for row in VISITORS.read(store).to_pylist()}


def readers(store: ClaimedStore | Store) -> object:
    rows = READERS.read(store).to_pylist()
    return {row["page"]: {(item["value"], item["low"], item["high"]) for item in row["items"]} for row in rows}


def times(store: ClaimedStore | Store) -> object:
    return {row["page"]: (row["count"], row["q0"], row["q1"]) for row in TIMES.read(store).to_pylist()}


def by_page(written: list[Write], field: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for _, value in written:
        found.setdefault(value["page"], []).append(value[field])  # type: ignore[index]
    return found


def different(written: list[Write]) -> object:
    return {page: len(set(who)) for page, who in by_page(written, "who").items()}


def frequent(written: list[Write]) -> object:
    return {page: {(w, n, n) for w, n in Counter(who).items()} for page, who in by_page(written, "who").items()}


def extremes(written: list[Write]) -> object:
    return {page: (len(ms), min(ms), max(ms)) for page, ms in by_page(written, "ms").items()}  # type: ignore[type-var]


def read(store: ClaimedStore | Store) -> object:
    return visitors(store), readers(store), times(store)


def expected(written: list[Write]) -> object:
    return different(written), frequent(written), extremes(written)


PAGES = together(VISITORS, READERS, TIMES)
CASE = Case("pages-visited", PAGES, PAGES.tables, writes, read, expected)
