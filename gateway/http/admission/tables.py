"""What a token may call that is limited to some tables (``write:orders.``).

Owns: of each route, which table or flow it is about. A route that names none is refused to such a token unless it
stands here: so a new route is closed to it until somebody has thought about it. A flow is reached by its own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from oncegate.gateway.http.identity import Identity, Scope
from oncegate.gateway.http.routing import Route
from oncegate.rifl.errors import Code, OncegateError

IN_THE_PATH: Final = ("table", "flow")
CHECKED_BY_ITS_HANDLER: Final = frozenset(
    {"/v1/operations", "/v1/transactions", "/v1/rows", "/v1/explain", "/v1/flows", "/v1/tables"}
)
"""Names tables in its body or query, or lists them."""
OF_THE_TENANT: Final = ("/v1/sessions", "/v1/requests/", "/v1/cluster", "/v1/token")
"""The tenant's own sessions and results, whatever table they are of; who is in the cluster; the token itself."""


def check_route(identity: Identity, route: Route, scope: Scope, names: Mapping[str, str]) -> None:
    """Refuse a request that is about another table than the token's; ``names``: the parts of its path.

    Raises:
        OncegateError: FORBIDDEN.
    """
    if scope not in identity.within or route.path in CHECKED_BY_ITS_HANDLER:
        return
    given = [names[part] for part in IN_THE_PATH if part in names]
    if given:
        _check(identity, scope, given)
    elif scope is Scope.ADMIN or not route.path.startswith(OF_THE_TENANT):
        raise OncegateError(Code.FORBIDDEN, f"the token has the scope {scope} for some tables only")


def check_tables(identity: Identity, scope: Scope, names: Iterable[str]) -> None:
    """Refuse a request that names another table than its sender's token is for; raises FORBIDDEN."""
    if scope in identity.within:
        _check(identity, scope, names)


def _check(identity: Identity, scope: Scope, names: Iterable[str]) -> None:
    beyond = next((name for name in names if not identity.may(scope, name)), None)
    if beyond is not None:
        raise OncegateError(Code.FORBIDDEN, f"the token has the scope {scope} not for {beyond}")
