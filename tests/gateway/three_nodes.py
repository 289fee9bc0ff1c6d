"""Three nodes in this process, each with its sockets and files: what one of them does to itself can be looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from tests.conftest import Api

NAMES = ("n1", "n2", "n3")


class Three:
    """Three nodes in this process."""

    def __init__(self, settings: dict[str, Settings], http: aiohttp.ClientSession) -> None:
        self.settings = settings
        self.http = http
        self.nodes: dict[str, Node] = {}
        self._stacks: dict[str, AsyncExitStack] = {}

    async def start(self, name: str) -> None:
        self._stacks[name] = AsyncExitStack()
        self.nodes[name] = await self._stacks[name].enter_async_context(running(self.settings[name]))

    async def stop(self, name: str) -> None:
        del self.nodes[name]
        await self._stacks.pop(name).aclose()

    def url(self, name: str) -> str:
        return self.settings[name].address.http

    async def get(self, name: str, path: str) -> tuple[int, Any, Any]:
        return await Api(self.http).call("GET", self.url(name) + path)

    async def leader(self) -> str:
        async with asyncio.timeout(20):
            while True:
                for name, node in self.nodes.items():
                    if node.leadership.leads:
                        return name
                await asyncio.sleep(0.01)

    async def until_state(self, name: str, **expected: Any) -> Any:
        async with asyncio.timeout(20):
            while True:
                _, _, state = await self.get(name, "/v1/cluster")
                if all(state[key] == value for key, value in expected.items()):
                    return state
                await asyncio.sleep(0.02)


@asynccontextmanager
async def three(directory: Path, hosts: Sequence[str] = ("127.0.0.1",) * 3, **given: Any) -> AsyncIterator[Three]:
    ports = free_ports(6)
    members = [f"{name}={hosts[at]}:{ports[2 * at]}:{ports[2 * at + 1]}" for at, name in enumerate(NAMES)]
    settings = {name: Settings(node=name, members=members, data_dir=directory / name, **given) for name in NAMES}
    async with aiohttp.ClientSession() as http:
        cluster = Three(settings, http)
        try:
            for name in NAMES:
                await cluster.start(name)
            await cluster.leader()
            yield cluster
        finally:
            for name in list(cluster.nodes):
                await cluster.stop(name)
