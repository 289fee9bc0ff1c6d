"""A node whose state lags behind its log, and requests that the gate has admitted: for handlers of routes alone.

The machine is the real one. What is ordered is decided where the log is whole; this node applies it when a command's
answer or a read that waits asks for it. So a handler that answers without waiting tells an old state.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
from multidict import CIMultiDict, MultiDict

from oncegate.gateway import wire
from oncegate.gateway.answers import answer, flow_state
from oncegate.gateway.http import negotiation
from oncegate.gateway.http.identity import ANONYMOUS, Identity
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.node.change_history import ChangeHistory
from oncegate.rifl.errors import OncegateError


class LaggingNode:
    """One node; ``behind`` holds the entries that are committed and not applied here."""

    def __init__(self, **settings: Any) -> None:
        self.machine = Machine()
        self.settings = SimpleNamespace(
            **{"sessions_max": 100, "tenant_sessions_max": 100, "idempotency_key_ms": 60_000, **settings}
        )
        self.behind: list[bytes] = []
        self.ordered: list[tuple[Any, int]] = []
        """Commands that went through the log, and the sizes that they were said to have."""
        self.index = itertools.count(1)
        self.leader_http = "http://leader:1"
        self.reads = SimpleNamespace(reach=self.reach, age_ms=lambda: 7)
        self.consumers = SimpleNamespace(state=lambda name: flow_state(self.machine, name))
        self.watching = SimpleNamespace(history=ChangeHistory(1_000, 1 << 20))
        self.live_check = None

    def commit(self, *commands: Any, after_ms: int = 0) -> None:
        """Order commands elsewhere: this node has them in its log and has not applied them."""
        self.behind.append(c.encode_entry(self.newest_ms + after_ms, list(commands)))

    @property
    def newest_ms(self) -> int:
        return c.decode_entry(self.behind[-1]).time_ms if self.behind else self.machine.time_ms

    def _apply(self, entry: bytes) -> list[Any]:
        results = apply(self.machine, next(self.index), 1, entry)
        self.watching.history.record(self.machine.changes, self.machine.commit, self.machine.joined)
        return results

    def catch_up(self) -> None:
        """Apply all that is committed."""
        while self.behind:
            self._apply(self.behind.pop(0))

    async def reach(self, consistency: str, min_commit: int, timeout_s: float | None = None) -> None:
        """Catch up as far as a read at this level has to."""
        await asyncio.sleep(0)
        if consistency == "linearizable":
            self.catch_up()
        while self.behind and self.machine.commit < min_commit:
            self._apply(self.behind.pop(0))

    async def submit(self, command: Any, size: int) -> Any:
        """Order a command, and return its answer; raises what the machine refuses."""
        self.ordered.append((command, size))
        await asyncio.sleep(0)
        self.catch_up()
        [result] = self._apply(c.encode_entry(self.newest_ms, [command]))
        return answer(c.decode_entry(c.encode_entry(0, [command])).commands[0], result, self.machine)

    def attempt(self, command: Any, size: int, waiter: Any, then: Callable[[], None] | None = None) -> None:
        """Order operations; who waits is told later."""

        async def order() -> None:
            try:
                waiter.set_result(await self.submit(command, size))
            except OncegateError as refusal:
                waiter.set_exception(refusal)

        self.under_way = asyncio.get_running_loop().create_task(order())


class Asked(dict[Any, Any]):
    """A request that the gate has admitted, with a body that came with its head."""

    def __init__(
        self, node: LaggingNode, body: Any = None, *, identity: Identity = ANONYMOUS, query: str = "",
        headers: Mapping[str, str] | None = None, kind: str = wire.JSON, **path: str,
    ) -> None:  # fmt: skip
        super().__init__()
        self.body = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.headers, self.content_type = CIMultiDict(headers or {}), kind
        self.content_length, self.match_info = len(self.body), path
        named = [part.partition("=") for part in query.split("&") if part]
        self.query: MultiDict[str] = MultiDict([(name, value) for name, _, value in named])
        self.content = SimpleNamespace(is_eof=lambda: True)
        self.transport: Any = None
        self.charged: list[int] = []
        self.app: Any = {negotiation.NODE: node, negotiation.RUNNING: set()}
        self[negotiation.IDENTITY] = identity
        self[negotiation.USAGE] = SimpleNamespace(charge=self.charged.append, requests=1)
        self[negotiation.BODY_BYTES_MAX] = 2**22

    async def read(self) -> bytes:
        return self.body


class Told:
    """What a handler has answered: status, headers, and the body as it was decoded."""

    def __init__(self, response: Any) -> None:
        self.status, self.headers = response.status, response.headers
        packed = response.content_type == wire.MSGPACK
        self.body: Any = (msgspec.msgpack if packed else msgspec.json).decode(response.body) if response.body else None


async def told(handler: Any, node: LaggingNode, body: Any = None, **how: Any) -> Told:
    """Call a handler, and return what it answers; raises what it refuses with."""
    return Told(await handler(Asked(node, body, **how)))


async def refusal(handler: Any, node: LaggingNode, body: Any = None, **how: Any) -> OncegateError:
    """Call a handler that refuses, and return its refusal."""
    try:
        answered = await handler(Asked(node, body, **how))
    except OncegateError as refused:
        return refused
    raise AssertionError(f"it answered {answered.status}: {answered.body}")
