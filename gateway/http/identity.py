"""Who sends a request, as values: scopes, tenants, identities.

Owns: what a token allows, and on which tables. Must not know HTTP: ``oncegate token`` imports this without a server.
:mod:`oncegate.gateway.http.auth` turns a token into an identity; :mod:`oncegate.gateway.http.admission.gate` attaches
it to the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

_GRANT: Final = re.compile(r"(read|write|flows|admin)(?::([a-z0-9][a-z0-9_.-]{0,63}))?", re.ASCII)


class Scope(StrEnum):
    """What a token allows; a route needs exactly one of them."""

    READ = "read"
    """Rows, requests, flows, batches, metrics, the cluster's state."""
    WRITE = "write"
    """Sessions and operations."""
    FLOWS = "flows"
    """Declaring flows, attaching consumers, moving cursors."""
    ADMIN = "admin"
    """Declaring tables, members, leadership."""


class Allowed(NamedTuple):
    """What a token allows.

    ``within``: by scope, what the names of tables and flows must begin with; a scope that is not there has all of them.
    """

    scopes: frozenset[Scope]
    within: Mapping[Scope, tuple[str, ...]] = MappingProxyType({})


class Identity(NamedTuple):
    """The sender of a request. ``operations_per_s`` None: the tenant's rate, by the node's settings."""

    name: str
    """Name of the token, for logs; never the token."""
    tenant: str
    scopes: frozenset[Scope]
    operations_per_s: int | None = None
    within: Mapping[Scope, tuple[str, ...]] = MappingProxyType({})
    """See :class:`Allowed`."""

    def may(self, scope: Scope, name: str) -> bool:
        """Tell whether the scope reaches the table or flow of this name."""
        return scope in self.scopes and (scope not in self.within or name.startswith(self.within[scope]))

    @property
    def sees_all(self) -> bool:
        """Whether it is the operator, to whom the request ids of all tenants are shown."""
        return Scope.ADMIN in self.scopes and Scope.ADMIN not in self.within


ANONYMOUS: Final = Identity("", "", frozenset(Scope))
"""The sender of every request to a node without tokens."""


def is_grant(text: str) -> bool:
    """Tell whether a text is a scope, or a scope of some tables: ``write``, ``write:orders.``."""
    return _GRANT.fullmatch(text) is not None


def allowed(grants: Iterable[str]) -> Allowed:
    """Return what grants allow together; a scope without a prefix counts more than the same with one.

    Raises:
        ValueError: one is no grant.
    """
    found: dict[Scope, set[str]] = {}
    for text in grants:
        grant = _GRANT.fullmatch(text)
        if grant is None:
            raise ValueError(f"{text!r} is none of {', '.join(Scope)}, nor one of these with :PREFIX of tables")
        found.setdefault(Scope(grant[1]), set()).add(grant[2] or "")
    within = {scope: tuple(sorted(prefixes)) for scope, prefixes in found.items() if "" not in prefixes}
    return Allowed(frozenset(found), within)
