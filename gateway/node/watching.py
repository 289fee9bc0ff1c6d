"""Watches of rows: each change to those who wait for it, in commit order, each once.

Owns: who waits for which rows, what is handed to whom, and how much a slow watcher may leave lying. Knows no HTTP; the
history is :mod:`oncegate.gateway.node.change_history`, the stream of events :mod:`oncegate.gateway.http.routes.watch`.
Event loop's thread only.

A watcher is in one of two states. *Awake*: it is handed the changes it waits for as they happen; a look-up by key and
by each length of prefix finds it, so others' changes cost it nothing. *Behind*: it reads the history from its position
on, a slice at a time, as one does that resumes. A slow watcher falls behind at :data:`PENDING_MAX`; nothing is kept for
it, and when the history no longer reaches back to its position it is told so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from oncegate.gateway.machine.tables import ChangeRun, RowChange, each_change
from oncegate.gateway.machine.tenant_share import share
from oncegate.gateway.node.change_history import ChangeHistory
from oncegate.rifl.errors import Code, OncegateError

PENDING_MAX: Final = 64
PENDING_BYTES_MAX: Final = 64 * 1024
"""Changes that wait for one watcher, and their values; beyond, it reads them from the history."""
SLICE_CHANGES: Final = 2_000
"""Changes of the history that are looked at before others have their turn: less than a millisecond."""
RETRY_AFTER_MS: Final = 1_000


class Watcher:
    """One watch. ``position``: it has been given every change up to this commit number that it waits for."""

    __slots__ = ("_behind", "_bytes", "_history", "_pending", "_turn", "exact", "position", "table", "tenant", "text")

    def __init__(
        self, history: ChangeHistory, table: str, text: str, position: int, tenant: str, *, exact: bool
    ) -> None:
        self._history = history
        self._pending: list[RowChange] = []
        self._bytes = 0
        self._behind = position != history.last
        self._turn: asyncio.Future[None] | None = None
        self.table = table
        self.text = text
        self.exact = exact
        self.position = position
        self.tenant = tenant

    @property
    def is_behind(self) -> bool:
        """Whether there is more in the history for it to look at."""
        return self._behind

    def take(self) -> list[RowChange]:
        """Return what there is for it: in commit order, and what took effect together as a whole.

        Nothing does not mean that nothing follows at once: see :attr:`is_behind`.

        Raises:
            HistoryExceeded: it was behind, and the history does not reach back to its position.
        """
        history = self._history
        if not self._behind:
            taken, self._pending, self._bytes = self._pending, [], 0
            self.position = history.last
            return taken
        changes, self.position = history.since(self.position, SLICE_CHANGES)
        self._behind = self.position < history.last
        table, text = self.table, self.text
        if self.exact:
            return [change for change in changes if change[3] == text and change[2] == table]
        return [change for change in changes if change[2] == table and change[3].startswith(text)]

    async def wait(self) -> None:
        """Return when there may be something to take; at once while it is behind."""
        if self._pending or self._behind:
            return
        turn = self._turn = asyncio.get_running_loop().create_future()
        try:
            await turn
        finally:
            self._turn = None

    def give(self, change: RowChange) -> None:
        """Hand over a change that it waits for."""
        if not self._behind:
            after = change[5]
            self._bytes += 0 if after is None else len(after.value)
            self._pending.append(change)
            if len(self._pending) > PENDING_MAX or (self._bytes > PENDING_BYTES_MAX and len(self._pending) > 1):
                self.fall_behind()
        self.wake()

    def fall_behind(self) -> None:
        """Forget what waits for it: it is read from the history, or is not there any more."""
        self._pending, self._bytes, self._behind = [], 0, True

    def wake(self) -> None:
        """Give it a turn."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


class _OfTable:
    """The watchers of one table."""

    __slots__ = ("by_key", "by_prefix", "lengths")

    def __init__(self) -> None:
        self.by_key: dict[str, dict[Watcher, None]] = {}
        self.by_prefix: dict[str, dict[Watcher, None]] = {}
        self.lengths: Counter[int] = Counter()
        """How many of the prefixes have this length."""

    def add(self, watcher: Watcher) -> None:
        text = watcher.text
        found = self.by_key if watcher.exact else self.by_prefix
        if text not in found:
            found[text] = {}
            if not watcher.exact:
                self.lengths[len(text)] += 1
        found[text][watcher] = None

    def discard(self, watcher: Watcher) -> None:
        text = watcher.text
        found = self.by_key if watcher.exact else self.by_prefix
        del found[text][watcher]
        if not found[text]:
            del found[text]
            if not watcher.exact:
                self.lengths[len(text)] -= 1
                if not self.lengths[len(text)]:
                    del self.lengths[len(text)]

    def give(self, change: RowChange) -> None:
        key = change[3]
        for watcher in self.by_key.get(key, ()):
            watcher.give(change)
        for length in self.lengths:
            for watcher in self.by_prefix.get(key[:length], ()) if length <= len(key) else ():
                watcher.give(change)


class Watching:
    """The history of one node's changes, and all who watch them.

    Args:
        history: of the machine's state.
        watchers_max: of all tenants together.
    """

    def __init__(self, history: ChangeHistory, watchers_max: int) -> None:
        self.history = history
        self._watchers_max = watchers_max
        self._tables: dict[str, _OfTable] = {}
        self._of_tenant: Counter[str] = Counter()
        self.watchers = 0

    def applied(
        self, changes: list[RowChange | ChangeRun], commit: int, joined: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Take over what an entry has changed; arguments as of :meth:`ChangeHistory.record`."""
        self.history.record(changes, commit, joined)
        tables = self._tables
        if tables:
            for change in each_change(changes):
                found = tables.get(change[2])
                if found is not None:
                    found.give(change)

    def replaced(self, commit: int) -> None:
        """Another state, of this commit number, has taken the place of the one before: what led to it is not known."""
        self.history.reset(commit)
        for watcher in self._all():
            watcher.fall_behind()
            watcher.wake()

    def wake_all(self) -> None:
        """Give every watcher a turn: it may have to end."""
        for watcher in self._all():
            watcher.wake()

    def open(self, table: str, text: str, position: int, tenant: str, *, exact: bool) -> Watcher:
        """Begin to watch.

        Args:
            table: a resident table.
            text: a key, or a prefix of keys.
            position: commit number; changes above it are asked for. Inside a transition it means its end.
            tenant: who asks.
            exact: whether ``text`` is a key.

        Raises:
            HistoryExceeded: the changes above ``position`` are not all here.
            OncegateError: OVERLOADED for one watcher too many, of all or of this tenant.
        """
        own = self._of_tenant[tenant]
        if own >= share(tenant, self._watchers_max, self.watchers, own):
            raise OncegateError(Code.OVERLOADED, "too many watchers on this node", retry_after_ms=RETRY_AFTER_MS)
        watcher = Watcher(self.history, table, text, self.history.end_of(position), tenant, exact=exact)
        self._tables.setdefault(table, _OfTable()).add(watcher)
        self._of_tenant[tenant] += 1
        self.watchers += 1
        return watcher

    def close(self, watcher: Watcher) -> None:
        """End a watch."""
        found = self._tables[watcher.table]
        found.discard(watcher)
        if not found.by_key and not found.by_prefix:
            del self._tables[watcher.table]
        self.watchers -= 1
        self._of_tenant[watcher.tenant] -= 1
        if not self._of_tenant[watcher.tenant]:
            del self._of_tenant[watcher.tenant]

    def _all(self) -> Iterable[Watcher]:
        for found in self._tables.values():
            for watchers in (*found.by_key.values(), *found.by_prefix.values()):
                yield from watchers
