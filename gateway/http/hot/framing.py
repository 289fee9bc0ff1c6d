"""Where a request ends, read strictly: the bytes of a head become a :class:`Head`, or are somebody else's to read.

Owns: which requests this node frames itself (RFC 9112). Pure. Whatever is wrong, unusual or ambiguous is no head here:
bare line feeds, folded lines, blanks before a colon, bytes beyond ASCII, a header that comes twice, a length that is
no plain number, ``Transfer-Encoding``, ``Expect``, ``Upgrade``, a ``Connection`` that says more than ``keep-alive``,
another version than HTTP/1.1, a target that is no path. aiohttp reads the connection from there on, and refuses what it
refuses. So two readers never disagree about where a request ends: one of them reads at a time, and this one reads what
has one meaning only.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

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
