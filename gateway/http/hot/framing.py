"""Where a request ends, read strictly: the bytes of a head become a :class:`Head`, or are somebody else's to read.

Owns: which requests this node frames itself (RFC 9112), and the short way to a head like the one before. Pure. Whatever
is wrong, unusual or ambiguous is no head here:
bare line feeds, folded lines, blanks before a colon, bytes beyond ASCII, a header that comes twice, a length that is
no plain number, ``Transfer-Encoding``, ``Expect``, ``Upgrade``, a ``Connection`` that says more than ``keep-alive``,
another version than HTTP/1.1, a target that is no path. aiohttp reads the connection from there on, and refuses what it
refuses. So two readers never disagree about where a request ends: one of them reads at a time, and this one reads what
has one meaning only.

A head that a client sends again and again is compared instead of read (:class:`KnownHead`): the bytes between the
values that may differ are compared, and the values are matched by the patterns that make them what :func:`read` would
find there, visible ASCII without blanks, a length of few digits. So the result is that function's result
(tests/gateway/test_known_head.py), or None, and it is asked. One head is known a connection, of ``KNOWN_BYTES_MAX`` at
most.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from oncegate.gateway import wire

if TYPE_CHECKING:
    from oncegate.gateway.http.hot.request import Form

END: Final = b"\r\n\r\n"
HEAD_BYTES_MAX: Final = 8_000
"""Less than the longest line that aiohttp takes: within it no line is too long."""
_HEADERS_MAX: Final = 100
"""Fewer than aiohttp takes."""
LENGTH_DIGITS_MAX: Final = 15
_HEAD: Final = re.compile(
    rb"(GET|HEAD|POST|PUT|DELETE|PATCH|OPTIONS) (/[!-~]*+) HTTP/1\.1\r\n"
    rb"((?:[-!#$%&'*+.^_`|~0-9A-Za-z]++:[\t -~]*+\r\n)++)\r\n"
)
_DIGITS: Final = re.compile(rf"[0-9]{{1,{LENGTH_DIGITS_MAX}}}", re.ASCII)
_NOT_OURS: Final = frozenset(
    {
        "transfer-encoding",
        "expect",
        "upgrade",
        "te",
        "trailer",
        "http2-settings",
        "sec-websocket-key1",
        "proxy-connection",
    }
)

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


class Head(NamedTuple):
    """A request but for its body, which follows at once."""

    method: str
    target: str
    headers: dict[str, str]
    """By names in small letters; each stands once."""
    length: int
    """Bytes of the body."""


def read(head: bytes) -> Head | None:
    """Read a head, from its first byte to the empty line that ends it; None if it is not for this reader."""
    found = _HEAD.fullmatch(head)
    if found is None:
        return None
    headers: dict[str, str] = {}
    method, target, fields = found.groups()
    lines = fields.decode("ascii").split("\r\n")
    lines.pop()
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if len(headers) != len(lines) or len(lines) > _HEADERS_MAX or not _NOT_OURS.isdisjoint(headers):
        return None
    if "host" not in headers or headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    length = headers.get("content-length", "0")
    if not _DIGITS.fullmatch(length):
        return None
    return Head(method.decode("ascii"), target.decode("ascii"), headers, int(length))


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
