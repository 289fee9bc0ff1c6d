"""The few frames of CQL that tell whether a node answers: no driver, no background threads.

Owns: a blocking connection of native protocol v4 that reads simple rows. Read next: `node`.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Final, Self

_VERSION: Final = 4
_STARTUP, _QUERY = 1, 7
_READY, _RESULT = 2, 8
_ROWS: Final = 2
_GLOBAL_TABLE: Final = 1
_CONSISTENCY_ONE: Final = 1


class Probe:
    """A connection to one node.

    Raises:
        OSError: the node does not answer, or not as expected.
    """

    def __init__(self, host: str, port: int, timeout_s: float = 5.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        try:
            kind, _ = self._exchange(_STARTUP, struct.pack(">H", 1) + _string("CQL_VERSION") + _string("3.0.0"))
            if kind != _READY:
                raise OSError("the node is not ready")
        except OSError:
            self._socket.close()
            raise

    def rows(self, query: str) -> list[list[bytes | None]]:
        """Return the rows of a query as raw values; columns of simple types only."""
        text = query.encode()
        body = struct.pack(">i", len(text)) + text + struct.pack(">HB", _CONSISTENCY_ONE, 0)
        kind, answer = self._exchange(_QUERY, body)
        if kind != _RESULT:
            raise OSError(answer[6:200].decode(errors="replace"))
        result, flags, columns = struct.unpack_from(">iii", answer)
        if result != _ROWS:
            return []
        at = _after_strings(answer, 12, 2 if flags & _GLOBAL_TABLE else 0)
        for _ in range(columns):
            at = _after_strings(answer, at, 1 if flags & _GLOBAL_TABLE else 3) + 2
        (count,) = struct.unpack_from(">i", answer, at)
        at += 4
        rows = []
        for _ in range(count):
            row: list[bytes | None] = []
            for _ in range(columns):
                (length,) = struct.unpack_from(">i", answer, at)
                at += 4
                row.append(None if length < 0 else answer[at : at + length])
                at += max(length, 0)
            rows.append(row)
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _exchange(self, kind: int, body: bytes) -> tuple[int, bytes]:
        self._socket.sendall(struct.pack(">BBhBi", _VERSION, 0, 0, kind, len(body)) + body)
        _, _, _, answer, length = struct.unpack(">BBhBi", self._read(9))
        return answer, self._read(length)

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise OSError("the node closed the connection")
            parts += part
        return bytes(parts)


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _after_strings(data: bytes, at: int, count: int) -> int:
    for _ in range(count):
        (length,) = struct.unpack_from(">H", data, at)
        at += 2 + length
    return at
