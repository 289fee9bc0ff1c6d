"""What the connections of a node share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from oncegate.gateway.http.admission.connections import Guard
from oncegate.gateway.http.hot.request import Aside, HotRoutes

if TYPE_CHECKING:
    from oncegate.gateway.http.hot.connection import AiohttpSide

READ_BYTES: Final = 256 * 1024
STALLED_AT_ONCE: Final = 32
"""Connections that are handed to aiohttp in one turn of the loop: each costs 10 to 25 µs."""


class Stalled(Protocol):
    """A connection whose request has not arrived whole."""

    def hand_over(self) -> None:
        """Leave it to aiohttp, if it has still not arrived."""


class Shared:
    """The places, the hot routes and the memory for reads of all connections.

    Args:
        places: of all connections.
        aside: for what takes long.
        other_side: makes aiohttp's half of a connection.
        refuse: answers a connection for which there is no place, and closes it.
        routes: the hot ones; None: aiohttp serves everything.
    """

    def __init__(
        self,
        places: Guard,
        aside: Aside,
        other_side: Callable[[], AiohttpSide],
        refuse: Callable[[asyncio.Transport], None],
        routes: HotRoutes | None,
    ) -> None:
        self.places = places
        self.aside = aside
        self.other_side = other_side
        self.refuse = refuse
        self.routes = routes
        self.loop = asyncio.get_running_loop()
        self.read_into = memoryview(bytearray(READ_BYTES))
        """One for all: what a read brings is taken out before the next one."""
        self._stalled: dict[Stalled, None] = {}

    def hand_over_soon(self, connection: Stalled) -> None:
        """Hand a connection over, a few in each turn: any stranger can let all of them stall at once."""
        if not self._stalled:
            self.loop.call_soon(self._hand_over)
        self._stalled[connection] = None

    def _hand_over(self) -> None:
        for connection in list(islice(self._stalled, STALLED_AT_ONCE)):
            del self._stalled[connection]
            connection.hand_over()
        if self._stalled:
            self.loop.call_soon(self._hand_over)
