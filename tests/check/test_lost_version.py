"""Which final reads show that a write was lost, against a plain reading of any history of two rows."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from oncegate.proof.check.checks import no_lost_version
from oncegate.proof.lincheck import operations
from tests.check.histories import Book

WRITES = ("put", "delete")


class Write(NamedTuple):
    """A write, and the version that its answer told; None where its outcome is unknown."""

    f: str
    version: int | None


def is_lost(writes: list[Write], seen: int) -> bool:
    """Say whether a final read of this version, 0 for no row, can not be behind all acknowledged writes."""
    acknowledged = [one for one in writes if one.version is not None]
    if not acknowledged:
        return False
    newest = max(acknowledged, key=lambda one: one.version or 0)
    can_be_gone = newest.f == "delete" or Write("delete", None) in writes
    return seen < (newest.version or 0) and not (seen == 0 and can_be_gone)


@pytest.mark.parametrize("seed", range(120))
def test_a_version_is_lost_exactly_if_no_write_of_its_own_row_explains_what_is_read(seed: int) -> None:
    dice, book, commit = random.Random(seed), Book(), 0
    rows: dict[str, list[Write]] = {"a": [], "b": []}
    for _ in range(dice.randint(1, 5)):
        commit += 1
        row, one = dice.choice("ab"), Write(dice.choice(WRITES), dice.choice((None, commit, commit)))
        rows[row].append(one)
        told = None if one.version is None else {"version": one.version}
        book.did(one.f, row, 1, told, end="info" if told is None else "ok")
    lost = False
    for row, writes in rows.items():
        seen = dice.choice((0, dice.randint(0, commit), commit))
        lost = lost or is_lost(writes, seen)
        book.read(row, {"version": seen}, "get")
    assert (no_lost_version(operations(book.events), WRITES).verdict == "invalid") == lost
