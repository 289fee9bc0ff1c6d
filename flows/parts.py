"""Parts of a batch that a consumer writes back through the gateway: which were written, and what a repeat is told.

Owns: the rule below. Part of the replicated state, pure, deterministic. Must not know tables or what a part holds: a
fingerprint stands for it. Read next: :mod:`oncegate.flows.cursor`, :mod:`oncegate.gateway.machine.cascades`.

A batch comes in parts 1, 2, … in order, each applied in one log entry; that of the last one moves the cursor too. The
rule of a part, first match wins; the first rows are those of a move:

| # | condition | outcome |
|---|---|---|
| 1 | no such consumer | NOT_FOUND; FENCED if it may be one that was removed |
| 2 | fence older than the newest one | FENCED |
| 3 | fence never given out, batch < 1 or batch > last | BAD_REQUEST |
| 4 | the part is remembered, its fingerprint equal | nothing changes; the commit number that it had |
| 5 | the part is remembered, its fingerprint differs | PAYLOAD_MISMATCH |
| 6 | batch <= cursor: it is finished | nothing changes |
| 7 | cursor + 1 < first: the batch to write was dropped | RETENTION_EXCEEDED |
| 8 | batch is not cursor + 1, part is not the next one, or is number PARTS_MAX and not the last | BAD_REQUEST |
| 9 | otherwise | new |

Remembered are the parts of the newest batch that has any. A newer instance goes on where the one before it stopped: the
fence says who may write, not what was written. Any other move of the cursor forgets the parts, so a batch that is read
again on purpose is written again.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from oncegate.flows.errors import BadRequestError, PayloadMismatchError

PARTS_MAX: Final = 4_096
"""Of one batch."""
_MARK: Final = struct.Struct("<QQ")


class Parts(msgspec.Struct, frozen=True, array_like=True):
    """The parts of ``batch`` that were written; ``marks`` has fingerprint and first commit number, 16 bytes a part."""

    batch: int = 0
    marks: bytes = b""

    @property
    def count(self) -> int:
        """How many were written."""
        return len(self.marks) // _MARK.size

    def known(self, batch: int, part: int, fingerprint: int) -> int | None:
        """Return the first commit number of a part that was written, None if it is not remembered.

        Raises:
            PayloadMismatchError: another content was written as this part.
        """
        if batch != self.batch or part > self.count:
            return None
        written, commit = _MARK.unpack_from(self.marks, (part - 1) * _MARK.size)
        if written != fingerprint:
            raise PayloadMismatchError(
                f"part {part} of batch {batch} was written with another content: let the job that began the batch "
                f"finish it, or start the consumer from batch:{batch}, which has the whole batch written again"
            )
        return int(commit)

    def check_next(self, batch: int, part: int, *, last: bool) -> None:
        """Raise BadRequestError if ``part`` is not the one that follows, or if none could follow it and one has to."""
        expected = self.count + 1 if batch == self.batch else 1
        if part == PARTS_MAX and not last:
            raise BadRequestError(f"part {part} of batch {batch} has to be the last one: there are {PARTS_MAX} at most")
        if part != expected or part > PARTS_MAX:
            raise BadRequestError(f"part {part} of batch {batch} is not the next one, {expected}, of {PARTS_MAX}")

    def having(self, batch: int, fingerprint: int, commit: int) -> Parts:
        """Return the parts with one more."""
        before = self.marks if batch == self.batch else b""
        return Parts(batch, before + _MARK.pack(fingerprint, commit))


NO_PARTS: Final = Parts()
