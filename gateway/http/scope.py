"""Scopes and identities as values.

Owns: what a token allows, and who an asker is. Must not know HTTP: ``oncegate token`` imports this without a server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


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
    """The asker. A rate of None is the tenant's, by the node's settings."""

    name: str
    """Name of the token, for logs; never the token."""
    tenant: str
    scopes: frozenset[Scope]
    operations_per_s: int | None = None
