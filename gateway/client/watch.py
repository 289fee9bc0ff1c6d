"""Watching rows: each change once, in order, across nodes and reconnections.

Owns: the position of a watch. How a stream of events finds its nodes: :mod:`oncegate.gateway.client.event_stream`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlencode

import msgspec

from oncegate.gateway.client.connection import Connection
from oncegate.gateway.client.event_stream import EventStream
from oncegate.gateway.client.paths import table_path
from oncegate.gateway.client.results import Change


class _Changed(msgspec.Struct):
    key: str
    commit: int
    value: Any = None
    deleted: bool = False
    cause: str = ""
    encoding: str = ""


class _Event(msgspec.Struct):
    commit: int
    changes: list[_Changed] = []


_EVENT = msgspec.json.Decoder(_Event)


class Watch:
    """Changes of rows, without end: ``async for change in client.watch(...)``.

    Attributes:
        commit: every change up to this commit number was given out: a later watch goes on from here. Before the first
            connection without ``from_commit`` it is None. It rises while nothing changes too, and never stands inside
            a transaction: one that was given out in part is given out again, as a whole, by a later watch.
    """

    def __init__(
        self,
        connection: Connection,
        table: str,
        *,
        prefix: str,
        key: str | None,
        from_commit: int | None,
        timeout_s: float | None,
    ) -> None:
        self.commit = from_commit
        self._given = 0
        """Version of the newest change that was given out."""
        self._path = f"{table_path(table)}/watch"
        self._query = {"prefix": prefix} if key is None else {"key": key}
        self._connection = connection
        self._stream = EventStream(connection, self._resumed, timeout_s)

    def _resumed(self) -> str:
        query: dict[str, str | int] = {name: text for name, text in self._query.items() if text}
        if self.commit is not None:
            query["from"] = self.commit
        return f"{self._path}?{urlencode(query)}"

    async def __aiter__(self) -> AsyncGenerator[Change, None]:
        async with aclosing(self._stream.events()) as events:
            async for name, data in events:
                if name not in ("changes", "progress"):
                    continue
                event = _EVENT.decode(data)
                left = len(event.changes)
                if left:
                    self._connection.saw(event.commit)
                for one in event.changes:
                    left -= 1
                    if one.commit <= self._given:
                        continue  # given out already: the reader left in the middle of a transaction
                    self._given = one.commit
                    if not left:
                        self.commit = event.commit
                    commit = one.commit - 1 if self.commit is None else self.commit
                    told = (one.key, commit, one.value, one.deleted, one.cause, event.commit, one.commit)
                    yield Change(*told, encoding=one.encoding)
                self.commit = max(self.commit or 0, event.commit)
