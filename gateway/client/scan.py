"""Reading many rows: all of a range at one commit number, page after page; several by name at once.

Owns: going from page to page, at whichever node still has the state that the first one was read from.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import msgspec

from oncegate.gateway.client.arguments import bad, key_of, name_of
from oncegate.gateway.client.connection import Connection
from oncegate.gateway.client.courier import ReadCall
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.paths import ROWS, table_path
from oncegate.gateway.client.results import Page, Row
from oncegate.rifl.errors import Code


class Scan:
    """The rows of a range as they were at one moment: ``async for row in client.rows(...)``.

    Attributes:
        commit: the commit number whose state this is; None before the first page. A watch from it tells what has
            changed since.
    """

    def __init__(
        self,
        connection: Connection,
        table: str,
        query: Mapping[str, str | int],
        page_rows: int,
        timeout_s: float | None,
    ) -> None:
        self.commit: int | None = None
        self._connection = connection
        self._path = f"{table_path(table)}/rows"
        self._query = query
        self._page_rows = page_rows
        self._timeout_s = timeout_s

    async def __aiter__(self) -> AsyncGenerator[Row, None]:
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for row in page:
                    yield row

    async def pages(self) -> AsyncGenerator[Sequence[Row], None]:
        """Yield the same rows, those of a page at once."""
        query = self._query
        while True:
            page = await self._page({**query, "limit": self._page_rows})
            self.commit = page.commit
            self._connection.saw(page.commit)
            yield page.rows
            if page.page is None:
                return
            query = {"page": page.page}

    async def _page(self, query: Mapping[str, str | int]) -> Page:
        """Get a page; RETENTION_EXCEEDED only if no node keeps so much history."""
        connection, left = self._connection, len(self._connection.router.endpoints)
        while True:
            anywhere = left < len(connection.router.endpoints)
            try:
                return await connection.ask(self._path, Page, query, anywhere=anywhere, timeout_s=self._timeout_s)
            except OperationFailed as failure:
                if failure.code is not Code.RETENTION_EXCEEDED or not left:
                    raise
                left -= 1


class _RowsRead(msgspec.Struct):
    rows: list[Row | None]
    commit: int


async def read_rows(
    connection: Connection, names: Sequence[tuple[str, str]], query: Mapping[str, str | int], timeout_s: float | None
) -> list[Row | None]:
    """Return rows, None for each that is absent, all as they were at one commit number."""
    path = ROWS + "?" + "&".join(f"{name}={value}" for name, value in query.items()) if query else ROWS
    try:
        body = {"rows": [{"table": name_of(table), "key": key_of(key)} for table, key in names]}
    except (TypeError, ValueError) as malformed:
        raise bad(f"rows are pairs of table and key: {malformed}") from malformed
    call = ReadCall("POST", path, _RowsRead, connection.headers, connection.deadline(timeout_s), body=body)
    found = await connection.perform(call)
    connection.saw(found.commit)
    return found.rows
