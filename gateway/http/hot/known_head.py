"""A head like the one before: read by comparing bytes, where a client sends the same head again and again.

Owns: which values may differ between a head and the one that was read before it, and the proof that nothing else does.
Pure. The bytes between those values are compared; the values are matched by the patterns that make them what
:func:`oncegate.gateway.http.hot.framing.read` would find there: visible ASCII without blanks, a length of few digits.
So the result is that function's result (tests/gateway/test_known_head.py), or None, and it is asked. One head is known
a connection, of ``KNOWN_BYTES_MAX`` at most.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oncegate.gateway import wire
from oncegate.gateway.http.hot.framing import HEAD_BYTES_MAX, LENGTH_DIGITS_MAX, Head

if TYPE_CHECKING:
    from oncegate.gateway.http.hot.routes import Form

KNOWN_BYTES_MAX: Final = 2_000
"""A longer head is read each time: what is kept of idle connections has to stay small."""
MISSES_MIN: Final = 4
"""So many heads in a row are read before one of them replaces the known one: where two kinds of requests take turns,
learning each again would cost more than reading does."""
_LENGTH: Final = re.compile(rb"[0-9]{1,%d}" % LENGTH_DIGITS_MAX)
_VISIBLE: Final = re.compile(rb"[!-~]+")
_TARGET: Final = re.compile(rb"/[!-~]*")
_VARYING: Final = {
    "content-length": _LENGTH,
    **{
        name.lower(): _VISIBLE
        for name in (
            *(wire.H_IDEMPOTENCY_KEY, wire.H_REQUEST, wire.H_FIRST_INCOMPLETE, wire.H_FIRST_SEQUENCE),
            *(wire.H_TRACEPARENT, "X-Request-Id"),
        )
    },
}
"""Headers whose values say of each request which one it is, and nothing of who sends it or how it is to be read."""
_LINE: Final = re.compile(rb"([^:\r\n]+):[ \t]*([^\r\n]*?)[ \t]*\r\n")
_FIRST: Final = re.compile(rb"([A-Z]+ )(/[!-~]*)( HTTP/1\.1\r\n)")


class KnownHead:
    """The newest head of one kind, and ``form``: what the desk said of it that it says of all like it."""

    __slots__ = ("_cuts", "_head", "_last", "_values", "form")

    def __init__(self, data: bytes, head: Head) -> None:
        """``head`` is what ``data`` was read as."""
        self._head = head
        self.form: Form | None = None
        first = _FIRST.match(data)
        if first is None:
            raise ValueError("this was not read as a head")
        cuts: list[tuple[bytes, re.Pattern[bytes], str]] = [(first[1], _TARGET, "")]
        values = [first[2]]
        start = first.end(2)
        for line in _LINE.finditer(data, first.end()):
            name = line[1].decode("ascii").lower()
            pattern = _VARYING.get(name)
            if pattern is not None and pattern.fullmatch(line[2]):
                cuts.append((data[start : line.start(2)], pattern, name))
                values.append(line[2])
                start = line.end(2)
        self._cuts = cuts
        self._last = data[start:]
        self._values = values

    def read(self, unread: bytes | bytearray) -> tuple[Head, int] | None:
        """Return the head that the bytes begin with, and its size; None if it is not like the known one, or not there
        as a whole.
        """
        at = 0
        values = []
        for piece, pattern, _ in self._cuts:
            if not unread.startswith(piece, at):
                return None
            found = pattern.match(unread, at + len(piece))
            if found is None:
                return None
            values.append(found[0])
            at = found.end()
        if not unread.startswith(self._last, at):
            return None
        size = at + len(self._last)
        if size > HEAD_BYTES_MAX:
            return None
        if values != self._values:
            self._head = self._with(values)
            self._values = values
        return self._head, size

    def _with(self, values: list[bytes]) -> Head:
        """Return the head with other values."""
        method, target, headers, length = self._head
        headers = headers.copy()
        before = self._values
        for at, value in enumerate(values):
            if value == before[at]:
                continue
            text, name = value.decode("ascii"), self._cuts[at][2]
            if not name:
                target = text
                continue
            headers[name] = text
            if name == "content-length":
                length = int(text)
        return Head(method, target, headers, length)
