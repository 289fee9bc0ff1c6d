"""Bearer tokens: the known ones, and the tenant and scopes of each.

Owns: the file of tokens, their end, and which of the two kinds a bearer is. The file, and the memory of this process,
hold hashes only; a token is seen when a request carries it and is never logged. TOML, one table a token:

```toml
[[token]]
name = "ann-laptop"                # for logs and quotas; unique
sha256 = "9f86d0…"                 # of the token's text, 64 hex digits
tenant = "ann"
scopes = ["read", "write:orders."] # of read, write, flows, admin; with :PREFIX for tables and flows that begin so
operations_per_s = 500             # optional: a rate of its own instead of its tenant's
expires = 2027-01-31T00:00:00Z     # optional: refused from then on

[[tenant]]                         # optional: a rate of its own instead of tenant_operations_per_s
name = "ann"
operations_per_s = 2000            # of all its tokens together, signed ones too; 0: no bound
```

A plain hash is enough because tokens are random (``oncegate token`` makes 256 bits): there is nothing to guess. To
rotate a token, add its successor, give that to its users, and take the old one out. Signed tokens of an identity
provider: :mod:`oncegate.gateway.http.signed_tokens`.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
import tomllib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec

from oncegate.gateway.http.identity import Identity, allowed
from oncegate.gateway.http.reloaded_file import ReloadedFile
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import Code, OncegateError
from oncegate.version import installing

TOKENS_MAX: Final = 10_000
TOKEN_BYTES_MAX: Final = 8_000
"""Longest token that is looked at; a signed one is as long as what it says."""
_FILE_BYTES_MAX: Final = 8 * 2**20
_SCHEME: Final = "bearer "
_REFUSED: Final = "send a known token: Authorization: Bearer …"
log = logging.getLogger(__name__)

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")]


class _Token(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    tenant: Name
    scopes: list[str]
    operations_per_s: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _Tenant(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    operations_per_s: Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    token: Annotated[list[_Token], msgspec.Meta(max_length=TOKENS_MAX)]
    tenant: Annotated[list[_Tenant], msgspec.Meta(max_length=TOKENS_MAX)] = []


class _Known(NamedTuple):
    digest: bytes
    identity: Identity
    ends_s: float
    """In Unix time."""


class _Contents(NamedTuple):
    tokens: dict[bytes, _Known]
    rates: dict[str, int]
    """By tenant."""


class SignedTokens(Protocol):
    """Tokens that are known by their signature."""

    def identify(self, token: str, now_s: float) -> Identity | None:
        """Return whom the token proves, None if it proves nobody; ``now_s`` is Unix time."""

    def refresh(self, *, anyway: bool = False) -> bool:
        """Read the keys again if they have changed."""


class Tokens:
    """The tokens that a node takes: those of a file, read again when it changes, and signed ones.

    Args:
        path: the file; None: there is none.
        signed: None: there are none.

    Raises OSError if it cannot be read, ValueError if it is not one of tokens: the text names the place, never a hash.
    """

    def __init__(self, path: Path | None, signed: SignedTokens | None = None) -> None:
        self._file = None if path is None else ReloadedFile(path, _read, "tokens")
        self._signed = signed

    def identify(self, authorization: str | None, now_s: float | None = None) -> Identity:
        """Return the identity that the ``Authorization`` header proves; ``now_s``: Unix time, of the clock by default.

        Raises:
            OncegateError: UNAUTHENTICATED, the same for a missing, a malformed, an unknown and an expired token.
        """
        if authorization is not None and authorization[: len(_SCHEME)].lower() == _SCHEME:
            token = authorization[len(_SCHEME) :].strip()
            if 0 < len(token) <= TOKEN_BYTES_MAX:
                found = self._find(token, time.time() if now_s is None else now_s)
                if found is not None:
                    return found
        raise OncegateError(Code.UNAUTHENTICATED, _REFUSED)

    def _find(self, token: str, now_s: float) -> Identity | None:
        if self._file is not None:
            digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
            known = self._file.value.tokens.get(digest)
            # The table is keyed by a hash that no sender can choose; the final comparison takes constant time.
            if known is not None and hmac.compare_digest(known.digest, digest):
                return known.identity if now_s < known.ends_s else None
        return None if self._signed is None else self._signed.identify(token, now_s)

    def rate_of(self, tenant: str) -> int | None:
        """Return how many operations a second the file grants a tenant, None if it does not say."""
        return None if self._file is None else self._file.value.rates.get(tenant)

    def refresh(self, *, anyway: bool = False) -> bool:
        """Read the files again if they have changed (or ``anyway``); a broken one leaves the tokens as they were.

        Returns:
            Whether the tokens have changed.
        """
        changed = self._file is not None and self._file.refresh(anyway=anyway)
        if changed and self._file is not None:
            log.info("%d tokens are in force", len(self._file.value.tokens))
        return (self._signed is not None and self._signed.refresh(anyway=anyway)) or changed


def tokens_of(settings: Settings) -> Tokens | None:
    """Return the tokens of the settings; None: every caller may do everything.

    Raises OSError, ValueError: a file cannot be read or is not one of tokens or keys, PyJWT is missing, or the settings
    of signed tokens are not complete.
    """
    signed: SignedTokens | None = None
    given = (settings.jwt_keys_file, settings.jwt_issuer, settings.jwt_audience)
    if given != (None, None, None):
        path, issuer, audience = given
        if path is None or issuer is None or audience is None:
            raise ValueError("jwt_keys_file, jwt_issuer and jwt_audience go together")
        try:
            from oncegate.gateway.http.signed_tokens import JwtTokens
        except ModuleNotFoundError as missing:
            raise ValueError(f"jwt_keys_file: {missing.name} is not installed; {installing('jwt')}") from None
        signed = JwtTokens(path, issuer, audience)
    if settings.tokens_file is None and signed is None:
        return None
    return Tokens(settings.tokens_file, signed)


def _read(path: Path) -> _Contents:
    with path.open("rb") as file:
        text = file.read(_FILE_BYTES_MAX + 1)
    if len(text) > _FILE_BYTES_MAX:
        raise ValueError(f"{path} is too large for a file of tokens")
    try:
        # A validation error names the place; a syntax error would quote the line.
        found = msgspec.convert(tomllib.loads(text.decode()), _File)
    except msgspec.ValidationError as fault:
        raise ValueError(f"{path}: {fault}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{path} is not TOML") from None
    tokens, rates = found.token, {tenant.name: tenant.operations_per_s for tenant in found.tenant}
    if len(rates) != len(found.tenant):
        raise ValueError(f"{path} names a tenant twice")
    if len({token.name for token in tokens}) != len(tokens) or len({token.sha256 for token in tokens}) != len(tokens):
        raise ValueError(f"{path} names a token twice")
    identities = {}
    for token in tokens:
        digest = bytes.fromhex(token.sha256)
        try:
            scopes, within = allowed(token.scopes)
        except ValueError as fault:
            raise ValueError(f"{path}: {token.name}: {fault}") from None
        identity = Identity(token.name, token.tenant, scopes, token.operations_per_s, within)
        ends_s = float("inf") if token.expires is None else token.expires.timestamp()
        identities[digest] = _Known(digest, identity, ends_s)
    return _Contents(identities, rates)


def new_token(name: str, tenant: str, scopes: Sequence[str], expires: datetime | None = None) -> tuple[str, str]:
    """Make a token; return its text and its table for the file.

    Raises:
        ValueError: name, tenant or a scope does not have the form that the file allows.
    """
    token = "og_" + secrets.token_urlsafe(32)
    allowed(scopes)
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
    if expires is not None:
        lines.append(f"expires = {expires.isoformat(timespec='seconds')}")
    return token, "\n".join(["[[token]]", *lines])
