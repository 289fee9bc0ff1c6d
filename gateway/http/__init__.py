"""HTTP in front of a node: routes, admission, bodies. Start at :mod:`oncegate.gateway.http.server`."""
