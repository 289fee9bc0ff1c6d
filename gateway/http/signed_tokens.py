"""Tokens that an identity provider signs (JWT, RFC 7519), as OpenID Connect hands them out; verified by PyJWT.

Owns: which signatures count, and what the claims mean here. ``exp``, ``iss``, ``aud`` and ``sub`` must be there;
``tenant`` names the tenant, ``scope`` the scopes, separated by blanks, as in the file of tokens (others are somebody
else's and left alone). The keys are a JWK set in a file (RFC 7517), read again when it changes: to rotate a key, add
the new one, and take the old one out once nothing signed by it is in use. Nothing is fetched over the network. Keys of
the set that are for something else, as for encryption, are left alone (RFC 7517 §5).
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any, Final

import jwt
import msgspec

from oncegate.gateway.http.auth import Name
from oncegate.gateway.http.identity import Identity, allowed, is_grant
from oncegate.gateway.http.reloaded_file import ReloadedFile

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a private key. With a shared key, whoever can verify a token could make one."""
LEEWAY_S: Final = 30
"""How far the provider's clock and this one's may be apart."""
VERIFIED_MAX: Final = 10_000
KEYS_MAX: Final = 100
_FILE_BYTES_MAX: Final = 2**20
_REQUIRED: Final = ["exp", "iss", "aud", "sub", "tenant"]
log = logging.getLogger(__name__)


class _Claims(msgspec.Struct):
    sub: str
    tenant: Name
    exp: int | float
    scope: str = ""


class JwtTokens:
    """Tokens signed by the keys of a file (:class:`oncegate.gateway.http.auth.SignedTokens`).

    Args:
        path: the JWK set.
        issuer: what ``iss`` must be.
        audience: what ``aud`` must be, or contain.

    Raises OSError if the file cannot be read, ValueError if it is no set of public keys.
    """

    def __init__(self, path: Path, issuer: str, audience: str) -> None:
        self._keys = ReloadedFile(path, _read, "keys of signed tokens")
        self._issuer = issuer
        self._audience = audience
        self._verified: dict[bytes, tuple[Identity, float]] = {}
        """What has been verified, until it ends: a signature costs as much as a request."""

    def identify(self, token: str, now_s: float) -> Identity | None:
        """Return whom the token proves, None if it proves nobody."""
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        known = self._verified.get(digest)
        if known is None:
            known = self._verify(token)
            if known is None:
                return None
            if len(self._verified) >= VERIFIED_MAX:
                self._verified.clear()
            self._verified[digest] = known
        identity, ends_s = known
        return identity if now_s < ends_s + LEEWAY_S else None

    def refresh(self, *, anyway: bool = False) -> bool:
        """Read the keys again if they have changed; what was signed by one that is gone counts no more."""
        changed = self._keys.refresh(anyway=anyway)
        if changed:
            self._verified.clear()
            log.info("%d keys of signed tokens are in force", len(self._keys.value))
        return changed

    def _verify(self, token: str) -> tuple[Identity, float] | None:
        try:
            key = self._keys.value.get(jwt.get_unverified_header(token).get("kid", ""))
            if key is None:
                return None
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
                options={"require": _REQUIRED},
            )
            said = msgspec.convert(claims, _Claims)
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError):
            return None  # PyJWT lets some of these through; what is wrong is nothing to tell a stranger
        scopes, within = allowed(filter(is_grant, said.scope.split()))
        return Identity(f"jwt:{said.sub[:128]}", said.tenant, scopes, None, within), float(said.exp)


def _read(path: Path) -> dict[str, jwt.PyJWK]:
    with path.open("rb") as file:
        text = file.read(_FILE_BYTES_MAX + 1)
    try:
        found = json.loads(text)["keys"]
        if len(text) > _FILE_BYTES_MAX or len(found) > KEYS_MAX:
            raise ValueError(f"{path} is too large for a set of keys")
        keys = {one["kid"]: jwt.PyJWK(one) for one in found if _signs(one)}
    except (KeyError, TypeError, AttributeError, RecursionError, jwt.PyJWTError) as fault:
        raise ValueError(f"{path} is no JWK set whose keys have a kid ({type(fault).__name__})") from None
    except json.JSONDecodeError:
        raise ValueError(f"{path} is not JSON") from None
    secret = [kid for kid, key in keys.items() if key.key_type == "oct" or hasattr(key.key, "private_bytes")]
    if secret:
        raise ValueError(f"{path}: {', '.join(map(str, secret))}: give public keys only")
    return keys


def _signs(key: dict[str, Any]) -> bool:
    """Tell whether a key is one for signatures that count; a shared one is, so that it is refused by name."""
    use, algorithm = key.get("use", "sig"), key.get("alg")
    return bool(use == "sig" and (algorithm is None or algorithm in ALGORITHMS or key.get("kty") == "oct"))
