"""The gateway: HTTP in front, exactly-once in the middle, flows behind. Start at :mod:`oncegate.gateway.node.node`."""
