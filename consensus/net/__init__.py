"""Connections to peers, and what travels on them. Start at :mod:`oncegate.consensus.net.transport`."""
