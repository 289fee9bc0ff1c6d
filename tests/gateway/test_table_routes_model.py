"""Pages of rows and of tables against plain filters of a dictionary, at a node that is behind its log.

Whatever is asked for, pages put together are all that the query names and nothing else, in its order; those that go on
by ``page`` are of one commit number, whatever is written between them.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from oncegate.gateway.http.identity import ANONYMOUS
from oncegate.gateway.http.routes import tables
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_commands import DeclareFlow
from oncegate.gateway.machine.tables import QUOTA_BYTES_DEFAULT, QUOTA_BYTES_MAX
from oncegate.gateway.node import scans
from oncegate.rifl.errors import Code
from tests.gateway.lagging_node import LaggingNode, refusal, told
from tests.gateway.test_flow_routes import MINE, ordered

KEYS = ["a", "aa", "ab", "abc", "b", "ba", "bb", "c"]
TEXTS = ["", "", *KEYS, "aba", "d"]
operate: Any = c.Operate
op_of: Any = c.Op
write_of: Any = c.Op


class Rows:
    """A table that clients write; ``at``: its rows as they were at each commit number."""

    def __init__(self, seed: int) -> None:
        self.dice, self.node = random.Random(seed), LaggingNode()
        self.node.commit(c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", 3_600_000, 4_000))
        self.node.commit(c.DeclareTable("s", "stream", 1 << 20), c.DeclareTable("u", "resident", 1 << 20))
        self.node.catch_up()
        self.end, self.there = [0], set[tuple[str, str]]()
        """By commit number, the last of what took effect together with it; and the rows of all tables."""
        self.sequence, self.now, self.at = 0, dict[str, tuple[int, int]](), [dict[str, tuple[int, int]]()]

    def write(self) -> None:
        """Put or delete a row of this table, or of another one, or two of them in a transaction."""
        self.sequence += 1
        keys, is_put = self.dice.sample(KEYS, self.dice.choice((1, 1, 1, 2))), self.dice.random() < 0.7
        table = "t" if self.dice.random() < 0.8 else "u"
        kind, value = int(c.OpKind.PUT if is_put else c.OpKind.DELETE), b"%d" % self.sequence if is_put else None
        writes = [write_of(self.sequence, kind, table, key, self.sequence, value) for key in keys]
        made: Any = (
            writes[0] if len(keys) == 1 else c.Transaction(writes[0].sequence, writes[0].fingerprint, [], writes)
        )
        self.node.commit(operate(1, 1, 1, [made]))
        first = len(self.at)
        changes = is_put or any((table, key) in self.there for key in keys)
        places = {(table, key) for key in keys}
        self.there = self.there | places if is_put else self.there - places
        for at, key in enumerate(keys, first):
            if table == "t":
                self.now.pop(key, None)
            if table == "t" and is_put:
                self.now[key] = self.sequence, at
        last = first + len(keys) - 1
        self.end += [last] * len(keys) if changes else range(first, last + 1)
        self.at += [{**self.now}] * len(keys)

    @property
    def newest(self) -> int:
        return len(self.at) - 1

    async def look(self) -> None:
        dice = self.dice
        asked = {name: dice.choice(TEXTS) for name in ("prefix", "from", "to", "after")}
        reverse, limit = dice.random() < 0.5, dice.choice((1, 2, 3, 100))
        old = dice.random() < 0.4
        commit = dice.choice((self.newest, self.newest, dice.randint(max(0, self.newest - 20), self.newest)))
        more = {"reverse": str(reverse).lower(), **({"commit": commit} if old else {})}
        query = "&".join(f"{name}={value}" for name, value in {**asked, **more, "limit": limit}.items() if value != "")
        rows = self.at[commit if old else self.newest]

        def is_asked_for(key: str) -> bool:
            low, high, after = asked["from"], asked["to"], asked["after"]
            inside = key.startswith(asked["prefix"]) and key >= low and (not high or key < high)
            return inside and (not after or (key < after if reverse else key > after))

        expected = [(key, *rows[key]) for key in sorted(rows, reverse=reverse) if is_asked_for(key)]
        found, commit = [], self.end[commit] if old else self.newest
        while True:
            shown = (await told(tables.page, self.node, query=query, table="t")).body
            assert shown["commit"] == commit
            assert len(shown["rows"]) <= limit
            assert all(row["commit"] == commit for row in shown["rows"])
            found += [(row["key"], row["value"], row["version"]) for row in shown["rows"]]
            assert (shown["next"] is None) == (shown["page"] is None or not shown["rows"])
            if shown["page"] is None:
                break
            assert shown["next"] == (found[-1][0] if shown["rows"] else None)
            if dice.random() < 0.5:
                self.write()
            query = f"page={shown['page']}&limit={limit}"
        assert found == expected

    async def read(self) -> None:
        keys = self.dice.choices([*KEYS, "none"], k=self.dice.randint(0, 6))
        sent = {"rows": [{"table": "t", "key": key} for key in keys]}
        shown = (await told(tables.read, self.node, sent)).body
        assert shown["commit"] == self.newest
        found = [row and (row["key"], row["value"], row["version"]) for row in shown["rows"]]
        assert found == [(key, *self.now[key]) if key in self.now else None for key in keys]


@pytest.mark.parametrize("seed", range(4))
async def test_pages_of_rows_are_what_the_query_names_at_one_commit_number(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(scans, "UNDONE_MAX", 2)
    rows = Rows(seed)
    for _ in range(150):
        for _ in range(rows.dice.choice((0, 1, 3))):
            rows.write()
        await rows.look()
        await rows.read()


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_page_of_a_table_that_is_dropped_meanwhile_has_no_row_of_the_next_one(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "SLICE_CHANGES", 2)
    rows = Rows(1)
    for _ in range(20):
        rows.write()
    rows.node.catch_up()
    asked = asyncio.create_task(told(tables.page, rows.node, query="commit=3", table="t"))
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    assert not asked.done(), "it takes changes back, some in each turn"
    rows.node.commit(c.DropTable("t", 1, True), c.SweepTables(), c.DeclareTable("t", "resident", 1 << 20))
    op = op_of(99, int(c.OpKind.PUT), "t", "new", 1, b"1")
    rows.node.commit(operate(1, 1, 1, [op]))
    rows.node.catch_up()
    assert (await asked).body["code"] == "RETENTION_EXCEEDED"


async def test_queries_that_cannot_be_or_name_what_is_no_more_are_refused() -> None:
    rows = Rows(1)
    while rows.newest < 10:
        rows.write()
    page = (await told(tables.page, rows.node, query="limit=1", table="t")).body["page"]
    said = ("prefix=a", "from=a", "to=b", "after=a", "reverse=true", "commit=1")
    for query, code in (
        ("limit=0", Code.BAD_REQUEST), ("reverse=yes", Code.BAD_REQUEST), ("commit=-1", Code.BAD_REQUEST),
        *((f"page={page}&{more}", Code.BAD_REQUEST) for more in said),
        ("page=x", Code.BAD_REQUEST),
    ):  # fmt: skip
        assert (await refusal(tables.page, rows.node, query=query, table="t")).code is code, query
    for table, code in (("none", Code.NOT_FOUND), ("s", Code.BAD_REQUEST)):
        assert (await refusal(tables.page, rows.node, table=table)).code is code
        one = {"rows": [{"table": table, "key": "a"}]}
        assert (await refusal(tables.read, rows.node, one)).code is code
    rows.node.commit(c.DropTable("t", 1, True), c.SweepTables(), c.DeclareTable("t", "resident", 1 << 20))
    rows.node.catch_up()
    shown = await told(tables.page, rows.node, query=f"commit={rows.newest - 1}", table="t")
    assert (shown.body["code"], shown.body["first_commit"]) == ("RETENTION_EXCEEDED", rows.newest)
    assert (await told(tables.page, rows.node, query=f"commit={rows.newest}", table="t")).body["rows"] == []


async def test_rows_that_are_read_together_are_bounded_and_within_the_token() -> None:
    node = LaggingNode()
    node.commit(c.DeclareTable("a.t", "resident", 1 << 26), c.DeclareTable("b", "resident", 1 << 20))
    node.commit(c.OpenSession("n", 3_600_000, 4_000))
    value = b'"%s"' % (b"x" * (2**18 - 2))
    ops = [op_of(at, int(c.OpKind.PUT), "a.t", f"k{at}", at, value) for at in range(1, 18)]
    node.commit(operate(1, 1, 1, ops))

    def rows(count: int, table: str = "a.t") -> dict[str, Any]:
        return {"rows": [{"table": table, "key": f"k{at}"} for at in range(1, count + 1)]}

    assert len((await told(tables.read, node, rows(16), identity=MINE)).body["rows"]) == 16, "4 MiB"
    assert (await refusal(tables.read, node, rows(17))).code is Code.PAYLOAD_TOO_LARGE
    assert len((await told(tables.read, node, rows(256, "b"))).body["rows"]) == 256
    assert (await refusal(tables.read, node, rows(257, "b"))).code is Code.PAYLOAD_TOO_LARGE
    assert (await refusal(tables.read, node, rows(1, "b"), identity=MINE)).code is Code.FORBIDDEN
    for row in ({"table": "no name", "key": "a"}, {"table": "b", "key": ""}):
        assert (await refusal(tables.read, node, {"rows": [row]})).code is Code.BAD_REQUEST


@pytest.mark.parametrize("seed", range(3))
async def test_tables_are_listed_as_the_log_has_them_by_name_and_kind_within_the_token(seed: int) -> None:
    dice, node = random.Random(seed), LaggingNode()
    there: dict[str, str] = {}
    for at in range(60):
        name, kind = f"{dice.choice('ab')}.{dice.choice('xyz')}{at}", dice.choice(("resident", "stream"))
        there[name] = kind
        node.commit(c.DeclareTable(name, kind, 1_024 + at))
        if at % 2:
            shown = (await told(tables.describe, node, table=name)).body
            assert (shown["kind"], shown["quota_bytes"], shown["incarnation"]) == (kind, 1_024 + at, at + 1)
        asked = {"prefix": dice.choice(("", "a", "b.x")), "kind": dice.choice(("", "resident", "stream"))}
        limit, who = dice.choice((1, 3, 100)), dice.choice((ANONYMOUS, MINE))
        found, after = list[Any](), dice.choice(("", "a.y", "b"))
        begin = after
        while True:
            query = "&".join(f"{part}={value}" for part, value in {**asked, "after": after}.items() if value)
            shown = (await told(tables.list_all, node, query=f"{query}&limit={limit}", identity=who)).body
            found += [(one["name"], one["kind"]) for one in shown["tables"]]
            assert shown["tables"] or after == begin, "something follows wherever a page says so"
            assert len(shown["tables"]) <= limit
            if shown["next"] is None:
                break
            assert len(shown["tables"]) == limit
            after = shown["next"]
        expected = [
            (one, of)
            for one, of in sorted(there.items())
            if one > begin and one.startswith(asked["prefix"]) and asked["kind"] in ("", of)
            and (who is ANONYMOUS or one.startswith("a."))
        ]  # fmt: skip
        assert found == expected
    assert (await refusal(tables.list_all, node, query="kind=any")).code is Code.BAD_REQUEST
    node.commit(c.DeclareTable("late", "resident", 1_024))
    assert (await refusal(tables.describe, node, query="consistency=stale", table="late")).code is Code.NOT_FOUND


FLOW: dict[str, Any] = {"linger_ms": 7}
DECLARED: list[tuple[dict[str, Any], Any]] = [
    ({"kind": "resident"}, c.DeclareTable("t", "resident", QUOTA_BYTES_DEFAULT)),
    ({"kind": "stream"}, c.DeclareTable("t", "stream", QUOTA_BYTES_DEFAULT)),
    *(({"kind": "resident", "quota_bytes": n}, c.DeclareTable("t", "resident", n)) for n in (1_024, QUOTA_BYTES_MAX)),
    *(({"kind": "resident", "quota_bytes": n}, Code.BAD_REQUEST) for n in (0, 1_023, QUOTA_BYTES_MAX + 1)),
    ({"kind": "resident", "flow": FLOW}, Code.BAD_REQUEST),
    ({"kind": "stream", "flow": {"linger_ms": -1}}, Code.BAD_REQUEST),
    ({"kind": "other"}, Code.BAD_REQUEST),
]


async def test_tables_are_declared_and_dropped_as_path_query_and_body_say() -> None:
    for body, expected in DECLARED:
        assert await ordered(tables.declare, body, table="t") == expected, body
    for flow in (dict(FLOW), {"retention_bytes": 9}):
        command = await ordered(tables.declare, {"kind": "stream", "quota_bytes": 2_000, "flow": flow}, table="t")
        assert type(command) is c.DeclareTable
        assert (command.name, command.kind, command.quota_bytes) == ("t", "stream", 2_000)
        name, own = flow.popitem()
        declared = DeclareFlow(command.flow).declaration
        assert b'"name":"t","source":"t"' in declared
        assert f'"{name}":{own}'.encode() in declared
    for query, dropped in (
        ("incarnation=3", c.DropTable("t", 3, False)), ("incarnation=3&force=true", c.DropTable("t", 3, True)),
        ("incarnation=3&force=false", c.DropTable("t", 3, False)), ("force=true", Code.BAD_REQUEST),
        ("incarnation=0", Code.BAD_REQUEST), ("incarnation=3&force=yes", Code.BAD_REQUEST),
    ):  # fmt: skip
        assert await ordered(tables.drop, query=query, table="t") == dropped
    for handler in (tables.declare, tables.drop, tables.describe, tables.page):
        assert await ordered(handler, {"kind": "stream"}, query="incarnation=1", table="no name") is Code.BAD_REQUEST
