"""A client's endpoints and credentials: from arguments, a named profile, the environment.

Owns: the profiles file and the order of precedence. Must not know HTTP. Used by
:class:`oncegate.gateway.client.Client`.

The file is TOML, ``~/.config/oncegate/profiles.toml`` or the path in ``ONCEGATE_PROFILES``::

    default = "dev"

    [dev]
    endpoints = ["http://127.0.0.1:7400"]

    [production]
    endpoints = ["https://a.example:7400", "https://b.example:7400"]
    ca_file = "ca.pem"
    token_file = "token"
    timeout_s = 10.0

| what | from, first found |
|---|---|
| which profile | argument ``profile``, ``ONCEGATE_PROFILE``, ``default`` in the file, none |
| each setting | argument, ``ONCEGATE_ENDPOINTS`` (``_TOKEN``, ``_TOKEN_FILE``, ``_CA_FILE``, ``_TIMEOUT_S``), profile |

With the argument ``endpoints`` and no argument ``profile``, arguments alone count: a token meant for one cluster must
not travel to another. For the same reason the file's ``default`` counts for nothing where the endpoints come from a
variable; a profile that is named does. Paths in the file are relative to it. ``token`` and ``token_file`` count as one
setting.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.settings import TIMEOUT_S_DEFAULT
from oncegate.gateway.toml_file import hint, read_toml
from oncegate.rifl.errors import Code, Outcome

ENDPOINT_DEFAULT: Final = "http://127.0.0.1:7400"
TOKEN_BYTES_MAX: Final = 8192


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file, or what is left when all sources have been looked at.

    Attributes:
        endpoints: addresses of some nodes.
        token: bearer token.
        token_file: file that holds it; read again for each request after it has changed.
        ca_file: certificates (PEM) that an https endpoint's certificate must lead to.
        timeout_s: total time of a call.
    """

    endpoints: list[str] | None = None
    token: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    timeout_s: float | None = None


class SettledProfile(msgspec.Struct, frozen=True):
    """The settings of a client; attributes as :class:`Profile`."""

    endpoints: list[str]
    token: str | None
    token_file: str | None
    ca_file: str | None
    timeout_s: float


def settle(
    given: Profile, name: str | None = None, environment: Mapping[str, str] | None = None, file: Path | None = None
) -> SettledProfile:
    """Put the sources together: what the caller has given, the environment, and the profile of that name in the file.

    What is not given is found as the module says.

    Raises:
        OperationFailed: BAD_REQUEST for a profile that does not exist, or an invalid file or value.
    """
    environment = os.environ if environment is None else environment
    if given.endpoints is not None and name is None:
        return SettledProfile(
            given.endpoints, given.token, given.token_file, given.ca_file, given.timeout_s or TIMEOUT_S_DEFAULT
        )
    file = file or _file(environment)
    variables, name = _from_environment(environment), name or environment.get("ONCEGATE_PROFILE") or None
    # The default's token is meant for the default's endpoints.
    elsewhere = name is None and variables.endpoints is not None
    sources = (given, variables, Profile() if elsewhere else _from_file(file, name))
    secret = next((one for one in sources if one.token is not None or one.token_file is not None), given)
    return SettledProfile(
        _first([source.endpoints for source in sources]) or [ENDPOINT_DEFAULT],
        secret.token,
        secret.token_file,
        _first([source.ca_file for source in sources]),
        _first([source.timeout_s for source in sources]) or TIMEOUT_S_DEFAULT,
    )


def profile_names(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the profiles in the file; none if there is no file, or none that can be read."""
    try:
        found = read_toml(_file(os.environ if environment is None else environment)).values
    except (FileNotFoundError, ValueError):
        return []
    return sorted(name for name, value in found.items() if isinstance(value, dict))


def _file(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("ONCEGATE_PROFILES") or "~/.config/oncegate/profiles.toml").expanduser()


def _first(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _from_environment(environment: Mapping[str, str]) -> Profile:
    def text(name: str) -> str | None:
        return environment.get(f"ONCEGATE_{name}") or None

    listed, timeout = text("ENDPOINTS") or text("ENDPOINT"), text("TIMEOUT_S")
    try:
        timeout_s = None if timeout is None else float(timeout)
    except ValueError:
        raise _bad("ONCEGATE_TIMEOUT_S is not a number") from None
    return Profile(
        None if listed is None else [one.strip() for one in listed.split(",") if one.strip()],
        text("TOKEN"),
        text("TOKEN_FILE"),
        text("CA_FILE"),
        timeout_s,
    )


def _from_file(file: Path, name: str | None) -> Profile:
    try:
        read = read_toml(file)
    except FileNotFoundError:
        if name is None:
            return Profile()
        raise _bad(f"profile {name!r}: there is no {file}") from None
    except ValueError as fault:
        raise _bad(str(fault)) from fault
    found = read.values
    name = name or found.get("default")
    if name is None:
        return Profile()
    if not isinstance(found.get(name), dict):
        known = ", ".join(sorted(key for key, value in found.items() if isinstance(value, dict)))
        raise _bad(f"there is no profile {name!r} in {file}; there is: {known or 'none'}")
    fields = Profile.__struct_fields__
    wrong = [
        f"{read.at(name, key)}: {key} is no setting{hint(key, fields)}" for key in found[name] if key not in fields
    ]
    if wrong:
        raise _bad("; ".join(wrong))
    try:
        profile = msgspec.convert(found[name], Profile)
    except msgspec.ValidationError as fault:
        key = re.search(r"`\$\.(\w+)", str(fault))  # of "Expected `float`, got `str` - at `$.timeout_s`"
        raise _bad(f"{read.at(name, *key.groups()) if key else file}: {fault}") from fault
    return msgspec.structs.replace(
        profile, ca_file=_beside(file, profile.ca_file), token_file=_beside(file, profile.token_file)
    )


def _beside(file: Path, path: str | None) -> str | None:
    return None if path is None else str(file.parent / Path(path).expanduser())


class TokenFile:
    """A bearer token in a file, read again when the file has changed: tokens are rotated under running clients.

    Args:
        path: the file; white space around the token does not count.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._header = ""

    def header(self) -> str:
        """Return the value of ``Authorization``; while the file cannot be read, the last one that could.

        Raises:
            OperationFailed: BAD_REQUEST if no token was ever read.
        """
        try:
            status = os.stat(self._path)
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen != self._seen:
                with Path(self._path).open("rb") as file:
                    token = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
                if not token or any(character.isspace() for character in token):
                    raise ValueError("it holds no token")
                self._seen, self._header = seen, f"Bearer {token}"
        except (OSError, ValueError) as fault:
            if not self._header:
                raise _bad(f"token file {self._path}: {fault}") from fault
        return self._header


def trusted(ca_file: str | None) -> ssl.SSLContext | None:
    """Return a context that trusts the certificates of a file alone, or None without one.

    Raises:
        OperationFailed: BAD_REQUEST if the file holds none.
    """
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as fault:
        raise _bad(f"ca file {ca_file}: {fault}") from fault


def _bad(detail: str) -> OperationFailed:
    return OperationFailed(Code.BAD_REQUEST, detail, outcome=Outcome.NOT_APPLIED)
