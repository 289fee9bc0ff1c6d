"""A store as one cluster sees it: commit numbers in `write_ts`, and a refusal when the rows are somebody else's.

Owns: when the claim is looked at, and what a reader sees of rows that are not of its own epoch. Every writer and every
reader of rows goes through here. Must not know a database. Read next: :mod:`oncegate.stores.claims`,
:mod:`oncegate.stores.write_times`.

A reader sees of a row
- of the claim's epoch: its commit number in `write_ts`;
- of an earlier epoch, adopted: its values, and 0 in `write_ts`: it was written before this cluster's log began, and its
  commit number, of another log, would say nothing here;
- of an epoch that the claim inherits: its commit number, or nothing if that is later than what is inherited;
- below the claim's floor: nothing.

The claim is looked at before each write, and after each read that found no row of the present epoch. A process that was
open when the store changed hands is refused at its next write; what it wrote in between is of an earlier epoch, loses
to every row of the present one, and is invisible if the store was wiped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from oncegate.stores import claims
from oncegate.stores.claims import STORE_META, Claim, claim_new, found_claim, mismatch, read_claim
from oncegate.stores.errors import LostRow, StoreCode, StoreError
from oncegate.stores.store import RANGE_ROWS_DEFAULT, Store, Value, open_store
from oncegate.stores.tables import WRITE_TS, StoreTable
from oncegate.stores.write_times import epochs_and_commits, stamped, written


class ClaimedStore:
    """A store of rows whose timestamps are the commit numbers of one cluster.

    Args:
        store: the store itself.
        place: names it in errors.
        cluster: identity of the cluster that must hold it; empty for whoever does: to look at rows, not to write any.
        epoch: the one that rows are to be written in; 0 for the present one. All tasks of a job write in one.
        cluster_name: for people; stands in the claim of a new store.

    All methods raise STORE_MISMATCH, when another cluster, or nobody, holds the store, or the epoch has changed.
    """

    def __init__(self, store: Store, place: str, cluster: str = "", *, epoch: int = 0, cluster_name: str = "") -> None:
        self._store = store
        self._place = place
        self._cluster, self._epoch, self._cluster_name = cluster, epoch, cluster_name
        self._claimed = False

    def claim(self) -> Claim:
        """Return the claim as it is in the store now, checked."""
        found = found_claim(self._store) if self._claimed else None
        return self._checked(found or read_claim(self._store, self._place))

    def create(self, tables: Iterable[StoreTable]) -> None:
        """Create missing tables, and claim a store that was empty; see `Store.create`."""
        if self._cluster:
            self._checked(claim_new(self._store, self._place, self._cluster, self._cluster_name))
        else:
            self.claim()
        self._store.create(tables)

    def began(self, flow: str, consumer: str) -> bool:
        """Return whether what a consumer has finished of a flow is in this store, and has not been wiped since."""
        return claims.began(self._store, self.claim(), flow, consumer)

    def begin(self, flow: str, consumer: str) -> None:
        """Note that a consumer delivers a flow into this store from now on; its tables are there. Idempotent."""
        claims.begin(self._store, self.claim(), flow, consumer)

    def tables(self) -> list[str]:
        """Return the names of the tables of rows."""
        return [name for name in self._store.tables() if name != STORE_META.name]

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Upsert rows, commit numbers in `write_ts`; see `Store.write`."""
        self._store.write(table, stamped(rows, self.claim().epoch))

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        """Delete rows; see `Store.delete`."""
        self._store.delete(table, stamped(keys, self.claim().epoch))

    def update(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Write some cells of rows; see `Store.update`."""
        self._store.update(table, stamped(rows, self.claim().epoch))

    def get(
        self, table: StoreTable, key: Mapping[str, Value], *, refuses_lost: bool = False
    ) -> dict[str, Value] | None:
        """Return one live row; see `Store.get`, and above for its `write_ts`.

        ``refuses_lost``: raise rather than to call a row absent that a lost write may have replaced.
        """
        if not self._claimed:
            self.claim()
        row = self._store.get(table, key)
        epoch, commit = written(0 if row is None else int(row[WRITE_TS]))
        if row is not None and epoch == self._epoch:
            return {**row, WRITE_TS: commit}
        # A row that is absent, or of another epoch, says nothing in a store that has changed hands meanwhile.
        claim = self.claim()
        if row is None or epoch < claim.floor:
            return None
        self._check_not_later(epoch, claim)
        through = claim.inherits_through(epoch)
        if through is None:
            return {**row, WRITE_TS: 0}
        if commit <= through:
            return {**row, WRITE_TS: commit}
        if refuses_lost:
            raise LostRow(
                StoreCode.STORE_MISMATCH,
                f"{self._place} holds the row as commit {commit} of the old cluster has left it, and this one began "
                f"with commit {through}: what was there before is not known until the row is written again",
            )
        return None

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        """Yield all live rows; see `Store.scan`, and above for their `write_ts`."""
        claim = self.claim()
        for rows in self._store.scan(table):
            yield self._seen(table, rows, claim)
        self.claim()

    def range(
        self,
        table: StoreTable,
        prefix: Mapping[str, Value],
        start: Value = None,
        stop: Value = None,
        *,
        after: Mapping[str, Value] | None = None,
        limit: int = RANGE_ROWS_DEFAULT,
        reverse: bool = False,
    ) -> pa.Table:
        """Return live rows of one partition in order; see `Store.range`, and above for their `write_ts`."""
        claim = self.claim()
        found: list[pa.RecordBatch] = []
        left = limit
        while True:
            rows = self._store.range(table, prefix, start, stop, after=after, limit=left, reverse=reverse)
            found += [self._seen(table, part, claim) for part in rows.to_batches()]
            if rows.num_rows < left or len(table.key) == len(prefix):
                break
            # Rows of before a wipe took places of others.
            left = limit - sum(part.num_rows for part in found)
            if not left:
                break
            (after,) = rows.slice(rows.num_rows - 1).select(table.key).to_pylist()
        self.claim()
        return pa.Table.from_batches(found, table.schema)

    def count(self, table: StoreTable) -> int:
        """Return the number of live rows, of all epochs; see `Store.count`."""
        self.claim()
        return self._store.count(table)

    def durability(self) -> str:
        """See `Store.durability`."""
        return self._store.durability()

    def close(self) -> None:
        """Release connections; idempotent."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _seen(self, table: StoreTable, rows: pa.RecordBatch, claim: Claim) -> pa.RecordBatch:
        at = table.schema.get_field_index(WRITE_TS)
        epochs, commits = epochs_and_commits(rows)
        if len(epochs):
            self._check_not_later(int(epochs.max()), claim)
        own, there = epochs == claim.epoch, epochs >= claim.floor
        for epoch, through in claim.inherited:
            own |= (epochs == epoch) & (commits <= through)
            there &= (epochs != epoch) | (commits <= through)
        seen = rows.set_column(at, table.schema.field(at), pa.array(np.where(own, commits, 0)))
        return seen if there.all() else seen.filter(pa.array(there))

    def _checked(self, claim: Claim) -> Claim:
        if self._cluster and claim.cluster != self._cluster:
            raise mismatch(self._place, claim, self._cluster)
        if self._epoch and claim.epoch != self._epoch:
            raise StoreError(
                StoreCode.STORE_MISMATCH,
                f"{self._place} is at epoch {claim.epoch}, this process began at {self._epoch}: the store was adopted "
                "or wiped meanwhile; start again, after a wipe from the first batch",
            )
        self._epoch, self._claimed = claim.epoch, True
        return claim

    def _check_not_later(self, epoch: int, claim: Claim) -> None:
        if epoch > claim.epoch:
            raise StoreError(
                StoreCode.STORE_MISMATCH,
                f"{self._place} holds rows of epoch {epoch}, later than its claim's {claim.epoch}, which must be of an "
                f"older copy: `oncegate store adopt --epoch {epoch + 1}`",
            )


def claimed_store(url: str, cluster: str = "", *, epoch: int = 0, cluster_name: str = "") -> ClaimedStore:
    """Return the store that ``url`` names, as `ClaimedStore` says; raises BAD_OPTION, when it names none."""
    return ClaimedStore(open_store(url), place_of(url), cluster, epoch=epoch, cluster_name=cluster_name)


def place_of(url: str) -> str:
    """Return what names a store in a text for people: the URL without options and users."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


_shared: dict[tuple[int, str, str, int], ClaimedStore] = {}


@contextmanager
def process_store(url: str, cluster: str, epoch: int) -> Iterator[ClaimedStore]:
    """Give this process's store at ``url``, opened at the first use; a fork gets its own.

    Where STORE_UNAVAILABLE leaves the block, this process's stores at ``url`` are closed: the next use opens a new one.
    """
    place = (os.getpid(), url, cluster, epoch)
    if place not in _shared:
        _shared[place] = claimed_store(url, cluster, epoch=epoch)
    try:
        yield _shared[place]
    except StoreError as error:
        if error.code == StoreCode.STORE_UNAVAILABLE:
            for stale in [place for place in _shared if place[:2] == (os.getpid(), url)]:
                _shared.pop(stale).close()
        raise
