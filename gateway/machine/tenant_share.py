"""How much of what all tenants share one tenant may hold. Pure.

Owns: the one rule behind every bound of a tenant (docs/decisions/0026-a-tenants-share.md).
"""

from __future__ import annotations

NOBODY = ""
"""Tenant of every caller at a node without tokens: there is nobody else to leave room for."""


def share(tenant: str, limit: int, taken: int, own: int) -> int:
    """Return how much of ``limit`` a tenant may hold: as much as it leaves free.

    So one tenant may take half, the next one half of what is left, and whoever comes then still finds room.

    Args:
        tenant: who asks; ``NOBODY`` may hold all that others do not.
        limit: of all tenants together.
        taken: by all tenants now.
        own: of it, by this tenant.
    """
    others = taken - own
    return max(0, limit - others if tenant == NOBODY else (limit - others) // 2)
