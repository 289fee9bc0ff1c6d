"""Which rows are sampled, and the record of one operation on such a row.

Owns: the seeded choice, the same on every node with the same seed, and the form in which an operation is kept and
travels to another node. Pure. Read next: :mod:`oncegate.gateway.live_check.order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import xxhash

from oncegate.gateway import wire
from oncegate.gateway.machine import commands as c
from oncegate.rifl.ids import format_client_id

VALUE_BYTES_MAX: Final = 4 * 1024
"""A larger value is not kept: its version is checked, its content is not."""
READ: Final = "read"
"""A read outside the log; all other names are those of operations."""
_HASHES: Final = 2**64
_NAMES: Final = {kind.value: kind.name.lower() for kind in c.OpKind}
_digest = xxhash.xxh3_64_intdigest
_encode = msgspec.json.Encoder(order="deterministic").encode


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One answered operation, as its node saw it.

    Attributes:
        table, key: the row.
        what: name of the operation, or ``READ``.
        commit: its commit number; of a read, that of the state it was answered from.
        floor: the newest commit number that this node had answered with before it was asked for this.
        request: ``client_id/sequence``, empty for a read.
        replayed: answered from its completion record; the first attempt may have come to another node.
        refusal: why it was refused as a result, empty if it was not.
        version: of the row that it was told, its own commit number for a write that was applied; 0 for no row.
        value: JSON text in the answer, None if there was none or it is too large.
        argument: JSON text of the value or item written, None if there is none or it is too large.
        by, test, operand: as in :class:`oncegate.gateway.machine.commands.Op`.
    """

    table: str
    key: str
    what: str
    commit: int
    floor: int
    request: str = ""
    replayed: bool = False
    refusal: str = ""
    version: int = 0
    value: bytes | None = None
    argument: bytes | None = None
    by: int = 0
    test: int = 0
    operand: int | bytes | None = None

    @property
    def row(self) -> str:
        """Name of the row."""
        return f"{self.table}/{self.key}"

    @property
    def logged(self) -> bool:
        """It went through the log, so that its commit number is its own."""
        return self.what != READ

    @property
    def writes(self) -> bool:
        """It changed the row, or would have changed it."""
        return not self.refusal and self.what not in (READ, "get")


class RowSample:
    """The rows that are sampled.

    Args:
        share: of all rows, 0..1.
        seed: another one, other rows; the same on all nodes.
    """

    def __init__(self, share: float, seed: int) -> None:
        self._below = min(_HASHES, int(share * _HASHES))
        self._seed = seed

    def has(self, table: str, key: str) -> bool:
        """Tell whether a row is sampled."""
        return _digest((table + "\0" + key).encode(), self._seed) < self._below

    def of(self, ops: Sequence[c.Op]) -> list[int]:
        """Return the positions of the operations on sampled rows; a fifth of a microsecond an operation."""
        below, seed = self._below, self._seed
        return [at for at, op in enumerate(ops) if _digest((op.table + "\0" + op.key).encode(), seed) < below]


def of_result(op: c.Op, client_id: int, floor: int, result: wire.OperationResult) -> Seen | None:
    """Return the record of an operation's answer; None where nothing certain is known of its effect."""
    commit = result.commit
    if result.status == "rejected" or not isinstance(commit, int):
        return None
    version = result.version if isinstance(result.version, int) else 0
    return Seen(
        op.table,
        op.key,
        _NAMES[op.kind],
        commit,
        floor,
        f"{format_client_id(client_id)}/{result.sequence}",
        replayed=result.replayed is True,
        refusal=str(result.code) if result.status == "refused" else "",
        version=version,
        value=_short(result.value),
        argument=op.value if op.value is not None and len(op.value) <= VALUE_BYTES_MAX else None,
        by=op.by,
        test=op.test,
        operand=op.operand if not isinstance(op.operand, bytes) or len(op.operand) <= VALUE_BYTES_MAX else None,
    )


def of_read(table: str, key: str, commit: int, floor: int, version: int, value: bytes | None) -> Seen:
    """Return the record of a read; version 0 for a row that was not there."""
    kept = value if value is not None and len(value) <= VALUE_BYTES_MAX else None
    return Seen(table, key, READ, commit, floor, version=version, value=kept)


def _short(value: Any) -> bytes | None:
    if value is msgspec.UNSET:
        return None
    text = _encode(value)
    return text if len(text) <= VALUE_BYTES_MAX else None
