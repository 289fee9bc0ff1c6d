"""Who sends a request, as values: scopes, tenants, identities.

Owns: what a token allows. Must not know HTTP: ``oncegate token`` imports this without a server.
:mod:`oncegate.gateway.http.auth` turns a token into an identity; :mod:`oncegate.gateway.http.admission.gate` attaches
it to the request.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


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


class Identity(NamedTuple):
    """The sender of a request. ``operations_per_s`` None: the tenant's rate, by the node's settings."""

    name: str
    """Name of the token, for logs; never the token."""
    tenant: str
    scopes: frozenset[Scope]
    operations_per_s: int | None = None


ANONYMOUS: Final = Identity("", "", frozenset(Scope))
"""The sender of every request to a node without tokens."""
