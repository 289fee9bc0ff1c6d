"""Refusals of the Spark side, and how one is found in the text that Spark makes of it.

Their codes are in :mod:`oncegate.stores.errors`. Must not know Spark, HTTP or a database.
"""

from __future__ import annotations

import re
from typing import Final

from oncegate.stores.errors import StoreCode, StoreError

_CODE_IN_TEXT: Final = re.compile(r"\[(" + "|".join(StoreCode) + r")\]")


class SinkError(StoreError):
    """A typed refusal between a flow and a store; ``except StoreError`` catches these and the store's own."""


def code_in(text: str) -> StoreCode | None:
    """Return the last code named in ``text``, or None.

    Spark hands errors of its Python processes to the driver as text; this is how a driver tells a refusal that
    ends the job from one that a restart cures. The last one is the innermost, the cause of the others.
    """
    found = _CODE_IN_TEXT.findall(text)
    return StoreCode(found[-1]) if found else None
