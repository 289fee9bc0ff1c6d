"""Rows that are read by their names (``client.scan``): what is asked, what is noted of the answer, what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from oncegate import Code
from oncegate.gateway.client.connection import Connection
from oncegate.gateway.client.scan import read_rows
from tests.client.answers import fails

ROW = {"key": "a", "value": 1, "version": 3, "commit": 9}


class Link:
    """A connection that answers with a row and an absent one, at commit number 9."""

    def __init__(self) -> None:
        self.headers = {"Authorization": "x"}
        self.calls: list[Any] = []
        self.highest_commit = 7

    saw = Connection.saw

    def deadline(self, timeout_s: float | None) -> float:
        return 100.0 + (0.0 if timeout_s is None else timeout_s)

    async def perform(self, call: Any) -> Any:
        self.calls.append(call)
        assert self.highest_commit == 7, "nothing is noted before the answer"
        return call.accept(200, {}, msgspec.json.encode({"rows": [ROW, None], "commit": 9}))


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ({}, "/v1/rows"),
        ({"consistency": "session", "min_commit": 7}, "/v1/rows?consistency=session&min_commit=7"),
    ],
)
async def test_rows_are_asked_for_in_one_question_and_their_commit_number_is_kept_for_later_reads(
    query: dict[str, str | int], path: str
) -> None:
    link: Any = Link()
    first, second = await read_rows(link, [("t", "a"), ("u", "b")], query, 5.0)
    assert first is not None
    assert (first.key, first.value, first.version, second) == ("a", 1, 3, None)
    assert link.highest_commit == 9
    (call,) = link.calls
    assert (call.method, call.path, call.deadline, call.changes) == ("POST", path, 105.0, False)
    assert msgspec.json.decode(call.body) == {"rows": [{"table": "t", "key": "a"}, {"table": "u", "key": "b"}]}
    assert call.headers["Authorization"] == "x"


@pytest.mark.parametrize("names", [[("t",)], [("t", "a", "b")], ["abc"], [7], 7, [("t", "")], [("", "k")], [("t", 7)]])
def test_what_is_no_pair_of_table_and_key_is_refused_and_nothing_is_asked(names: Any) -> None:
    link: Any = Link()
    with fails(Code.BAD_REQUEST):
        asyncio.run(read_rows(link, names, {}, None))
    assert not link.calls
