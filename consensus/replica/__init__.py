"""One member of a replicated log, driven by an event loop. Start at :mod:`oncegate.consensus.replica.replica`."""
