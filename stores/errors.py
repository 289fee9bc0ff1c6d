"""The error tree of the Spark side: each refusal typed, with what is known of the outcome.

Owns: codes, outcome and retryability of everything that can go wrong between a flow and a store. Codes that the
gateway also knows have the gateway's names. Must not know Spark, HTTP or a database. Read next: `retry`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple


class Code(StrEnum):
    """Names of all refusals; each appears in brackets at the start of the error's text."""

    BAD_OPTION = "BAD_OPTION"
    BAD_TABLE = "BAD_TABLE"
    BAD_ROWS = "BAD_ROWS"
    BAD_BATCH = "BAD_BATCH"
    BATCH_CHANGED = "BATCH_CHANGED"
    CLUSTER_FAILED = "CLUSTER_FAILED"
    FENCED = "FENCED"
    FLOW_REFUSED = "FLOW_REFUSED"
    FLOW_UNREACHABLE = "FLOW_UNREACHABLE"
    RETENTION_EXCEEDED = "RETENTION_EXCEEDED"
    STORE_MISMATCH = "STORE_MISMATCH"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"


class Traits(NamedTuple):
    """What holds for every error of a code."""

    outcome: str
    retryable: bool
    title: str


REGISTRY: Final[dict[Code, Traits]] = {
    Code.BAD_OPTION: Traits("not_applied", False, "An option is missing or malformed"),
    Code.BAD_TABLE: Traits("not_applied", False, "A table declaration is malformed"),
    Code.BAD_ROWS: Traits("not_applied", False, "Rows do not fit the table"),
    Code.BAD_BATCH: Traits("not_applied", True, "A batch is damaged or is not the one asked for"),
    Code.BATCH_CHANGED: Traits("not_applied", False, "A reread batch differs from the first read"),
    Code.CLUSTER_FAILED: Traits("not_applied", False, "The development cluster did not do as told"),
    Code.FENCED: Traits("unknown", False, "A newer instance of the consumer has taken over"),
    Code.FLOW_REFUSED: Traits("not_applied", False, "The gateway refused the request"),
    Code.FLOW_UNREACHABLE: Traits("unknown", True, "No endpoint answered in time"),
    Code.RETENTION_EXCEEDED: Traits("not_applied", False, "A batch is no longer retained"),
    Code.STORE_MISMATCH: Traits("not_applied", False, "The store holds something else under this name"),
    Code.STORE_UNAVAILABLE: Traits("unknown", True, "The store did not answer in time"),
}
"""Every code with its traits."""

_CODE_IN_TEXT: Final = re.compile(r"\[(" + "|".join(Code) + r")\]")


class SinkError(Exception):
    """A typed refusal.

    Attributes:
        code: which refusal.
        detail: one sentence for a person; never a payload or a secret.
        outcome: `not_applied`, or `unknown`: the effect may or may not have taken place.
        retryable: whether the same action may succeed when it is repeated unchanged.
    """

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(code, detail)
        traits = REGISTRY[code]
        self.code = code
        self.detail = detail
        self.outcome = traits.outcome
        self.retryable = traits.retryable

    def __str__(self) -> str:
        return f"[{self.code}] {REGISTRY[self.code].title}: {self.detail}"


def code_in(text: str) -> Code | None:
    """Return the last code named in ``text``, or None.

    Spark hands errors of its Python processes to the driver as text; this is how a driver tells a refusal that
    ends the job from one that a restart cures. The last one is the innermost, the cause of the others.
    """
    found = _CODE_IN_TEXT.findall(text)
    return Code(found[-1]) if found else None
