"""The checkers see what they are for, and the proxies do what their names say."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oncegate.consensus.messages import PROTOCOL_VERSION_MIN, Hello
from oncegate.consensus.net.wire import encode_frame
from oncegate.proof.check.links import Links
from tests.faults.harness.history import Acknowledged, History, ReadDone, Violation, check


def dump(*placed: tuple[int, int], salt: str = "") -> dict[str, Any]:
    """What a node holds that has applied commands at positions."""
    return {
        "applied_index": max(position for _, position in placed),
        "digest": hashlib.blake2b(repr((placed, salt)).encode()).hexdigest(),
        "ids": array("Q", [one for one, _ in placed]).tobytes(),
        "indexes": array("Q", [position for _, position in placed]).tobytes(),
    }


def seen(**more: Any) -> History:
    """Commands 1 and 2 were acknowledged at positions 5 and 6, at times 10 and 20."""
    return History(
        acknowledged=[Acknowledged(9, 10, 5, 1, 1), Acknowledged(19, 20, 6, 2, 1)],
        **{"issued": 3, **more},
    )


GOOD = dump((1, 5), (2, 6))


@pytest.mark.parametrize(
    "history",
    [
        seen(),
        seen(refused=[range(3, 4)]),
        seen(unknown=[range(3, 4)]),
        seen(reads=[ReadDone(21, 22, 6, "n1"), ReadDone(11, 22, 5, "n2"), ReadDone(1, 2, 0, "n3")]),
    ],
)
def test_checker_accepts_good_histories(history: History) -> None:
    check(history, {"n1": GOOD, "n2": GOOD, "n3": GOOD})


@pytest.mark.parametrize(
    ("history", "state", "message"),
    [
        (seen(), dump((1, 5)), "command 2 was acknowledged at 6"),
        (seen(), dump((1, 6), (2, 6)), "command 1 was acknowledged at 5"),
        (seen(), dump((1, 5), (2, 6), (1, 7)), "applied twice"),
        (seen(refused=[range(3, 4)]), dump((1, 5), (2, 6), (3, 7)), "command 3 was refused"),
        (seen(), dump((1, 5), (2, 6), (4, 7)), "nobody sent"),
        (seen(reads=[ReadDone(11, 12, 4, "n2")]), GOOD, "n2 answered a read with 4"),
        (seen(reads=[ReadDone(21, 22, 5, "n2")]), GOOD, "n2 answered a read with 5"),
    ],
)
def test_checker_rejects_bad_histories(history: History, state: dict[str, Any], message: str) -> None:
    with pytest.raises(Violation, match=message):
        check(history, {"n1": state, "n2": state})


def test_checker_rejects_nodes_that_differ() -> None:
    with pytest.raises(Violation, match="differ"):
        check(seen(), {"n1": GOOD, "n2": dump((1, 5), (2, 6), salt="other")})


HELLO = encode_frame(Hello(PROTOCOL_VERSION_MIN, "cluster", "b", "", "a", b"", 1, [], PROTOCOL_VERSION_MIN))
"""The frame by which a proxy knows who dials."""


class Echo:
    """``a`` listens and answers what it hears; ``b`` dials it through the links."""

    def __init__(self) -> None:
        self.heard = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (data := await reader.read(1000)) not in (b"", b"bye"):
            self.heard += data
            writer.write(data)
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, Links, asyncio.StreamReader, asyncio.StreamWriter]]:
    served = Echo()
    async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as server:
        listening = {"a": server.sockets[0].getsockname(), "b": ("127.0.0.1", 1)}
        with Links(listening) as links:
            reader, writer = await asyncio.open_connection("127.0.0.1", links.port("a"))
            writer.write(HELLO)
            assert await reader.readexactly(len(HELLO)) == HELLO
            served.heard = b""
            writer.write(b"first")
            assert await reader.readexactly(5) == b"first"
            yield served, links, reader, writer
            writer.close()


async def nothing_comes(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await reader.read(1)


async def test_held_way_delivers_late_and_in_order(echo: Any) -> None:
    served, links, reader, writer = echo
    links.cut([("b", "a")], how="hold")
    writer.write(b"second")
    await nothing_comes(reader)
    assert served.heard == b"first"
    links.heal()
    assert await reader.readexactly(6) == b"second"


async def test_one_way_is_cut_and_the_other_passes(echo: Any) -> None:
    served, links, reader, writer = echo
    links.cut([("a", "b")], how="hold")
    writer.write(b"second")
    await nothing_comes(reader)
    assert served.heard == b"firstsecond"


async def test_losing_way_keeps_the_connection_until_it_is_healed_then_resets_it(echo: Any) -> None:
    served, links, reader, writer = echo
    links.cut([("b", "a")], how="lose")
    writer.write(b"second")
    await nothing_comes(reader)
    links.heal()
    with pytest.raises(ConnectionError):
        await reader.read(1)
    assert served.heard == b"first"


async def test_end_of_a_connection_does_not_pass_a_cut_way(echo: Any) -> None:
    _, links, reader, writer = echo
    links.cut([("a", "b")], how="hold")
    writer.write(b"bye")
    await nothing_comes(reader)
    links.heal()
    with pytest.raises(ConnectionError):
        await reader.readexactly(1)


async def test_reset_ends_connections_and_new_ones_are_made(echo: Any) -> None:
    _, links, reader, writer = echo
    address = writer.get_extra_info("peername")
    links.reset()
    with pytest.raises(ConnectionError):
        await reader.read(1)
    again_reader, again_writer = await asyncio.open_connection(*address)
    again_writer.write(HELLO + b"again")
    assert await again_reader.readexactly(len(HELLO) + 5) == HELLO + b"again"
    again_writer.close()


async def test_slow_way_is_slow(echo: Any) -> None:
    _, links, reader, writer = echo
    links.slow(delay_s=0.1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    writer.write(b"second")
    assert await reader.readexactly(6) == b"second"
    assert loop.time() - began >= 0.2
