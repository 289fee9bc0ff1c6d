"""A connection that is refused, or whose node stops: what was under way is answered, and nothing more is begun.

A request that comes behind a refusal, or behind the last answer, was told that it is not applied, or is told nothing:
its sender sends it again elsewhere, so it must not be executed here.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from oncegate.gateway.http.hot.connection import Connection
from tests.gateway.test_hot_connection_model import Request, Transport, Walk

HOT = Request("/hot/a", "ann", "application/json", 1, b"abc", odd=False)
COLD = HOT._replace(target="/cold")


def walk(monkeypatch: pytest.MonkeyPatch) -> Walk:
    made = Walk(0, monkeypatch)
    monkeypatch.setattr(made.dice, "random", lambda: 0.9)  # requests are answered when the test says so
    return made


def arrive(connection: Connection, *requests: Request) -> None:
    data = b"".join(one.head + one.body for one in requests)
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


async def test_what_comes_on_a_connection_without_a_place_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under TLS, what came with the handshake is handed over once more after the connection was closed."""
    one, refused, transport = walk(monkeypatch), list[Any](), cast("Any", Transport())
    shared: Any = one.connection._shared
    monkeypatch.setattr(shared.places, "has_room", lambda: False)
    monkeypatch.setattr(shared, "refuse", refused.append)
    places = {*one.places}
    connection = Connection(shared)
    connection.connection_made(transport)
    assert refused == [transport]
    for request in (HOT, COLD, HOT._replace(odd=True)):
        arrive(connection, request)
        assert (one.begun, one.side, transport.written) == (0, None, [])
    connection.connection_lost(None)
    assert (one.places, one.bodies.waiting_bytes) == (places, 0)


@pytest.mark.parametrize("served", range(3))
async def test_connection_that_waits_for_a_request_ends_at_once_when_its_node_stops(
    served: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = walk(monkeypatch)
    for _ in range(served):
        arrive(one.connection, HOT)
        assert one.under_way is not None
        one.under_way.answer()
    assert one.connection.drain() is None
    assert one.transport.closed
    arrive(one.connection, HOT)
    assert one.begun == served


@pytest.mark.parametrize("behind", [0, 1])
async def test_hot_request_under_way_is_answered_before_its_connection_ends_and_the_next_is_not_begun(
    behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = walk(monkeypatch)
    arrive(one.connection, *[HOT] * (1 + behind))
    last = one.connection.drain()
    assert last is not None
    assert one.connection.drain() is last, "it is asked twice, of one end"
    assert (last.done(), one.transport.closed) == (False, False)
    request: Any = one.under_way
    request.answer()
    assert (one.transport.written, one.transport.closed, last.done()) == ([HOT.answer], True, True)
    arrive(one.connection, HOT)
    assert one.begun == 1


async def test_request_that_the_other_reader_serves_is_left_to_it_and_none_is_begun_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = walk(monkeypatch)
    arrive(one.connection, COLD)
    assert one.side is not None
    lent = one.side.unread
    assert one.connection.drain() is None
    assert not one.transport.closed, "whoever serves it ends the connection"
    arrive(one.connection, HOT)
    assert (one.begun, one.side.unread) == (0, lent)
    assert one.side.answers()
    assert one.transport.written == [COLD.answer]
