"""A consumer's batches and its cursor (``client.consume``), with a cluster that the test plays."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from oncegate.gateway.client import consume
from oncegate.gateway.client.consume import Batch, Consumption


class Cluster:
    """Stands for connection and stream; ``told``: numbers of sealed batches as the stream tells them."""

    def __init__(self, cursor: int, told: list[int]) -> None:
        self.cursor, self.told = cursor, told
        self.ahead = 0
        """How far somebody with the same fence has moved the cursor meanwhile."""
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.read: list[int] = []
        self.paths: list[str] = []

    async def send(self, method: str, path: str, shape: type[Any], body: dict[str, Any], timeout_s: Any) -> Any:
        assert method == "POST"
        name = path.rpartition("/")[2]
        self.sent.append((name, body))
        if name == "attach":
            return msgspec.convert({"fence": 41, "cursor": self.cursor}, shape)
        self.cursor = max(self.cursor, body["batch"] + self.ahead)
        return msgspec.convert({"cursor": self.cursor}, shape)

    def stream(self, connection: Any, path: Callable[[], str], timeout_s: Any) -> Cluster:
        self.path = path
        return self

    async def events(self) -> AsyncGenerator[tuple[str, bytes], None]:
        for number in self.told:
            self.paths.append(self.path())
            yield "progress", b"{}"
            yield "sealed", msgspec.json.encode({"batch": number})
        self.paths.append(self.path())

    async def read_batch(self, connection: Any, flow: str, number: int, timeout_s: Any) -> list[Any]:
        self.read.append(number)
        return []

    @property
    def moved(self) -> list[int]:
        assert all(body["fence"] == 41 for name, body in self.sent if name == "cursor")
        return [body["batch"] for name, body in self.sent if name == "cursor"]


def consumes(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Consumption:
    monkeypatch.setattr(consume, "EventStream", cluster.stream)
    monkeypatch.setattr(consume, "read_batch", cluster.read_batch)
    return Consumption(cluster, "f", "c", None)


async def test_stream_is_opened_anew_behind_the_newest_batch_that_it_told_and_each_batch_comes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where another node tells an older one again."""
    cluster = Cluster(3, [5, 4, 5, 7, 6])
    batches = [batch.number async for batch in consumes(cluster, monkeypatch)]
    assert batches == cluster.read == cluster.moved == [4, 5, 6, 7]
    assert [path.rpartition("after=")[2] for path in cluster.paths] == ["3", "5", "5", "5", "7", "7"]


async def test_cursor_is_where_the_cluster_says_and_is_not_sent_again_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(3, [5])
    consumption, cursors = consumes(cluster, monkeypatch), list[int | None]()
    assert consumption.cursor is None
    async with aclosing(aiter(consumption)) as batches:
        async for batch in batches:
            cursors.append(consumption.cursor)
            cluster.ahead = 1
            await batch.done()
            await batch.done()
            assert consumption.cursor == 5
    assert cursors == [3, 5], "that of the first was ahead by one, which is told"
    assert cluster.moved == [4], "5 is where it is"


async def test_batch_whose_body_breaks_off_leaves_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(0, [2])
    async with aclosing(aiter(consumes(cluster, monkeypatch))) as batches:
        first: Batch = await anext(batches)
        assert (first.number, cluster.moved) == (1, [])
        assert (await anext(batches)).number == 2
    assert cluster.moved == [1]


async def test_each_instance_attaches_under_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second would be taken for the first, sent again, and both would have the fence."""
    cluster = Cluster(0, [])
    for _ in range(3):
        assert [batch async for batch in consumes(cluster, monkeypatch)] == []
    nonces = [body["nonce"] for name, body in cluster.sent if name == "attach"]
    assert len({*nonces}) == 3
