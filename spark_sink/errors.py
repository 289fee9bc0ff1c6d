"""The error tree of the Spark side: each refusal typed, with what is known of the outcome.

Owns: codes, outcome and retryability of everything that can go wrong between a flow and a store; a store's own refusals
are in :mod:`oncegate.stores.errors`. Codes that the gateway also knows have the gateway's names. Must not know Spark,
HTTP or a database. Read next: :mod:`oncegate.stores.retry`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from oncegate.stores.errors import STORE_REGISTRY, StoreCode, StoreError, StoreTraits


class SinkCode(StrEnum):
    """Names of all refusals, those of stores among them."""

    BAD_OPTION = StoreCode.BAD_OPTION
    BAD_TABLE = StoreCode.BAD_TABLE
    BAD_ROWS = StoreCode.BAD_ROWS
    CLUSTER_FAILED = StoreCode.CLUSTER_FAILED
    STORE_MISMATCH = StoreCode.STORE_MISMATCH
    STORE_UNAVAILABLE = StoreCode.STORE_UNAVAILABLE
    BAD_BATCH = "BAD_BATCH"
    BATCH_CHANGED = "BATCH_CHANGED"
    FENCED = "FENCED"
    FLOW_REFUSED = "FLOW_REFUSED"
    FLOW_UNREACHABLE = "FLOW_UNREACHABLE"
    RETENTION_EXCEEDED = "RETENTION_EXCEEDED"


REGISTRY: Final[dict[str, StoreTraits]] = {
    **STORE_REGISTRY,
    SinkCode.BAD_BATCH: StoreTraits("not_applied", True, "A batch is damaged or is not the one asked for"),
    SinkCode.BATCH_CHANGED: StoreTraits("not_applied", False, "A reread batch differs from the first read"),
    SinkCode.FENCED: StoreTraits("unknown", False, "A newer instance of the consumer has taken over"),
    SinkCode.FLOW_REFUSED: StoreTraits("not_applied", False, "The gateway refused the request"),
    SinkCode.FLOW_UNREACHABLE: StoreTraits("unknown", True, "No endpoint answered in time"),
    SinkCode.RETENTION_EXCEEDED: StoreTraits("not_applied", False, "A batch is no longer retained"),
}
"""Every code with its traits."""

_CODE_IN_TEXT: Final = re.compile(r"\[(" + "|".join(SinkCode) + r")\]")


class SinkError(StoreError):
    """A typed refusal between a flow and a store; ``except StoreError`` catches these and the store's own."""

    registry = REGISTRY


def code_in(text: str) -> SinkCode | None:
    """Return the last code named in ``text``, or None.

    Spark hands errors of its Python processes to the driver as text; this is how a driver tells a refusal that
    ends the job from one that a restart cures. The last one is the innermost, the cause of the others.
    """
    found = _CODE_IN_TEXT.findall(text)
    return SinkCode(found[-1]) if found else None
