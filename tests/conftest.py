"""Fixtures that several packages share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.gateway.http.server import running
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.settings import Settings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of Spark first: they take longest, and a long file that begins last has the machine to itself."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three real node processes, ready."""
    with LocalCluster(tmp_path / "cluster") as started:
        started.start()
        started.wait_ready()
        yield started


class Api:
    """HTTP against one node: status, headers and decoded body in one call."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def call(self, method: str, path: str, body: Any = None, **how: Any) -> tuple[int, Any, Any]:
        """Send ``body`` as JSON, or ``data=`` raw; return (status, headers, JSON or text)."""
        if body is not None:
            how["json"] = body
        async with self._http.request(method, path, **how) as answer:
            kind = answer.content_type
            decoded = await answer.json(content_type=None) if kind.endswith("json") else await answer.read()
            return answer.status, answer.headers, decoded

    async def session(self, nonce: str = "nonce-1", **options: Any) -> str:
        """Open a session and return its client id."""
        status, _, opened = await self.call("POST", "/v1/sessions", {"nonce": nonce, **options})
        assert status in (200, 201), opened
        client_id: str = opened["client_id"]
        return client_id

    async def operate(
        self, client_id: str, *operations: dict[str, Any], first_incomplete: int = 1, epoch: int = 1
    ) -> Any:
        """Send operations and return their results."""
        body = {
            "client_id": client_id,
            "epoch": epoch,
            "first_incomplete": first_incomplete,
            "operations": list(operations),
        }
        status, _, answer = await self.call("POST", "/v1/operations", body)
        assert status == 200, answer
        return answer["results"]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """A durable cluster of one in this process, behind its real HTTP server."""
    http_port, peer_port = free_ports(2)
    settings = Settings(members=[f"n1=127.0.0.1:{http_port}:{peer_port}"], data_dir=tmp_path / "n1")
    async with running(settings), aiohttp.ClientSession(base_url=f"http://127.0.0.1:{http_port}") as http:
        yield Api(http)


@asynccontextmanager
async def each_node(cluster: LocalCluster) -> AsyncIterator[dict[str, Api]]:
    """Talk to every node by its id, on connections of its own."""
    async with AsyncExitStack() as stack:
        yield {
            node_id: Api(await stack.enter_async_context(aiohttp.ClientSession(base_url=cluster.endpoint(node_id))))
            for node_id in cluster.ids
        }
