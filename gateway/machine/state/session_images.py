"""The sessions of one save, as they were when it began, while the machine goes on changing them.

Owns: the copy-on-write of sessions and their completion records. Two threads meet here: the event loop, before it
changes a session for the first time after the freeze, and the worker, when it writes one. The first of the two to need
a session encodes it, under a lock, so the save writes its state at the freeze.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from oncegate.gateway.machine.state.layout import SESSIONS
from oncegate.gateway.machine.state.order import sorted_in_runs
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.session import SessionTable


class SessionImages:
    """Images of the sessions that changed since the save before.

    Args:
        sessions, trackers: the machine's own.
        ids: the sessions that changed; the caller changes this set no more. An id without a session was closed.
    """

    def __init__(self, sessions: SessionTable, trackers: Mapping[int, ResultTracker], ids: set[int]) -> None:
        self._sessions = sessions
        self._trackers = trackers
        self._ids = ids
        self._taken: dict[int, bytes | None] = {}
        self._lock = threading.Lock()
        self.taken_bytes = 0
        """Memory held by images taken because their session has changed."""

    def before_change(self, client_id: int) -> None:
        """Keep a session as it is now, before the machine changes it. Event loop's thread."""
        if client_id not in self._ids:
            return
        with self._lock:
            if client_id in self._ids and client_id not in self._taken:
                image = self._taken[client_id] = self._encoded(client_id)
                self.taken_bytes += 0 if image is None else len(image)

    def image(self, client_id: int) -> bytes | None:
        """Return a session as it was at the freeze, None if it was closed. Worker thread."""
        with self._lock:
            if client_id in self._taken:
                return self._taken[client_id]
            return self._encoded(client_id)

    def ids(self) -> Iterator[int]:
        """Yield the ids of the sessions that changed, ascending."""
        return sorted_in_runs(self._ids)

    def release(self) -> None:
        """Everything has been written to a file: later changes concern this save no more."""
        with self._lock:
            self._ids = set()
            self._taken = {}
            self.taken_bytes = 0

    def _encoded(self, client_id: int) -> bytes | None:
        session = self._sessions.get(client_id)
        return None if session is None else SESSIONS.encode((session, self._trackers[client_id]))
