"""Who asks: tenant, scopes and quotas of a request.

Owns: the identity that the edge attaches to each request, and what follows from it for sessions. How a token becomes
an identity is :mod:`oncegate.gateway.http.auth`; when it is asked for, :mod:`oncegate.gateway.http.admission.gate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web

from oncegate.gateway.http.scope import Identity as Identity
from oncegate.gateway.http.scope import Scope as Scope
from oncegate.rifl.errors import Code, OncegateError

if TYPE_CHECKING:
    from oncegate.gateway.machine.machine import Machine

ANONYMOUS_TENANT: Final = ""
"""Tenant of every request to a node without tokens."""

IDENTITY: Final = web.RequestKey("identity", Identity)
ANONYMOUS: Final = Identity("", ANONYMOUS_TENANT, frozenset(Scope))


def identity_of(request: web.BaseRequest) -> Identity:
    """Return who sent the request; the edge has attached it before any handler runs."""
    return request[IDENTITY]


def tenant_of(request: web.BaseRequest) -> str:
    """Return the tenant that the request speaks for."""
    return identity_of(request).tenant


def check_owner(request: web.BaseRequest, machine: Machine, client_id: int) -> None:
    """Refuse a session of another tenant, as far as this node knows it (SEMANTICS, case 3).

    Saves a log entry and guards what is read from the local state. A node that is behind may not know the session
    yet: for what goes through the log, the apply rule decides.

    Raises:
        OncegateError: FORBIDDEN; it does not say more about the session than that it is not the asker's.
    """
    session = machine.sessions.get(client_id)
    if session is not None and session.tenant != identity_of(request).tenant:
        raise OncegateError(Code.FORBIDDEN, "the session belongs to another tenant")
