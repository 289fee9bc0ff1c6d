"""Tokens that go on with a scan: where, and at which commit number.

Owns: their form, version 1: base64url without padding of a msgpack array [1, commit, low, high or null, reverse]. They
say nothing that their bearer may not ask for, so they are not signed. Pure.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, Literal

import msgspec

from oncegate.gateway.http.request_bodies import bad
from oncegate.gateway.machine.commands import KEY_BYTES_MAX
from oncegate.gateway.node.scans import KeyRange
from oncegate.rifl.ids import ID_MAX

_LENGTH_MAX: Final = 2 * (2 * KEY_BYTES_MAX + 64)


class _Token(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: Literal[1]
    commit: int
    low: str
    high: str | None
    reverse: bool


def write(commit: int, rest: KeyRange) -> str:
    """Return the token of the pages behind one."""
    packed = msgspec.msgpack.encode(_Token(1, commit, *rest))
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def read(text: str) -> tuple[int, KeyRange]:
    """Return the commit number and the keys of a token; raises BAD_REQUEST."""
    try:
        if len(text) > _LENGTH_MAX:
            raise ValueError("too long")
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        token = msgspec.msgpack.decode(packed, type=_Token)
        if not 0 <= token.commit <= ID_MAX:
            raise ValueError("its commit number is none")
    except (ValueError, binascii.Error, msgspec.MsgspecError) as fault:
        raise bad(f"page is none that a node gave out: {fault}") from None
    return token.commit, KeyRange(token.low, token.high, token.reverse)
