"""Typed refusals between a flow and a store, or of the development cluster under it, each with its outcome.

Owns: the shape of such errors, and the one registry of their codes. Those that the gateway also knows have the
gateway's names. Must not know Spark, HTTP or a database. Read next: `retry`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class StoreCode(StrEnum):
    """Names of all refusals; each appears in brackets at the start of the error's text."""

    BAD_OPTION = "BAD_OPTION"
    BAD_TABLE = "BAD_TABLE"
    BAD_ROWS = "BAD_ROWS"
    CLUSTER_FAILED = "CLUSTER_FAILED"
    STORE_MISMATCH = "STORE_MISMATCH"
    STORE_REFUSED = "STORE_REFUSED"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    BAD_BACKUP = "BAD_BACKUP"
    BAD_BATCH = "BAD_BATCH"
    BATCH_CHANGED = "BATCH_CHANGED"
    BATCH_INCOMPLETE = "BATCH_INCOMPLETE"
    CURSOR_MISMATCH = "CURSOR_MISMATCH"
    DERIVATION_FAILED = "DERIVATION_FAILED"
    FENCED = "FENCED"
    FLOW_REFUSED = "FLOW_REFUSED"
    FLOW_UNREACHABLE = "FLOW_UNREACHABLE"
    RETENTION_EXCEEDED = "RETENTION_EXCEEDED"


class StoreTraits(NamedTuple):
    """What holds for every error of a code."""

    outcome: str
    retryable: bool
    title: str


REGISTRY: Final[dict[StoreCode, StoreTraits]] = {
    StoreCode.BAD_OPTION: StoreTraits("not_applied", False, "An option is missing or malformed"),
    StoreCode.BAD_TABLE: StoreTraits("not_applied", False, "A table declaration is malformed"),
    StoreCode.BAD_ROWS: StoreTraits("not_applied", False, "Rows do not fit the table"),
    StoreCode.CLUSTER_FAILED: StoreTraits("not_applied", False, "The development cluster did not do as told"),
    StoreCode.STORE_MISMATCH: StoreTraits(
        "not_applied", False, "The store holds something else under this name, or nothing"
    ),
    StoreCode.STORE_REFUSED: StoreTraits(
        "not_applied", False, "The store refused the user, the connection or the request"
    ),
    StoreCode.STORE_UNAVAILABLE: StoreTraits("unknown", True, "The store did not answer in time"),
    StoreCode.BAD_BACKUP: StoreTraits("not_applied", False, "A backup is damaged, or not of a version that is known"),
    StoreCode.BAD_BATCH: StoreTraits("not_applied", True, "A batch is damaged or is not the one asked for"),
    StoreCode.BATCH_CHANGED: StoreTraits("not_applied", False, "A reread batch differs from the first read"),
    StoreCode.BATCH_INCOMPLETE: StoreTraits("not_applied", False, "A flow batch reached the sink in pieces"),
    StoreCode.CURSOR_MISMATCH: StoreTraits("not_applied", False, "Checkpoint, cursor and range do not go together"),
    StoreCode.DERIVATION_FAILED: StoreTraits("not_applied", False, "The job's own code fails, again and again"),
    StoreCode.FENCED: StoreTraits("unknown", False, "A newer instance of the consumer has taken over"),
    StoreCode.FLOW_REFUSED: StoreTraits("not_applied", False, "The gateway refused the request"),
    StoreCode.FLOW_UNREACHABLE: StoreTraits("unknown", True, "No endpoint answered in time"),
    StoreCode.RETENTION_EXCEEDED: StoreTraits("not_applied", False, "A batch is no longer retained"),
}
"""Every code with its traits."""
_SHOWN_MAX: Final = 3


class StoreError(Exception):
    """A typed refusal.

    ``detail`` is one sentence for a person, never a payload or a secret; ``outcome`` is `not_applied`, or `unknown`:
    the effect may or may not have taken place; ``retryable``: the same action may succeed when it is repeated
    unchanged.
    """

    def __init__(self, code: StoreCode, detail: str) -> None:
        super().__init__(code, detail)
        traits = REGISTRY[code]
        self.code = code
        self.detail = detail
        self.outcome = traits.outcome
        self.retryable = traits.retryable

    def __str__(self) -> str:
        return f"[{self.code}] {REGISTRY[self.code].title}: {self.detail}"


class LostRow(StoreError):
    """STORE_MISMATCH of one row: a write that a restored cluster lacks has replaced it."""


@dataclass(frozen=True, slots=True, order=True)
class Rejected:
    """A row that a store does not take for its own content: its place in the batch given, and why, without a value."""

    index: int
    reason: str


class BadRows(StoreError):
    """BAD_ROWS of single rows: the store does not take ``rejected``, and has durably written all other rows.

    The text names the first few; ``rejected`` has all of them, in the order of their places.
    """

    def __init__(self, rejected: Iterable[Rejected]) -> None:
        self.rejected = tuple(sorted(rejected))
        shown = [f"row {one.index}: {one.reason}" for one in self.rejected[:_SHOWN_MAX]]
        more = [f"{len(self.rejected) - _SHOWN_MAX} more"] if len(self.rejected) > _SHOWN_MAX else []
        super().__init__(StoreCode.BAD_ROWS, "; ".join(shown + more))

    def __reduce__(self) -> tuple[type[BadRows], tuple[tuple[Rejected, ...]]]:
        """Pickle by what it was made of: errors of a task cross processes."""
        return BadRows, (self.rejected,)
