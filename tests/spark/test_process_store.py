"""A process holds one opened store for each URL, cluster and epoch."""

from __future__ import annotations

from pathlib import Path

from oncegate.stores.claimed import drop_process_store, process_store


def test_dropped_store_is_opened_anew_at_the_next_use(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/store"
    first = process_store(url, "c0ffee", 1)
    assert process_store(url, "c0ffee", 1) is first
    drop_process_store(url)
    drop_process_store(url)
    second = process_store(url, "c0ffee", 1)
    assert second is not first
    drop_process_store(url)
