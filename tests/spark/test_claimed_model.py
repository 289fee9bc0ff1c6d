"""A store that changes hands against a dictionary of rows with their epochs: what get, scan and range show of them.

Clusters write, delete, adopt and wipe in any order, wipes break off in the middle, and processes of earlier holders go
on; the reference knows a row's epoch and commit number, the claim's floor, and what it inherits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from oncegate.stores import WRITE_TS, ClaimedStore, Clustering, Column, ColumnType, Store, StoreTable, open_store
from oncegate.stores.claims import adopt, wipe
from oncegate.stores.errors import LostRow, StoreCode, StoreError

CLUSTERS = [letter * 32 for letter in "abc"]
SEATS = StoreTable(
    name="seats",
    columns=(
        Column("hall", ColumnType.TEXT),
        Column("seat", ColumnType.INT64),
        Column("guest", ColumnType.TEXT),
    ),
    partition_key=("hall",),
    clustering=(Clustering("seat"),),
)
HALLS, SEATS_MAX = ("h", "i"), 4
Key = tuple[str, int]


class Row(NamedTuple):
    """What was written last of a row; ``guest`` None: it was deleted."""

    epoch: int
    commit: int
    guest: str | None


class Reference:
    """The claim and all rows, whoever wrote them."""

    def __init__(self) -> None:
        self.cluster, self.epoch, self.floor = CLUSTERS[0], 1, 1
        self.inherited: dict[int, int] = {}
        self.rows: dict[Key, Row] = {}
        self.began = 0
        """Epoch in which the consumer began to deliver."""

    def write(self, key: Key, commit: int, guest: str | None) -> None:
        before = self.rows.get(key)
        if before is None or (before.epoch, before.commit) < (self.epoch, commit):
            self.rows[key] = Row(self.epoch, commit, guest)

    def adopt(self, cluster: str, epoch: int, origin: tuple[str, int]) -> None:
        if cluster == self.cluster and epoch <= self.epoch:
            return
        if self.cluster == origin[0]:
            self.inherited[self.epoch] = origin[1]
        else:
            self.inherited = {}
        self.cluster, self.epoch = cluster, max(self.epoch + 1, epoch)

    def wipe(self, cluster: str) -> None:
        self.cluster, self.epoch, self.inherited = cluster, self.epoch + 1, {}
        self.floor = self.epoch

    def seen(self, key: Key) -> tuple[str, int] | None:
        """Return guest and commit number as a reader has them."""
        row = self.rows.get(key)
        if row is None or row.guest is None or row.epoch < self.floor:
            return None
        if row.epoch == self.epoch:
            return row.guest, row.commit
        if row.epoch not in self.inherited:
            return row.guest, 0
        return (row.guest, row.commit) if row.commit <= self.inherited[row.epoch] else None

    def lost(self, key: Key) -> bool:
        """Whether a write that the holder's log lacks stands where another row may have been."""
        row = self.rows.get(key)
        if row is None or row.guest is None or row.epoch < self.floor or row.epoch == self.epoch:
            return False
        return row.epoch in self.inherited and row.commit > self.inherited[row.epoch]


class Tried:
    """A random walk over a store, and its reference."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.dice, self.model = store, random.Random(seed), Reference()
        self.commit = 0
        self.mine = ClaimedStore(store, "here", CLUSTERS[0])
        self.mine.create([SEATS])
        self.stale: list[ClaimedStore] = []

    def write(self) -> None:
        self.commit += 1
        key = self.dice.choice(HALLS), self.dice.randint(1, SEATS_MAX)
        row = {"hall": key[0], "seat": key[1], "guest": f"g{self.commit}", WRITE_TS: self.commit}
        if self.dice.random() < 0.2:
            schema = pa.schema([SEATS.schema.field(name) for name in ("hall", "seat", WRITE_TS)])
            del row["guest"]
            self.mine.delete(SEATS, pa.RecordBatch.from_pylist([row], schema=schema))
            self.model.write(key, self.commit, None)
        else:
            self.mine.write(SEATS, pa.RecordBatch.from_pylist([row], schema=SEATS.schema))
            self.model.write(key, self.commit, str(row["guest"]))

    def change_hands(self) -> None:
        """Another cluster adopts, one that was restored from the holder's backup or from somebody's; it may be again
        the one that had it."""
        cluster, model = self.dice.choice(CLUSTERS), self.model
        epoch = self.dice.choice((0, 0, 0, model.epoch - 1, model.epoch, model.epoch + 1, model.epoch + 3))
        origin = self.dice.choice(
            (("", 0), *((one, max(0, self.commit - self.dice.randint(0, 3))) for one in CLUSTERS))
        )
        with self.answers_lost():
            adopt(self.store, "here", cluster, epoch=epoch, origin=origin)
        before = model.epoch
        model.adopt(cluster, epoch, origin)
        self._moved(changed=model.epoch != before)

    def wipe(self) -> None:
        cluster = self.dice.choice(CLUSTERS)
        if self.dice.random() < 0.5:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(self.store), "clear", self._breaks_off)
                with pytest.raises(StoreError):
                    wipe(self.store, "here", cluster)
        else:
            with self.answers_lost():
                wipe(self.store, "here", cluster)
            self.model.rows.clear()
        self.model.wipe(cluster)
        self._moved(changed=True)

    @contextmanager
    def answers_lost(self) -> Iterator[None]:
        """Some changes of the claim are made, are not told of, and are tried again, as a store's driver does."""
        with pytest.MonkeyPatch.context() as patch:
            if self.dice.random() < 0.4:
                replace = self.store.replace
                patch.setattr(self.store, "replace", lambda *row: replace(*row) and replace(*row))
            yield

    def _breaks_off(self, *_: Any) -> None:
        raise StoreError(StoreCode.STORE_UNAVAILABLE, "in the middle of the deletion")

    def _moved(self, *, changed: bool) -> None:
        if changed:
            self.stale = [*self.stale[-2:], self.mine]
            self.mine = ClaimedStore(self.store, "here", self.model.cluster)

    def check(self) -> None:
        model, mine = self.model, self.mine
        claim = mine.claim()
        assert (claim.cluster, claim.epoch, claim.floor) == (model.cluster, model.epoch, model.floor)
        keys = [(hall, seat) for hall in HALLS for seat in range(1, SEATS_MAX + 1)]
        wanted = {key: seen for key in keys if (seen := model.seen(key)) is not None}
        for hall, seat in keys:
            strict = self.dice.random() < 0.5
            if strict and model.lost((hall, seat)):
                with pytest.raises(LostRow):
                    mine.get(SEATS, {"hall": hall, "seat": seat}, refuses_lost=True)
            else:
                found = mine.get(SEATS, {"hall": hall, "seat": seat}, refuses_lost=strict)
                assert (found and (found["guest"], found[WRITE_TS])) == model.seen((hall, seat))
        assert _rows(batch.to_pylist() for batch in mine.scan(SEATS)) == wanted
        hall, limit, reverse = self.dice.choice(HALLS), self.dice.randint(1, 6), self.dice.random() < 0.5
        inside = sorted((key for key in wanted if key[0] == hall), reverse=reverse)[:limit]
        ranged = mine.range(SEATS, {"hall": hall}, limit=limit, reverse=reverse).to_pylist()
        assert [(row["hall"], row["seat"]) for row in ranged] == inside
        assert _rows([ranged]) == {key: wanted[key] for key in inside}
        # What is finished of a flow lies here if it came in this epoch, or in one that is inherited.
        assert mine.began("f", "x") == (model.began in {model.epoch, *model.inherited})
        if self.dice.random() < 0.2:
            mine.begin("f", "x")
            model.began = model.epoch
        for other in self.stale:
            with pytest.raises(StoreError) as refused:
                other.write(SEATS, pa.RecordBatch.from_pylist([], schema=SEATS.schema))
            assert refused.value.code is StoreCode.STORE_MISMATCH


def _rows(parts: Any) -> dict[Key, tuple[str, int]]:
    return {(row["hall"], row["seat"]): (row["guest"], row[WRITE_TS]) for part in parts for row in part}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/rows") as opened:
        yield opened


@pytest.mark.parametrize("seed", range(6))
def test_readers_see_of_each_row_what_its_epoch_and_the_claim_say(store: Store, seed: int) -> None:
    tried = Tried(store, seed)
    for _ in range(30):
        chance = tried.dice.random()
        if chance < 0.7:
            tried.write()
        elif chance < 0.93:
            tried.change_hands()
        else:
            tried.wipe()
        tried.check()
