"""How a job's process ends: one exit status for each kind of refusal."""

from __future__ import annotations

from typing import Final

from oncegate.stores.errors import StoreCode

SESSION_LOST: Final = 1
REFUSED: Final = 5
DIFFERS: Final = 6
_OF_CODE: Final = {StoreCode.BAD_OPTION: 2, StoreCode.FENCED: 3, StoreCode.RETENTION_EXCEEDED: 4}


def exit_status(code: StoreCode) -> int:
    """Return the exit status of a job that ended by this refusal; docs/spark.md lists them."""
    return _OF_CODE.get(code, REFUSED)
