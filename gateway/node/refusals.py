"""Refusals of a node: typed ones of what the layers below raise, and their form between nodes. Pure but for the log."""

from __future__ import annotations

import logging
from typing import TypeAlias

from oncegate.consensus import errors as ce
from oncegate.flows.errors import FlowError
from oncegate.rifl.errors import Code, OncegateError, Outcome

log = logging.getLogger(__name__)

Refusal: TypeAlias = tuple[str, str, int | None, str]
"""A refusal on its way between nodes: code, detail, retry_after_ms, outcome."""


def packed(refusal: OncegateError) -> Refusal:
    """Return a refusal as plain data, for :func:`unpacked` at another node."""
    return refusal.code.value, refusal.detail, refusal.retry_after_ms, refusal.outcome.value


def unpacked(refusal: Refusal) -> OncegateError:
    """Undo :func:`packed`."""
    code, detail, retry_after_ms, outcome = refusal
    return OncegateError(Code(code), detail, retry_after_ms=retry_after_ms, outcome=Outcome(outcome))


def translated(fault: BaseException) -> OncegateError:
    """Return the typed refusal for an exception of a lower layer; a bug becomes INTERNAL and is logged."""
    match fault:
        case OncegateError():
            return fault
        case FlowError():
            return OncegateError(Code(fault.code), str(fault))
        case ce.CommandRefused():
            return OncegateError(Code.PAYLOAD_TOO_LARGE, str(fault))
        case ce.Overloaded():
            return OncegateError(Code.OVERLOADED, str(fault), retry_after_ms=100)
        case ce.ChangePending():
            return OncegateError(Code.CONFLICT, str(fault), retry_after_ms=100)
        case ce.ChangeRefused():
            return OncegateError(Code.CONFLICT, str(fault))
        case ce.NotReady():
            return OncegateError(Code.NOT_READY, str(fault), retry_after_ms=20)
        case ce.StorageError():
            # Damage that a read came upon. Its path is for the node's log, which says it; others may have applied it.
            detail = "a file of this node is damaged: ask another node"
            return OncegateError(Code.NOT_READY, detail, outcome=Outcome.UNKNOWN, retry_after_ms=1000)
        case ce.ConsensusError() if fault.outcome == "not_applied":
            return OncegateError(Code.NO_LEADER, str(fault), retry_after_ms=50)
        case ce.ConsensusError():
            return OncegateError(Code.TIMEOUT, str(fault), outcome=Outcome.UNKNOWN, retry_after_ms=50)
        case _:
            log.error("unexpected error", exc_info=fault)
            return OncegateError(Code.INTERNAL, type(fault).__name__)
