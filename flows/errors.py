"""Refusals and failures of flows, each with the ``code`` of the cluster's table of errors.

Owns: the tree below :class:`FlowError`. Must not know HTTP or the server, which maps ``code`` to status,
outcome and retryability. Read next: :mod:`oncegate.flows.cursor`, :mod:`oncegate.flows.segment_store`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path


class FlowError(Exception):
    """A refusal or a damaged file of a flow.

    Attributes:
        code: name in the table of errors (SEMANTICS, *Errors*).
    """

    code: ClassVar[str] = "INTERNAL"


class BadRequestError(FlowError):
    """A declaration, name, number or body that no state could accept."""

    code = "BAD_REQUEST"


class NotFoundError(FlowError):
    """No such flow, consumer or batch."""

    code = "NOT_FOUND"


class ConflictError(FlowError):
    """A flow of this name is declared differently already."""

    code = "CONFLICT"


class QuotaError(FlowError):
    """One more flow or consumer than the cluster keeps."""

    code = "QUOTA"


class FencedError(FlowError):
    """A newer instance of the consumer has attached."""

    code = "FENCED"


class PayloadMismatchError(FlowError):
    """A part of a batch was written with another content."""

    code = "PAYLOAD_MISMATCH"


class RetentionExceededError(FlowError):
    """The batch was dropped: a reader gets this error, never a silent gap."""

    code = "RETENTION_EXCEEDED"


class SegmentCorrupt(FlowError):
    """A segment file is not what was written, by the check named in ``reason``; the node does not serve from it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class SegmentConflict(FlowError):
    """The batch is already on disk with other bytes, which are kept: two histories use one number."""

    def __init__(self, path: Path, stored: str, offered: str) -> None:
        super().__init__(f"{path}: holds {stored}, refused {offered}")
        self.path = path
        self.stored = stored
        self.offered = offered
