"""Bearer tokens: the known ones, and the tenant and scopes of each.

Owns: the file of tokens and its reloading. The file, and the memory of this process, hold hashes only; a token is
seen when a request carries it and is never logged. TOML, one table a token:

```toml
[[token]]
name = "ann-laptop"                # for logs and quotas; unique
sha256 = "9f86d0…"                 # of the token's text, 64 hex digits
tenant = "ann"
scopes = ["read", "write"]         # of read, write, flows, admin
operations_per_s = 500             # optional: a rate of its own instead of its tenant's
```

A plain hash is enough because tokens are random (``oncegate token`` makes 256 bits): there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import tomllib
from pathlib import Path
from typing import Annotated, Final

import msgspec

from oncegate.gateway.http.identity import Identity, Scope
from oncegate.rifl.errors import Code, OncegateError

TOKENS_MAX: Final = 10_000
TOKEN_BYTES_MAX: Final = 512
"""Longest token that is looked at."""
_FILE_BYTES_MAX: Final = 8 * 2**20
_SCHEME: Final = "bearer "
log = logging.getLogger(__name__)

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")]


class _Token(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    tenant: Name
    scopes: list[Scope]
    operations_per_s: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    token: Annotated[list[_Token], msgspec.Meta(max_length=TOKENS_MAX)]


class Tokens:
    """The tokens of a file, read again when it changes.

    Raises OSError if it cannot be read, ValueError if it is not one of tokens: the text names the place, never a hash.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: _Stamp | None = _stamp(path)
        self._identities = _read(path)

    def identify(self, authorization: str | None) -> Identity:
        """Return the identity that the ``Authorization`` header proves.

        Raises:
            OncegateError: UNAUTHENTICATED, the same for a missing, a malformed and an unknown token.
        """
        if authorization is not None and authorization[: len(_SCHEME)].lower() == _SCHEME:
            token = authorization[len(_SCHEME) :].strip()
            if 0 < len(token) <= TOKEN_BYTES_MAX:
                digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
                found = self._identities.get(digest)
                # The table is keyed by a hash that no sender can choose; the final comparison takes constant time.
                if found is not None and hmac.compare_digest(found[0], digest):
                    return found[1]
        raise OncegateError(Code.UNAUTHENTICATED, "send a known token: Authorization: Bearer …")

    def refresh(self, *, anyway: bool = False) -> bool:
        """Read the file again if it has changed (or ``anyway``); a broken one leaves the tokens as they were.

        Returns:
            Whether the tokens have changed.
        """
        try:
            stamp = _stamp(self._path)
            if stamp == self._seen and not anyway:
                return False
            self._seen = stamp
            self._identities = _read(self._path)
        except OSError as fault:
            if self._seen is not None:  # logged once, until the file can be read again
                log.error("tokens stay as they were: %s", fault)
            self._seen = None
            return False
        except ValueError as fault:
            log.error("tokens stay as they were: %s", fault)
            return False
        log.info("%d tokens are in force", len(self._identities))
        return True


_Stamp = tuple[int, int, int]


def _stamp(path: Path) -> _Stamp:
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> dict[bytes, tuple[bytes, Identity]]:
    with path.open("rb") as file:
        text = file.read(_FILE_BYTES_MAX + 1)
    if len(text) > _FILE_BYTES_MAX:
        raise ValueError(f"{path} is too large for a file of tokens")
    try:
        # A validation error names the place; a syntax error would quote the line.
        tokens = msgspec.convert(tomllib.loads(text.decode()), _File).token
    except msgspec.ValidationError as fault:
        raise ValueError(f"{path}: {fault}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{path} is not TOML") from None
    if len({token.name for token in tokens}) != len(tokens) or len({token.sha256 for token in tokens}) != len(tokens):
        raise ValueError(f"{path} names a token twice")
    identities = {}
    for token in tokens:
        digest = bytes.fromhex(token.sha256)
        identity = Identity(token.name, token.tenant, frozenset(token.scopes), token.operations_per_s)
        identities[digest] = digest, identity
    return identities


def new_token(name: str, tenant: str, scopes: list[Scope]) -> tuple[str, str]:
    """Make a token; return its text and its table for the file.

    Raises:
        ValueError: name or tenant does not have the form that the file allows.
    """
    token = "og_" + secrets.token_urlsafe(32)
    fields = {
        "name": name,
        "sha256": hashlib.sha256(token.encode()).hexdigest(),
        "tenant": tenant,
        "scopes": sorted(scopes),
    }
    try:
        msgspec.convert(fields, _Token)
    except msgspec.ValidationError as fault:
        raise ValueError(str(fault)) from None
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in fields.items()]
    return token, "\n".join(["[[token]]", *lines])
