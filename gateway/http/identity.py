"""The sender of a request: tenant, scopes and quotas.

Owns: the identity attached to each request, and the check of a session's owner. :mod:`oncegate.gateway.http.auth` turns
a token into an identity; :mod:`oncegate.gateway.http.admission.gate` attaches it.
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
    """Return the sender's identity; the gate has attached it before any handler runs."""
    return request[IDENTITY]


def tenant_of(request: web.BaseRequest) -> str:
    """Return the tenant of the request's sender."""
    return identity_of(request).tenant


def check_owner(request: web.BaseRequest, machine: Machine, client_id: int) -> None:
    """Refuse a session of another tenant, as far as this node knows it (SEMANTICS, case 3).

    This saves a log entry and guards reads of the local state. A node that is behind may not know the session yet; for
    everything that goes through the log, the apply rule decides.

    Raises:
        OncegateError: FORBIDDEN; it says no more about the session than that it belongs to another tenant.
    """
    session = machine.sessions.get(client_id)
    if session is not None and session.tenant != identity_of(request).tenant:
        raise OncegateError(Code.FORBIDDEN, "the session belongs to another tenant")
