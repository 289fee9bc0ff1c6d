"""Whatever went over a connection before, a request on it is judged as it is alone on a fresh one.

Tokens and tables take turns, allowed and refused, on hot routes and others, after runs of requests that are alike, and
several at a time. What each token may do is a table of a few lines.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from oncegate.gateway.http.hot.framing import MISSES_MIN
from tests.gateway.http_contract import one_node, operations, put, serving
from tests.gateway.test_auth import ADMIN, as_, entry, written

TABLES = ("orders", "payments", "carts")
MAY: dict[str, dict[str, frozenset[str]]] = {
    ADMIN: {"read": frozenset(TABLES), "write": frozenset(TABLES)},
    "t-orders": {"read": frozenset(TABLES), "write": frozenset({"orders"})},
    "t-narrow": {"read": frozenset({"orders"}), "write": frozenset({"orders", "carts"})},
    "t-reader": {"read": frozenset({"payments"}), "write": frozenset()},
}
FILE = (
    entry(ADMIN, "ann", "read", "write", "flows", "admin")
    + entry("t-orders", "ann", "read", "write:orders")
    + entry("t-narrow", "ann", "read:orders", "write:orders", "write:carts")
    + entry("t-reader", "ann", "read:payments")
)
TOKENS = (*MAY, "t-nobody", "")
"""The last two: a token that nobody gave out, and none."""
SHAPES = ("put", "increment", "delete", "get", "stale get", "operations", "transaction", "scan", "many rows")


class Asked(NamedTuple):
    """One request: what it does, for whom, on which tables."""

    shape: str
    token: str
    tables: tuple[str, ...]

    @property
    def judged(self) -> str:
        """What the table above says of it."""
        if self.token not in MAY:
            return "401"
        what = "read" if self.shape in ("get", "stale get", "scan", "many rows") else "write"
        return "served" if set(self.tables) <= MAY[self.token][what] else "403"

    def sent(self, number: int, client_id: str) -> bytes:
        """Return its bytes; ``number`` makes it a request that nobody has sent before."""
        first, lines, body = self.tables[0], [f'Idempotency-Key: "k{number}"'], b""
        row = f"/v1/tables/{first}/rows/a"
        start = {
            "put": f"PUT {row}",
            "increment": f"POST /v1/tables/{first}/rows/n/increment",
            "delete": f"DELETE {row}",
            "get": f"GET {row}",
            "stale get": f"GET {row}?consistency=stale",
            "scan": f"GET /v1/tables/{first}/rows",
            "operations": "POST /v1/operations",
            "transaction": "POST /v1/transactions",
            "many rows": "POST /v1/rows",
        }[self.shape]
        writes = [put(number, "a", number, table=table) for table in self.tables]
        if self.shape == "operations":
            for at, write in enumerate(writes):
                write["sequence"] = number + at
            lines, body = [], json.dumps(operations(client_id, *writes, first_incomplete=number)).encode()
        elif self.shape == "transaction":
            unnumbered = [{name: write[name] for name in write if name != "sequence"} for write in writes]
            body = json.dumps({"writes": unnumbered}).encode()
        elif self.shape == "many rows":
            lines, body = [], json.dumps({"rows": [{"table": table, "key": "a"} for table in self.tables]}).encode()
        elif self.shape == "put":
            body = b"%d" % number
        elif start.startswith("GET"):
            lines = []
        if self.token:
            lines.append(f"Authorization: Bearer {self.token}")
        head = [start + " HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines]
        return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


def _drawn(dice: random.Random) -> Asked:
    shape = dice.choice(SHAPES)
    many = dice.randint(1, 3) if shape in ("operations", "transaction", "many rows") else 1
    return Asked(shape, dice.choice(TOKENS), tuple(dice.choices(TABLES, k=many)))


def requests_of(seed: int) -> list[Asked]:
    """Return runs of requests that are alike, so that their head is known, and behind each some that differ a bit."""
    dice, found = random.Random(seed), list[Asked]()
    while len(found) < 90:
        one = _drawn(dice)
        found += [one] * dice.choice((1, 1, MISSES_MIN, MISSES_MIN + 2))
        for _ in range(dice.randint(1, 4)):
            what = dice.randrange(3)
            if what == 0:
                found.append(one._replace(tables=tuple(dice.choices(TABLES, k=len(one.tables)))))
            elif what == 1:
                found.append(one._replace(token=dice.choice(TOKENS)))
            else:
                found.append(one)
    return found


class Connection:
    """One connection to a node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> str:
        """Return how the next answer judges its request."""
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            body = await self.reader.readexactly(length)
        status = head.split(b" ", 2)[1].decode()
        if status in ("401", "403"):
            return status
        assert status in ("200", "404"), (head, body)
        return "served"


class Shop:
    """A node with tokens."""

    def __init__(self, port: int, client_id: str) -> None:
        self.port, self.client_id, self.number = port, client_id, 1

    async def connected(self) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port))

    def sent(self, one: Asked) -> bytes:
        self.number += len(one.tables)
        return one.sent(self.number - len(one.tables), self.client_id)

    async def on_one_connection(self, asked: list[Asked], dice: random.Random) -> list[str]:
        """Send them over one connection, some before the answers to those before."""
        connection, found, at = await self.connected(), list[str](), 0
        while at < len(asked):
            together = dice.choice((1, 1, 1, 3))
            some = asked[at : at + together]
            connection.writer.write(b"".join(self.sent(one) for one in some))
            found += [await connection.answer() for _ in some]
            at += len(some)
        connection.writer.close()
        return found

    async def each_on_its_own(self, asked: list[Asked]) -> list[str]:
        found = []
        for one in asked:
            connection = await self.connected()
            connection.writer.write(self.sent(one))
            found.append(await connection.answer())
            connection.writer.close()
        return found


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    settings = one_node(tmp_path, tokens_file=written(tmp_path / "tokens.toml", FILE))
    async with serving(settings) as (api, _):
        for table in TABLES:
            await as_(api, ADMIN, "PUT", f"/v1/tables/{table}", {"kind": "resident"})
        opened = await as_(api, ADMIN, "POST", "/v1/sessions", {"nonce": "n", "window": 4096})
        yield Shop(settings.address.http_port, opened[2]["client_id"])


async def test_requests_on_one_connection_are_judged_as_each_alone_on_a_fresh_one(shop: Shop) -> None:
    for seed in range(6):
        asked = requests_of(seed)
        wanted = [one.judged for one in asked]
        together = await shop.on_one_connection(asked, random.Random(seed))
        assert [pair for pair in zip(asked, together, strict=True) if pair[0].judged != pair[1]] == []
        if seed == 0:
            assert await shop.each_on_its_own(asked) == wanted
            assert {"401", "403", "served"} == set(wanted)
