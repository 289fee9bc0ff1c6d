"""The rows of one partition, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from oncegate.spark_sink.compaction import AnyStore
from oncegate.stores.tables import StoreTable

PAGE_ROWS: Final = 10_000


def rows_of_partition(store: AnyStore, table: StoreTable, prefix: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all live rows whose key begins with ``prefix``, at least the partition key, in the table's order."""
    after = None
    while True:
        page = store.range(table, prefix, after=after, limit=PAGE_ROWS).to_pylist()
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1]
