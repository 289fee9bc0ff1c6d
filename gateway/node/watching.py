"""Watches of rows: each change to those who wait for it, in commit order, each once.

Owns: who waits for which rows, who is told what, and how many there may be. Knows no HTTP; the history is
:mod:`oncegate.gateway.node.change_history`, the form of the events :mod:`oncegate.gateway.node.change_events`, whose
turn it is :mod:`oncegate.gateway.node.turns`, the stream :mod:`oncegate.gateway.http.routes.watch`. Event loop's
thread only.

All watches of the same rows are one :class:`Audience`. A watch is in one of three states:

| state | it | a change of its rows costs it |
|---|---|---|
| waits | has been told everything, and stands in ``waiting`` of its audience | its turn: once, whatever follows |
| has a turn to come | has something to look at | nothing: it will find it there |
| is at work | takes what there is and writes it, for as long as its client does not read | nothing: it looks again |

So a change costs each audience a look-up by key and by each length of prefix, and an append; those of its watches that
do not read cost nothing. What a watch takes are bytes that others take too: :class:`Watching` keeps the events that it
made last, and the watches that wait for the same begin at the same place.

A watch that is at most :data:`PENDING_MAX` changes of its rows behind finds them with its audience, however many others
the history has dropped since. Beyond, it reads the history from its position on, a slice at a time, as one does that
resumes; when that no longer reaches back to its position it is told so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final, NamedTuple

from oncegate.gateway.machine.rows import ChangeRun, RowChange, each_change
from oncegate.gateway.machine.tenant_share import share
from oncegate.gateway.node.change_events import ChangeEvents
from oncegate.gateway.node.change_history import ChangeHistory
from oncegate.gateway.node.fitness import watches_of
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.node.turns import Crowd, Turns
from oncegate.rifl.errors import Code, OncegateError

PENDING_MAX: Final = 64
PENDING_BYTES_MAX: Final = 64 * 1024
"""Changes that an audience keeps, and their values; beyond, its watches read them from the history."""
SLICE_CHANGES: Final = 1_000
"""Changes of the history that are looked at in a turn: a tenth of a millisecond."""
ENCODED_SHARE: Final = 4
"""Encoded changes may have one in so many bytes of what the history may have, beside it."""
RETRY_AFTER_MS: Final = 1_000


class WatchersMax(NamedTuple):
    """How many watches there may be at a node: of all tables, and of one."""

    of_all: int
    of_a_table: int

    @classmethod
    def of(cls, settings: Settings) -> WatchersMax:
        """Return how many the settings allow; they leave connections to others."""
        of_all = min(settings.watchers_max, watches_of(settings.connections_max))
        return cls(of_all, min(settings.watchers_table_max, of_all))


class Audience:
    """The watches of the same rows of a table: of a key if ``exact``, or of a prefix of keys."""

    __slots__ = ("_bytes", "_changes", "calls", "exact", "newest", "since", "table", "text", "waiting", "watchers")

    def __init__(self, table: str, text: str, commit: int, *, exact: bool) -> None:
        self.table = table
        self.text = text
        self.exact = exact
        self.newest = commit
        """Commit number of the newest change of these rows, or one above it: nothing of them has changed since."""
        self.since = commit
        """Every change of these rows above it is kept here."""
        self.watchers = 0
        self.waiting: dict[Watcher, None] = {}
        self.calls = 0
        """How many times all of them were given a turn though nothing has changed."""
        self._changes: list[RowChange] = []
        self._bytes = 0

    def keep(self, change: RowChange) -> None:
        """Keep a change for those that are not told everything; all of them go when they are too many."""
        self.newest = change[1]
        if change[1] <= self.since:
            return  # of a transaction that was too large
        after = change[5]
        self._changes.append(change)
        self._bytes += 0 if after is None else len(after.value)
        if len(self._changes) > PENDING_MAX or (self._bytes > PENDING_BYTES_MAX and len(self._changes) > 1):
            self.forget()

    def forget(self, commit: int | None = None) -> None:
        """Keep nothing; with ``commit`` nothing is known of what was up to it."""
        self._changes, self._bytes = [], 0
        if commit is not None:
            self.newest = commit
        self.since = self.newest

    def above(self, commit: int) -> Iterator[RowChange]:
        """Yield what is kept above a commit number."""
        return (change for change in self._changes if change[1] > commit)

    def of(self, changes: Iterable[RowChange]) -> Iterator[RowChange]:
        """Yield those of these rows."""
        table, text = self.table, self.text
        if self.exact:
            return (change for change in changes if change[3] == text and change[2] == table)
        return (change for change in changes if change[2] == table and change[3].startswith(text))


class Watcher:
    """One watch. ``position``: it has been told every change of its rows up to this commit number."""

    __slots__ = ("_calls", "_turn", "_watching", "audience", "position", "tenant")

    def __init__(self, watching: Watching, audience: Audience, position: int, tenant: str) -> None:
        self._watching = watching
        self._turn: asyncio.Future[None] | None = None
        self._calls = audience.calls
        self.audience = audience
        self.position = position
        self.tenant = tenant

    @property
    def is_behind(self) -> bool:
        """Whether it is told what lies in the past, rather than what has just happened."""
        return self.position < self.audience.since

    @property
    def has_more(self) -> bool:
        """Whether there is more for it to look at."""
        return self.position < self.audience.newest

    def take(self) -> bytes:
        """Return the next events that there are for it, in commit order, and take them as told.

        Nothing does not mean that nothing follows at once: see :attr:`has_more`.

        Raises:
            HistoryExceeded: it is behind, and the history does not reach back to its position.
        """
        if not self.has_more:
            self.position = max(self.position, self._watching.history.last)
            return b""
        told, self.position = self._watching.piece(self.audience, self.position)
        return told

    async def wait(self) -> None:
        """Return when there may be something to take, and it is its turn."""
        turn = self._turn = asyncio.get_running_loop().create_future()
        audience = self.audience
        if self.has_more or self._calls != audience.calls:
            self._watching.turns.add(_turns_of((self,), self.position))
        else:
            audience.waiting[self] = None
            if len(audience.waiting) == audience.watchers:
                audience.forget()  # all of them were told
        try:
            await turn
        finally:
            self._turn = None
            audience.waiting.pop(self, None)

    def begin(self, position: int) -> bool:
        """Give it its turn; nothing of its rows has changed up to ``position``. False: it does not wait."""
        turn = self._turn
        if turn is None or turn.done():
            return False
        self.position = max(self.position, position)
        self._calls = self.audience.calls
        turn.set_result(None)
        return True

    def wake(self) -> None:
        """Give it a turn, though nothing of its rows may have changed: it may have to end."""
        waiting, watching = self.audience.waiting, self._watching
        if self in waiting:
            del waiting[self]
            watching.turns.add(_turns_of((self,), watching.history.last))
        else:
            self._calls = -1  # it looks as soon as it is done


def _turns_of(watchers: Iterable[Watcher], position: int) -> Crowd:
    for one in watchers:
        yield one.begin(position)


class _OfTable:
    """The audiences of one table."""

    __slots__ = ("by_key", "by_prefix", "lengths", "watchers")

    def __init__(self) -> None:
        self.by_key: dict[str, Audience] = {}
        self.by_prefix: dict[str, Audience] = {}
        self.lengths: Counter[int] = Counter()
        """How many of the prefixes have this length."""
        self.watchers = 0

    def audience(self, table: str, text: str, commit: int, *, exact: bool) -> Audience:
        """Return who watches these rows; made at ``commit`` if there was nobody."""
        audiences = self.by_key if exact else self.by_prefix
        found = audiences.get(text)
        if found is None:
            found = audiences[text] = Audience(table, text, commit, exact=exact)
            if not exact:
                self.lengths[len(text)] += 1
        return found

    def discard(self, audience: Audience) -> None:
        """Forget those that nobody belongs to any more."""
        text = audience.text
        if audience.exact:
            del self.by_key[text]
            return
        del self.by_prefix[text]
        self.lengths[len(text)] -= 1
        if not self.lengths[len(text)]:
            del self.lengths[len(text)]

    def tell(self, change: RowChange, call: Callable[[Audience, RowChange], None]) -> None:
        """Call who watches the row that has changed."""
        key = change[3]
        found = self.by_key.get(key)
        if found is not None:
            call(found, change)
        for length in self.lengths:
            if length <= len(key):
                found = self.by_prefix.get(key[:length])
                if found is not None:
                    call(found, change)

    def all(self) -> Iterable[Audience]:
        """Return all of them."""
        return (*self.by_key.values(), *self.by_prefix.values())


class _Piece(NamedTuple):
    """Events for an audience above ``position``, when its newest change was ``newest``; they end at ``reached``."""

    audience: Audience
    position: int
    newest: int
    events: bytes
    reached: int

    def is_for(self, audience: Audience, position: int) -> bool:
        """Whether it is what this audience is told next; one that ends before what was newest then says so for ever."""
        if audience is not self.audience or position != self.position:
            return False
        return self.reached < self.newest or self.newest == audience.newest


class Watching:
    """The history of one node's changes, and all who watch them.

    Args:
        history: of the machine's state.
        watchers_max: of all tenants together.
        turns: of the node.
    """

    def __init__(self, history: ChangeHistory, watchers_max: WatchersMax, turns: Turns | None = None) -> None:
        self.history = history
        self.turns = Turns() if turns is None else turns
        self.events = ChangeEvents(history.bytes_max // ENCODED_SHARE)
        self._watchers_max = watchers_max
        self._tables: dict[str, _OfTable] = {}
        self._of_tenant: Counter[str] = Counter()
        self._piece: _Piece | None = None
        """What was made last: the next one to be told is likely to wait for the same."""
        self.watchers = 0

    def tell(self, changes: list[RowChange | ChangeRun]) -> None:
        """Tell those who watch what an entry has changed; the history has recorded it."""
        tables = self._tables
        if not tables:
            return
        self.turns.applied()
        for change in each_change(changes):
            found = tables.get(change[2])
            if found is not None:
                found.tell(change, self._told)

    def _told(self, audience: Audience, change: RowChange) -> None:
        audience.keep(change)
        if audience.waiting:
            self._call(audience, change[0] - 1)

    def _call(self, audience: Audience, position: int) -> None:
        """Give all that wait a turn; nothing of their rows has changed up to ``position``."""
        watchers, audience.waiting = audience.waiting, {}
        self.turns.add(_turns_of(watchers, position))

    def piece(self, audience: Audience, position: int) -> tuple[bytes, int]:
        """Return the next events of an audience above a commit number, and the one from which to go on.

        Raises:
            HistoryExceeded: they are not all here.
        """
        made, newest = self._piece, audience.newest
        if made is not None and made.is_for(audience, position):
            return made.events, made.reached
        if position >= audience.since:
            found, reached = audience.above(position), self.history.last
        else:
            changes, reached = self.history.since(position, SLICE_CHANGES)
            found = audience.of(changes)
        events, reached = self.events.of(found, reached)
        self._piece = _Piece(audience, position, newest, events, reached)
        return events, reached

    def replaced(self, commit: int) -> None:
        """Another state, of this commit number, has taken the place of the one before: what led to it is not known."""
        before = self.history.last
        self.history.reset(commit)
        self.events.clear()
        self._piece = None
        for audience in self._all():
            audience.forget(commit)
            self._call(audience, before)

    def dropped(self, tables: Container[str]) -> None:
        """Have the watches end whose tables are not among these."""
        for table, found in self._tables.items():
            if table not in tables:
                for audience in found.all():
                    self._wake(audience)

    def wake_all(self) -> None:
        """Give every watch a turn: it may have to end."""
        for audience in self._all():
            self._wake(audience)

    def _wake(self, audience: Audience) -> None:
        audience.calls += 1
        self._call(audience, self.history.last)

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
            OncegateError: OVERLOADED for one watcher too many, of all, of this table or of this tenant.
        """
        own, most = self._of_tenant[tenant], self._watchers_max
        if own >= share(tenant, most.of_all, self.watchers, own):
            raise _too_many("on this node")
        found = self._tables.get(table)
        if (0 if found is None else found.watchers) >= most.of_a_table:
            raise _too_many(f"of table {table} on this node")
        position = self.history.end_of(position)
        if found is None:
            found = self._tables[table] = _OfTable()
        audience = found.audience(table, text, self.history.last, exact=exact)
        audience.watchers += 1
        found.watchers += 1
        self._of_tenant[tenant] += 1
        self.watchers += 1
        return Watcher(self, audience, position, tenant)

    def close(self, watcher: Watcher) -> None:
        """End a watch."""
        audience = watcher.audience
        found = self._tables[audience.table]
        audience.waiting.pop(watcher, None)
        audience.watchers -= 1
        if not audience.watchers:
            found.discard(audience)
        found.watchers -= 1
        if not found.watchers:
            del self._tables[audience.table]
        self.watchers -= 1
        self._of_tenant[watcher.tenant] -= 1
        if not self._of_tenant[watcher.tenant]:
            del self._of_tenant[watcher.tenant]

    def _all(self) -> Iterable[Audience]:
        for found in self._tables.values():
            yield from found.all()


def _too_many(where: str) -> OncegateError:
    return OncegateError(Code.OVERLOADED, f"too many watches {where}", retry_after_ms=RETRY_AFTER_MS)
