"""What leaves a node for others to read has no secrets in it.

Owns: what is taken for a secret by its form, whatever file or message it stands in; known ones are named by the caller.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "[hidden]"
_KNOWN_CHARACTERS_MIN: Final = 6
"""A shorter known secret would hide half of the words."""
_FORMS: Final = (
    # keys and certificates' keys
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # user and password of a URL
    (re.compile(r"(?<=://)[^/\s\"'@]+@"), f"{HIDDEN}@"),
    # Authorization, with whatever scheme
    (re.compile(r"(?i)(\bauthorization\b[\"']?\s*[:=]\s*)[^\r\n\"']+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}"), rf"\1 {HIDDEN}"),
    # tokens of this gateway, signed tokens, keys of object stores
    (re.compile(r"\bog_[A-Za-z0-9_-]{16,}"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    # whatever is called a secret
    (
        re.compile(
            r"(?i)([\w-]*(?:password|passwd|passphrase|secret|credential|api[_-]?key|access[_-]?key|private[_-]?key|\btoken)"
            r"(?:_?id)?[\"']?\s*[:=]\s*[\"']?)(?![\"']|\[hidden\]|null\b)[^\s\"',;&}]+"
        ),
        rf"\1{HIDDEN}",
    ),
)


def redacted(text: str, known: Iterable[str] = ()) -> str:
    """Return a text without known secrets, and without what has the form of one."""
    for secret in sorted({one for one in known if len(one) >= _KNOWN_CHARACTERS_MIN}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for form, shown in _FORMS:
        text = form.sub(shown, text)
    return text
