"""A process holds one opened store for each URL, cluster and epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncegate.stores.claimed import process_store
from oncegate.stores.errors import StoreCode, StoreError


@pytest.mark.parametrize(
    ("code", "kept"), [(StoreCode.STORE_UNAVAILABLE, False), (StoreCode.STORE_MISMATCH, True), (None, True)]
)
def test_store_is_opened_anew_only_after_it_was_not_to_be_reached(
    code: StoreCode | None, kept: bool, tmp_path: Path
) -> None:
    url = f"sqlite://{tmp_path}/store"
    with process_store(url, "c0ffee", 1) as first:
        pass
    if code is not None:
        with pytest.raises(StoreError):
            _fails(url, code)
    with process_store(url, "c0ffee", 1) as second:
        assert (second is first) == kept


def _fails(url: str, code: StoreCode) -> None:
    with process_store(url, "c0ffee", 1):
        raise StoreError(code, "planted")
