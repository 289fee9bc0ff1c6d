"""One node on one event loop. Start at :mod:`oncegate.gateway.node.node`."""
