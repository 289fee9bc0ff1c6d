"""The head of an HTTP/1.1 answer, read strictly. Pure: bytes in, what the SDK uses of it out.

Owns: which answers are read here. Everything a node sends is: a status, fields of plain text, and a body whose length
is told. Any other answer, even one that HTTP allows (chunks, an end that is the connection's, an interim answer,
folded lines), is :class:`UnusualAnswer`: :mod:`oncegate.gateway.client.courier` then asks through aiohttp. So nothing
in doubt is ever taken for an answer, and this module stays small. Source: RFC 9112.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from oncegate.gateway.wire import H_AGE_MS, H_COMMIT, H_LEADER, H_MEMORY_MS, H_REPLAYED

HEAD_BYTES_MAX: Final = 16 * 1024
BODY_BYTES_MAX: Final = 64 * 2**20
"""More than the largest answer to one request: 512 results of 64 KiB."""

_HEAD: Final = re.compile(
    rb"HTTP/1\.([01]) ([2-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?"
    rb"((?:\r\n[!#-'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*)*)"
)
_LENGTH: Final = b"content-length"
_CODING: Final = b"transfer-encoding"
_CONNECTION: Final = b"connection"
_USED: Final = {name.lower().encode(): name for name in (H_AGE_MS, H_COMMIT, H_LEADER, H_MEMORY_MS, H_REPLAYED)}
_WITHOUT_BODY: Final = frozenset((204, 304))


class UnusualAnswer(Exception):
    """An answer that is not read here, with why; the connection that it came on is of no further use."""


class AnswerHead(NamedTuple):
    """What the SDK uses of a head.

    Attributes:
        status: 200 to 599.
        length: bytes of body that follow, at most :data:`BODY_BYTES_MAX`.
        stays: whether the connection serves a further request.
        headers: of those that the SDK reads, by the names in :mod:`oncegate.gateway.wire`; of two, the first.
    """

    status: int
    length: int
    stays: bool
    headers: dict[str, str]


def read_head(head: bytes) -> AnswerHead:
    """Return what a head says, given without the empty line that ends it; raises :class:`UnusualAnswer`."""
    parts = _HEAD.fullmatch(head)
    if parts is None:
        raise UnusualAnswer("its head is not read")
    status, stays, told = int(parts[2]), parts[1] == b"1", None
    headers: dict[str, str] = {}
    for line in parts[3].split(b"\r\n"):
        name, _, value = line.partition(b":")
        name = name.lower()
        if name == _LENGTH:
            value = value.strip()
            if told is not None or not value.isdigit() or len(value) > 16:
                raise UnusualAnswer("its length is told in a wrong way")
            told = int(value)
        elif name in _USED:
            headers.setdefault(_USED[name], value.strip().decode("latin-1"))
        elif name == _CONNECTION:
            stays = stays and value.strip().lower() == b"keep-alive"
        elif name == _CODING:
            raise UnusualAnswer("it comes in chunks")
    length = 0 if status in _WITHOUT_BODY else told
    if length is None:
        raise UnusualAnswer("its length is not told")
    if length > BODY_BYTES_MAX:
        raise UnusualAnswer(f"it has more than {BODY_BYTES_MAX} bytes")
    return AnswerHead(status, length, stays, headers)
