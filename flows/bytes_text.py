"""Bytes as a value: the text in which they rest beside JSON values (decision 0042).

Owns: the mark. Canonical JSON has no blanks, so a text that begins with one is no canonical value; behind it stands
base64 as a JSON text, which every reader of JSON can read without knowing of the mark. Pure.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import Final

MARK: Final = b' "'
_BASE64: Final = re.compile(rb' "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"')


def text_of(value: bytes) -> bytes:
    """Return the text in which bytes rest, a third longer than they."""
    return MARK + b64encode(value) + b'"'


def is_bytes(text: bytes) -> bool:
    """Tell whether a text at rest is that of bytes; any other is JSON, with white space that a range let pass."""
    return text.startswith(MARK) and _BASE64.fullmatch(text) is not None


def bytes_of(text: bytes) -> bytes:
    """Return the bytes whose text this is."""
    return b64decode(text[len(MARK) : -1])
