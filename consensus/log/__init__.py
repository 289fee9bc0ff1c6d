"""The log on disk, and the small files beside it. Start at :mod:`oncegate.consensus.log.wal`."""
