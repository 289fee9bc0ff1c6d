"""Raft without sockets, timers or futures. Start at :mod:`oncegate.consensus.core.engine`."""
