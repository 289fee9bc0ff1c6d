"""The value of ``Idempotency-Key``, read alike by the gateway and by the middleware: one form of a key, one key.

Owns: which header values are keys. The draft (draft-ietf-httpapi-idempotency-key-header) wants an RFC 8941 string,
``"8e03978e"``; most clients send it bare, such as a UUID. Both mean the same key. Pure.
"""

from __future__ import annotations

import re
from typing import Final

KEY_LENGTH_MAX: Final = 255
_USUAL: Final = re.compile(rf'"([ !#-\[\]-~]{{1,{KEY_LENGTH_MAX}}})"', re.ASCII)
"""A string without escapes and parameters."""
_STRING: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"(?: *;[ -~]*)?', re.ASCII)
_BARE: Final = re.compile(r"[!#-+\--:<-\[\]-~]+", re.ASCII)
_ESCAPED: Final = re.compile(r'\\(["\\])')


def read_key(value: str) -> str:
    """Return the key: as :func:`read_any_key`, the usual form at a tenth of its cost.

    Raises:
        ValueError: it is neither form of a key, or has not 1..255 characters; in words for the caller.
    """
    usual = _USUAL.fullmatch(value)
    return read_any_key(value) if usual is None else usual[1]


def read_any_key(value: str) -> str:
    """Return the key: a quoted string, whose parameters are ignored, or the same bare.

    Bare it is visible ASCII without quotes, commas, semicolons and backslashes, which would end it or begin another.
    Raises as :func:`read_key`.
    """
    text = value.strip(" \t")
    match = _STRING.fullmatch(text)
    if match is None and _BARE.fullmatch(text) is None:
        raise ValueError('Idempotency-Key is a quoted string of printable ASCII, like "8e03978e", or the same bare')
    key = text if match is None else _ESCAPED.sub(r"\1", match[1])
    if not 1 <= len(key) <= KEY_LENGTH_MAX:
        raise ValueError(f"Idempotency-Key has 1..{KEY_LENGTH_MAX} characters")
    return key
