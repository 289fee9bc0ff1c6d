"""Whom a command asks, and as whom: flags before variables before the SDK's profile, the same for every command.

Owns: the flags ``--endpoint``, ``--profile``, ``--token-file`` and ``--ca-file``. :func:`with_connection_flags` gives
them to each command that has a parameter ``endpoint``, or one that is a :class:`Cluster`, so that none can lack one of
them. A token itself is no flag: other users of a machine see the arguments of its processes. Profiles, and what the
variables are called: :mod:`oncegate.gateway.client.profiles`.

| what | from, first found |
|---|---|
| which profile | ``--profile``, ``ONCEGATE_PROFILE``, ``default`` in the file, none |
| each setting | flag, variable, profile |

With ``--endpoint`` and without ``--profile`` no profile counts: a token meant for one cluster must not travel to
another. With endpoints from ``ONCEGATE_ENDPOINTS`` only a profile counts that a flag or a variable names. With
``--endpoint`` variables count too, other than in the SDK, where arguments are written in a program.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT
from oncegate.gateway.cli.output import failed
from oncegate.gateway.local import blocking_http
from oncegate.gateway.local.blocking_http import Credentials

if TYPE_CHECKING:
    from oncegate.gateway.client import Client

_PROBE_S: Final = 2.0


class Cluster(NamedTuple):
    """What a command knows of the cluster before it asks: addresses of some nodes, who asks, and whom it trusts.

    ``timeout_s``: total time of a call of the SDK; None: the SDK's own.
    """

    endpoints: list[str]
    credentials: Credentials
    timeout_s: float | None = None

    def client(self, timeout_s: float | None = None) -> Client:
        """Return a client of the SDK, to be opened with ``async with``; raises OncegateError for bad credentials."""
        from oncegate.gateway.client import Client

        return Client(self.endpoints, timeout_s=timeout_s or self.timeout_s, **self.credentials._asdict())

    def answering(self) -> str:
        """Return the address of a node to ask: of several the first that answers, or else the first."""
        if len(self.endpoints) > 1:
            for one in self.endpoints:
                if blocking_http.get(f"{one}/livez", _PROBE_S) is not None:
                    return one
        return self.endpoints[0]


def with_connection_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the flags in place of its ``endpoint`` or its :class:`Cluster`; any other as it is.

    ``endpoint`` is the address of a node that answers, and requests of :mod:`oncegate.gateway.local.blocking_http`
    carry the credentials while the command runs. A command with None by default asks
    nobody unless ``--endpoint`` or ``--profile`` is given.
    """
    written = inspect.signature(command, eval_str=True)
    taken = next((one.name for one in written.parameters.values() if _is_connection(one)), None)
    if taken is None or getattr(command, "has_connection_flags", False):
        return command
    optional = written.parameters[taken].default is None

    @functools.wraps(command)
    def connected(
        *given: Any,
        endpoint: str | None,
        profile: str | None,
        token_file: Path | None,
        ca_file: Path | None,
        **more: Any,
    ) -> Any:
        if optional and endpoint is None and profile is None:
            return command(*given, **more, **{taken: None})
        cluster = _settled(endpoint, profile, token_file, ca_file)
        with blocking_http.as_whom(cluster.credentials):
            found = cluster.answering() if taken == "endpoint" else cluster
            return command(*given, **more, **{taken: found})

    others = [one for one in written.parameters.values() if one.name != taken]
    connected.__signature__ = written.replace(parameters=[*others, *_FLAGS])  # type: ignore[attr-defined]
    connected.has_connection_flags = True  # type: ignore[attr-defined]
    return connected


def _is_connection(one: inspect.Parameter) -> bool:
    return one.name == "endpoint" or one.annotation in (Cluster, Cluster | None)


def _settled(endpoint: str | None, profile: str | None, token_file: Path | None, ca_file: Path | None) -> Cluster:
    """Put flags, variables and profile together; what is wrong with them ends the command as misused."""
    flags: dict[str, Any] = {
        name: str(path) for name, path in (("token_file", token_file), ("ca_file", ca_file)) if path is not None
    }
    if endpoint is not None and profile is None:
        known = blocking_http.credentials_of(os.environ)
        if token_file is not None:
            known = known._replace(token=None)
        return Cluster([_plain(endpoint)], known._replace(**flags))
    from oncegate.gateway.client.profiles import Profile, settle
    from oncegate.rifl.errors import OncegateError

    try:
        found = settle(Profile(endpoints=None if endpoint is None else [endpoint], **flags), profile)
    except OncegateError as fault:
        raise failed(fault.detail, 2) from None
    known = Credentials(found.token, found.token_file, found.ca_file)
    return Cluster([_plain(one) for one in found.endpoints], known, found.timeout_s)


def _plain(endpoint: str) -> str:
    return endpoint.rstrip("/")


def _profiles(incomplete: str) -> list[str]:
    """Return the names of profiles that begin so, for the completion of a shell; none if the file is of no use."""
    from oncegate.gateway.client.profiles import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


def table_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the cluster's tables that begin so, for the completion of a shell; none if nobody answers."""
    given = context.params
    try:
        cluster = _settled(*(given.get(name) for name in ("endpoint", "profile", "token_file", "ca_file")))
        with blocking_http.as_whom(cluster.credentials):
            found = blocking_http.get_json(f"{cluster.answering()}/v1/tables?consistency=stale&limit=1000", _PROBE_S)
    except typer.Exit:
        return []
    return [one["name"] for one in (found or {}).get("tables", []) if one["name"].startswith(incomplete)]


def _flag(name: str, kind: Any, text: str, **more: Any) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=text, show_default=False, **more)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


_FLAGS: Final = (
    _flag("endpoint", str | None, f"HTTP address of any node [ONCEGATE_ENDPOINTS, the profile's, {ENDPOINT_DEFAULT}]"),
    _flag(
        "profile",
        str | None,
        "profile of the SDK: endpoints, token and CA [ONCEGATE_PROFILE, the file's default]",
        autocompletion=_profiles,
    ),
    _flag("token_file", Path | None, "file with the token [ONCEGATE_TOKEN, ONCEGATE_TOKEN_FILE, the profile's]"),
    _flag("ca_file", Path | None, "PEM file of authorities to trust [ONCEGATE_CA_FILE, the profile's, the system's]"),
)
