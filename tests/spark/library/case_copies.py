"""A copy with an index by a field and one of words, whose rows change and go, as the common kill test runs it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from oncegate.spark import ClaimedStore, Store
from oncegate.spark_sink.library.copies import copied
from oncegate.spark_sink.library.fields import text, whole
from tests.spark.library.case import Case, Write

NOTES = copied(
    "notes", [text("author"), text("text"), whole("at", default=0)], by=["author", "at"], words_of=["text"], buckets=2
)
AUTHORS = ["ann", "Bob", "", "ünal"]
WORDS = ["Straße", "STRASSE", "naïve", "ﬁne", "fine", "42", "x_1", "Ωμέγα", "ωμέγα"]


def writes(chance: random.Random) -> Iterator[Write]:
    for _ in range(2_000):
        key = f"n{chance.randrange(300)}"
        if chance.random() < 0.15:
            yield key, None
        else:
            said = ", ".join(chance.sample(WORDS, chance.randrange(4)))
            yield key, {"author": chance.choice(AUTHORS), "text": f"{said}!", "at": chance.randrange(3)}


def read(store: ClaimedStore | Store) -> object:
    by_author = {author: {row["key"] for row in NOTES.find(store, "author", author)} for author in AUTHORS}
    by_time = {at: {row["key"] for row in NOTES.find(store, "at", at)} for at in range(3)}
    found = {query: {row["key"] for row in NOTES.search(store, "text", query)} for query in ("strasse", "FINE 42")}
    states = {row["key"]: row["text"] for rows in store.scan(NOTES.table) for row in rows.to_pylist()}
    return by_author, by_time, found, states


def expected(written: list[Write]) -> object:
    last = {key: value for key, value in dict(written).items() if isinstance(value, dict)}
    by_author = {author: {key for key in last if last[key]["author"] == author} for author in AUTHORS}
    by_time = {at: {key for key in last if last[key]["at"] == at} for at in range(3)}
    said = {key: set(re.split(r"[ ,!]+", last[key]["text"])) for key in last}
    streets = {key for key in last if {"Straße", "STRASSE"} & said[key]}
    fine = {key for key in last if {"ﬁne", "fine"} & said[key] and "42" in said[key]}
    states = {key: last[key]["text"] for key in last}
    return by_author, by_time, {"strasse": streets, "FINE 42": fine}, states


CASE = Case("notes-found", NOTES, NOTES.tables, writes, read, expected)
