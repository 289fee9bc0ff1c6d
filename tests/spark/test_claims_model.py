"""Claims of a store (`claims`) against the table of their module: adopted, inherited, wiped and begun in any order."""

from __future__ import annotations

import random
from contextlib import suppress

import msgspec
import pyarrow as pa
import pytest

from oncegate.stores import claims
from oncegate.stores.claims import STORE_META, VERSION, Claim
from oncegate.stores.column_types import ColumnType
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import WRITE_TS, Column, StoreTable
from oncegate.stores.write_times import EPOCH_MAX
from tests.spark.test_claimed import Memory

CLUSTERS = ("a" * 32, "b" * 32, "c" * 32)
ROWS = StoreTable("rows", (Column("k", ColumnType.TEXT),), ("k",))
A_ROW = pa.RecordBatch.from_pylist([{"k": "1", WRITE_TS: 5}], schema=ROWS.schema)


class Walk:
    """A store, and what its claim and its notes of deliveries have to be."""

    def __init__(self, seed: int) -> None:
        self.dice, self.store = random.Random(seed), Memory()
        self.expected: Claim | None = None
        self.begun: dict[tuple[str, str], int] = {}

    def claim_new(self) -> None:
        """Of the tables of a store that is empty; afterwards it says whose they are."""
        cluster = self.dice.choice(CLUSTERS)
        if self.expected is None and "rows" in self.store.rows:
            with pytest.raises(StoreError, match="earlier version"):
                claims.claim_new(self.store, "here", cluster, "name")
            return
        found = claims.claim_new(self.store, "here", cluster, "name")
        self.expected = self.expected or Claim(cluster, 1, 1, "name")
        assert found == self.expected

    def adopt(self) -> None:
        cluster, at_least = self.dice.choice(CLUSTERS), self.dice.choice((0, 0, 0, 3, 40))
        origin = self.dice.choice((("", 0), (self.dice.choice(CLUSTERS), self.dice.randint(1, 99))))
        before = self.expected
        if not self.store.rows:
            with pytest.raises(StoreError, match="holds no store"):
                claims.adopt(self.store, "here", cluster)
            return
        if before is None:
            self.expected = Claim(cluster, max(1, at_least), 0, "new")
        elif before.cluster != cluster or at_least > before.epoch:
            self.expected = Claim(cluster, max(before.epoch + 1, at_least), before.floor, "new")
            if before.cluster == origin[0]:
                self.expected = msgspec.structs.replace(
                    self.expected,
                    inherited=(*before.inherited, (before.epoch, origin[1])),
                )
        assert claims.adopt(self.store, "here", cluster, "new", epoch=at_least, origin=origin) == self.expected

    def wipe(self) -> None:
        cluster, before = self.dice.choice(CLUSTERS), self.expected
        if before is None:
            with pytest.raises(StoreError) as refused:
                claims.wipe(self.store, "here", cluster)
            assert refused.value.code is StoreCode.STORE_MISMATCH
            return
        # The claim comes first: it stands where the rest fails.
        fails = self.dice.random() < 0.3
        if fails:
            self.store.clear = lambda tables: 1 / 0  # type: ignore[assignment, method-assign]
        with suppress(ZeroDivisionError):
            claims.wipe(self.store, "here", cluster, "wiped")
            assert not self.store.rows.get("rows")
        if fails:
            del self.store.clear
        self.expected = Claim(cluster, before.epoch + 1, before.epoch + 1, "wiped")

    def begin(self) -> None:
        if self.expected is not None:
            place = self.dice.choice("fg"), self.dice.choice("cd")
            claims.begin(self.store, self.expected, *place)
            self.begun[place] = self.expected.epoch

    def write(self) -> None:
        self.store.create([ROWS])
        self.store.write(ROWS, A_ROW)

    def check(self) -> None:
        if self.expected is None:
            with pytest.raises(StoreError) as refused:
                claims.read_claim(self.store, "here")
            assert refused.value.code is StoreCode.STORE_MISMATCH
            return
        found = claims.read_claim(self.store, "here")
        assert found == self.expected
        assert found.version == VERSION
        own = {found.epoch, *(epoch for epoch, _ in found.inherited)}
        for flow in "fg":
            for consumer in "cd":
                assert claims.began(self.store, found, flow, consumer) == (self.begun.get((flow, consumer)) in own)
        assert claims.deliveries(self.store) == sorted(self.begun)


@pytest.mark.parametrize("seed", range(12))
def test_claim_is_what_the_steps_before_it_make_of_it(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(60):
        walk.dice.choice((walk.claim_new, walk.adopt, walk.adopt, walk.wipe, walk.begin, walk.begin, walk.write))()
        walk.check()


def test_last_epoch_is_taken_and_none_beyond() -> None:
    store = Memory()
    store.create([STORE_META])
    assert claims.adopt(store, "here", CLUSTERS[0], epoch=EPOCH_MAX).epoch == EPOCH_MAX
    for change in (claims.adopt, claims.wipe):
        with pytest.raises(StoreError, match="use a new store"):
            change(store, "here", CLUSTERS[1])
    assert claims.read_claim(store, "here").cluster == CLUSTERS[0]
