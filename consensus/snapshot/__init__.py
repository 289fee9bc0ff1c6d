"""Snapshots: saving, sending, receiving. Start at :mod:`oncegate.consensus.core.snapshots`."""
