"""Keyed-row stores behind one interface: SQLite, the embedded default, and Cassandra."""

from oncegate.stores.claimed import ClaimedStore, claimed_store
from oncegate.stores.column_types import ColumnType, ListOf, MapOf
from oncegate.stores.store import Store, open_store
from oncegate.stores.tables import WRITE_TS, Clustering, Column, StoreTable

__all__ = [
    "WRITE_TS",
    "ClaimedStore",
    "Clustering",
    "Column",
    "ColumnType",
    "ListOf",
    "MapOf",
    "Store",
    "StoreTable",
    "claimed_store",
    "open_store",
]
