"""What a fake node does to the requests of a test, and what the test expects of an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from oncegate import Code, OncegateError, OperationFailed, Outcome
from oncegate.gateway import wire
from oncegate.testing import FakeNode

OPERATIONS = "/v1/operations"
RANGES = "/v1/tables/events/ranges"

Answer = web.StreamResponse | None


def intercept(node: FakeNode, path: str, answer: Callable[[web.Request], Awaitable[Answer]]) -> None:
    """Let ``answer`` see each request to ``path`` before it is served; None from it lets the node serve."""

    async def before(request: web.Request) -> Answer:
        return await answer(request) if request.path == path else None

    node.before = before


def packed(body: Any) -> web.Response:
    return web.Response(body=msgspec.msgpack.encode(body), content_type=wire.MSGPACK)


def results(*verdicts: Any) -> web.Response:
    """An answer with these verdicts on operations, or parts of a range."""
    return packed({"results": verdicts, "memory_ms": 5})


def rejected(sequence: int, code: str, outcome: str = "not_applied", *, later: bool = False) -> wire.OperationResult:
    """The verdict of a node that does not apply an operation, for now or for good."""
    return wire.OperationResult(sequence, "rejected", code=code, outcome=outcome, retryable=later)


def cut(request: web.Request) -> None:
    """Close the connection; what the request asked for is done or not, and nobody is answered."""
    assert request.transport is not None
    request.transport.close()


async def keep_back(request: web.Request) -> Answer:
    """Keep operations on their way, or their answers, for as long as the test runs."""
    if request.path == OPERATIONS:
        await asyncio.Event().wait()
    return None


async def lose_answers(request: web.Request) -> None:
    """Apply operations and never answer."""
    await keep_back(request)


async def arrived(node: FakeNode, path: str = OPERATIONS, count: int = 1) -> None:
    """Wait until ``count`` POSTs have come in."""
    while node.requests[f"POST {path}"] < count:
        await asyncio.sleep(0)


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


@contextmanager
def fails(
    code: Code | None = None, outcome: Outcome | None = None, *, kind: type[OncegateError] = OperationFailed
) -> Iterator[None]:
    """Expect an error of this kind, and of this code and outcome where they are given."""
    with pytest.raises(kind) as caught:
        yield
    assert code in (None, caught.value.code)
    assert outcome in (None, caught.value.outcome)
