"""Who holds a store: its claim, how one is made, and what refuses whom.

Owns: the meta row, version 2, in the table `oncegate_store`: JSON under the name `claim`. Who wants to change it
compares and sets, so of two at once one wins. Beside it stands, under `delivery/flow/consumer`, the epoch in which a
consumer began to deliver here: a cursor alone does not say into which store. Must not know how rows are written. Read
next: :mod:`oncegate.stores.claimed`, which every writer and reader goes through.

| step | claim afterwards | rows |
|---|---|---|
| the tables of an empty store are created | this cluster's, epoch 1, floor 1 | none yet |
| `adopt` | this cluster's, epoch + 1, floor as before | stay, and lose to whatever this cluster writes |
| `adopt` after a restore of the holder's backup | as `adopt`, and inherits | of the backup: its own; later: gone |
| `wipe` | this cluster's, epoch + 1, floor = epoch | below the floor: invisible at once, then deleted |
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.store import Store
from oncegate.stores.tables import WRITE_TS, Column, ColumnType, StoreTable
from oncegate.stores.write_times import EPOCH_MAX

VERSION: Final = 2
STORE_META: Final = StoreTable(
    name="oncegate_store",
    columns=(Column("name", ColumnType.TEXT), Column("value", ColumnType.TEXT)),
    partition_key=("name",),
)
"""What a store says of itself."""
_KEY: Final = {"name": "claim"}
_DELIVERY: Final = "delivery"


class Claim(msgspec.Struct, frozen=True):
    """Who holds the store, and which rows count.

    Attributes:
        cluster: identity of the cluster, 32 hexadecimal digits.
        epoch: that of rows written now, 1 or more; only grows.
        floor: rows of earlier epochs were wiped; whatever still turns up of them is not there.
        cluster_name: the cluster's configured name, for people.
        version: of the meta row.
        inherited: (epoch, commit number): rows of that epoch up to it are of the holder's own log, which began as a
            copy of another; rows of it with a later one are of writes that the copy lacks: nobody sees them.
    """

    cluster: str
    epoch: int
    floor: int
    cluster_name: str = ""
    version: int = VERSION
    inherited: tuple[tuple[int, int], ...] = ()

    def inherits_through(self, epoch: int) -> int | None:
        """Return up to which commit number rows of an earlier epoch are the holder's; None for one not inherited."""
        return next((commit for known, commit in self.inherited if known == epoch), None)


def read_claim(store: Store, place: str) -> Claim:
    """Return the claim.

    Raises:
        StoreError: STORE_MISMATCH, when nobody holds the store, or the claim is of another version;
            STORE_UNAVAILABLE.
    """
    # Tables come after the claim, so look at them before it: those of a store that is being created are not unclaimed.
    tables = store.tables()
    found = found_claim(store) if STORE_META.name in tables else None
    if found is not None:
        return found
    if others := sorted(set(tables) - {STORE_META.name}):
        raise StoreError(
            StoreCode.STORE_MISMATCH,
            f"{place} holds tables of an earlier version, {', '.join(others)}, and does not say whose they are: "
            f"`oncegate store adopt` makes them this cluster's",
        )
    raise _nothing(place)


def claim_new(store: Store, place: str, cluster: str, cluster_name: str) -> Claim:
    """Return the claim of a store; claim it, for ``cluster``, if it is empty. Of two at once one claims it.

    Raises:
        StoreError: as `read_claim`, but for the empty store.
    """
    tables = store.tables()
    if set(tables) <= {STORE_META.name}:
        store.create([STORE_META])
        # Somebody may have been first; then this changes nothing.
        _replace(store, None, Claim(cluster, 1, 1, cluster_name))
    return read_claim(store, place)


def adopt(
    store: Store,
    place: str,
    cluster: str,
    cluster_name: str = "",
    *,
    epoch: int = 0,
    origin: tuple[str, int] = ("", 0),
) -> Claim:
    """Take a store over and keep its rows: they lose to all that ``cluster`` writes from now on. Returns the new claim.

    ``origin``: the cluster, by its identity, of whose backup this one was restored, and the backup's last commit
    number. If that one holds the store, its rows up to there are inherited.

    A store that is this cluster's already stays as it is, unless ``epoch``, at least which the new one is to be, says
    otherwise: rows of a later epoch than the claim's are there when the meta row was lost or is of an older copy.

    Raises:
        StoreError: STORE_MISMATCH, when somebody else took it at the same time, or there is no epoch left.
    """
    if not store.tables():
        raise _nothing(place)
    store.create([STORE_META])
    before = found_claim(store)
    if before is not None and before.cluster == cluster and epoch <= before.epoch:
        return before
    if before is None:
        return _take(store, place, None, Claim(cluster, max(1, epoch), 0, cluster_name))
    claim = Claim(cluster, max(before.epoch + 1, epoch), before.floor, cluster_name)
    if before.cluster == origin[0]:
        inherited = (*before.inherited, (before.epoch, origin[1]))
        claim = msgspec.structs.replace(claim, inherited=inherited)
    return _take(store, place, before, claim)


def wipe(store: Store, place: str, cluster: str, cluster_name: str = "") -> Claim:
    """Take a store over, or begin it anew, and delete all rows of all its tables. Returns the new claim.

    The claim comes first: should this end in the middle, no row is visible, and doing it again deletes the rest.

    Raises:
        StoreError: STORE_MISMATCH, as `adopt`, and when nobody holds the store: what is not known to be a store of
            ours is not deleted; STORE_UNAVAILABLE.
    """
    before = read_claim(store, place)
    epoch = before.epoch + 1
    claim = _take(store, place, before, Claim(cluster, epoch, epoch, cluster_name))
    store.clear([name for name in store.tables() if name != STORE_META.name])
    return claim


def began(store: Store, claim: Claim, flow: str, consumer: str) -> bool:
    """Return whether what a consumer has finished of a flow went into this store, in the claim's epoch."""
    row = store.get(STORE_META, _delivery(flow, consumer))
    return row is not None and row["value"] in {str(claim.epoch), *(str(epoch) for epoch, _ in claim.inherited)}


def begin(store: Store, claim: Claim, flow: str, consumer: str) -> None:
    """Note that a consumer's rows of a flow go into this store from now on; idempotent."""
    key = _delivery(flow, consumer)
    before = store.get(STORE_META, key)
    # Whoever was first at the same time has noted the same.
    store.replace(STORE_META, before, {**key, "value": str(claim.epoch)})


def deliveries(store: Store) -> list[tuple[str, str]]:
    """Return the flows and consumers that were ever noted to deliver into a store."""
    names = (str(row["name"]).split("/") for rows in store.scan(STORE_META) for row in rows.to_pylist())
    return sorted((parts[1], parts[2]) for parts in names if len(parts) == 3 and parts[0] == _DELIVERY)


def mismatch(place: str, found: Claim, cluster: str) -> StoreError:
    """Return the refusal of a store that another cluster holds."""
    name = f" ({found.cluster_name})" if found.cluster_name else ""
    return StoreError(
        StoreCode.STORE_MISMATCH,
        f"{place} holds rows of cluster {found.cluster}{name}, and this is cluster {cluster}: "
        f"`oncegate store adopt` keeps them, `oncegate store wipe` deletes them",
    )


def _delivery(flow: str, consumer: str) -> dict[str, str]:
    return {"name": f"{_DELIVERY}/{flow}/{consumer}"}


def _nothing(place: str) -> StoreError:
    return StoreError(StoreCode.STORE_MISMATCH, f"{place} holds no store: `oncegate store init` creates it")


def _take(store: Store, place: str, before: Claim | None, claim: Claim) -> Claim:
    if claim.epoch > EPOCH_MAX:
        raise StoreError(StoreCode.STORE_MISMATCH, f"{place} has had {EPOCH_MAX} epochs: use a new store")
    # What was not acknowledged may have been done all the same.
    if not _replace(store, before, claim) and found_claim(store) != claim:
        raise StoreError(StoreCode.STORE_MISMATCH, f"{place} was taken over by somebody else at the same time")
    return claim


def found_claim(store: Store) -> Claim | None:
    """Return the claim of a store that has a meta row's table, None without a row; raises as `read_claim`."""
    row = store.get(STORE_META, _KEY)
    if row is None:
        return None
    try:
        claim = msgspec.json.decode(str(row["value"]), type=Claim)
    except msgspec.DecodeError as error:
        raise StoreError(StoreCode.STORE_MISMATCH, f"the claim in {STORE_META.name} cannot be read: {error}") from None
    if claim.version != VERSION:
        way = "take a newer one" if claim.version > VERSION else "make the store anew, and replay into it"
        detail = f"the claim in {STORE_META.name} has version {claim.version}, this build reads {VERSION}: {way}"
        raise StoreError(StoreCode.STORE_MISMATCH, detail)
    return claim


def _replace(store: Store, before: Claim | None, after: Claim) -> bool:
    return store.replace(STORE_META, None if before is None else _row(before), _row(after))


def _row(claim: Claim) -> dict[str, int | str | bytes]:
    return {**_KEY, "value": msgspec.json.encode(claim).decode(), WRITE_TS: 1}
