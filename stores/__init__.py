"""Keyed-row stores behind one interface: SQLite, the embedded default, and Cassandra."""

from oncegate.stores.store import Store, open_store
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

__all__ = ["WRITE_TS", "Clustering", "Column", "ColumnType", "Store", "StoreTable", "open_store"]
