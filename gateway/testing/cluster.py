"""The fake gateway in a thread of its own: for tests that have no event loop, or must not share theirs.

Owns: the thread, and calls into it. What the gateway does: :mod:`oncegate.gateway.testing.nodes`. The pytest fixture
``oncegate_cluster`` (:mod:`oncegate.gateway.pytest_plugin`) is one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from oncegate.gateway.client.sync_crossing import LoopThread
from oncegate.gateway.machine.tables import TableKind
from oncegate.gateway.testing.nodes import FakeGateway
from oncegate.gateway.testing.state import Applied


class FakeCluster:
    """Nodes with one state on a fake clock; use as ``with``.

    Cluster time stands still: leases end when :meth:`advance` says so, never because a test is slow.

    Args:
        nodes: how many; the first leads.
    """

    def __init__(self, nodes: int = 3) -> None:
        self._count = nodes
        self._thread: LoopThread
        self.gateway: FakeGateway
        """All of it, for what has no method here. It lives in the other thread: look, and leave changes to methods."""

    def __enter__(self) -> Self:
        self._thread = LoopThread("oncegate-fake")
        self.gateway = FakeGateway(nodes=self._count)
        self._thread.run(self.gateway.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.run(self.gateway.__aexit__(None, None, None))
        finally:
            self._thread.stop()

    @property
    def endpoints(self) -> list[str]:
        """Addresses of all nodes."""
        return self.gateway.endpoints

    @property
    def executed(self) -> list[Applied]:
        """Every execution so far, in order: a write that was applied twice stands there twice."""
        return list(self.gateway.executed)

    def declare(self, table: str, kind: TableKind = "resident") -> None:
        """Declare a table, as :meth:`oncegate.gateway.client.Client.declare_table` would."""
        self._do(lambda: self.gateway.declare(table, kind))

    def value(self, table: str, key: str) -> Any:
        """Return a row's value; raises NOT_FOUND without one."""
        return self._thread.run(self.gateway.value(table, key))

    def advance(self, seconds: float) -> None:
        """Move the cluster's clock on; what is due ends: leases that nothing renewed, batches that are old enough."""
        self._do(lambda: self.gateway.advance(seconds))

    def stop(self, node: int = 0) -> None:
        """Stop a node: connections are cut and refused. The next one that runs leads."""
        gateway = self.gateway
        self._thread.run(gateway.nodes[node].stop())
        self._do(lambda: gateway.lead(next((other for other in gateway.nodes if other.running), None)))

    def start(self, node: int = 0) -> None:
        """Start a stopped node on the port it had."""
        self._thread.run(self.gateway.nodes[node].start())
        if self.gateway.leader is None:
            self._do(lambda: self.gateway.lead(self.gateway.nodes[node]))

    def freeze(self, node: int = 0) -> None:
        """Let a node take requests and answer none."""
        self._do(self.gateway.nodes[node].freeze)

    def thaw(self, node: int = 0) -> None:
        """Let a frozen node answer again, beginning with what has arrived."""
        self._do(self.gateway.nodes[node].thaw)

    def lose_answers(self, count: int = 1, node: int = 0) -> None:
        """Apply the next ``count`` requests that write and cut the connection instead of answering them."""
        self._do(lambda: self.gateway.nodes[node].lose_answers(count))

    def _do(self, what: Callable[[], object]) -> None:
        async def done() -> None:
            what()

        self._thread.run(done())
