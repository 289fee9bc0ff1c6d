"""Connections that came in and whose peers have not proved themselves: how many, and who goes first. Pure.

Everybody may connect, so the places are bounded, in all and for each address. Nobody is turned away at the door, since
that would let whoever came first keep the members out: the newcomer takes the place of another one. Those go first
whose address is no member's, then those whose handshake has made no step for longest. Not those that have said nothing
yet: a flood of connections that say something would push out each newcomer before its first word is read. What
strangers do is told in the log at a bounded rate (:class:`Complaints`). Read next:
:mod:`oncegate.consensus.net.listening`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Container
from typing import Final, Generic, TypeVar

PLACES: Final = 128
PLACES_OF_ADDRESS: Final = 32
_IPV6_NETWORK_BITS: Final = 64
"""A single host is given as many IPv6 addresses as these leave: they count as one."""
COMPLAINT_S: Final = 10.0
_TEXT_MAX: Final = 200
_SUBJECTS_MAX: Final = 64


S = TypeVar("S")


class Strangers(Generic[S]):
    """Who holds the places."""

    def __init__(self, places: int = PLACES, places_of_address: int = PLACES_OF_ADDRESS) -> None:
        self._places = places
        self._places_of_address = places_of_address
        self._held: dict[S, str] = {}
        """The address of each; whose handshake has made no step for longest comes first."""

    def __len__(self) -> int:
        return len(self._held)

    def enter(self, stranger: S, host: str, members: Container[str]) -> S | None:
        """Take a place; returns who has lost its own by that and is to be closed.

        ``members`` are addresses of members as :func:`address_of` writes them.
        """
        address = address_of(host)
        of_address = [one for one, at in self._held.items() if at == address]
        rivals = of_address if len(of_address) >= self._places_of_address else list(self._held)
        loser = None
        if rivals and (rivals is of_address or len(rivals) >= self._places):
            # The first of equals: dictionaries keep their order.
            loser = min(rivals, key=lambda one: self._held[one] in members)
            del self._held[loser]
        self._held[stranger] = address
        return loser

    def stepped(self, stranger: S) -> None:
        """Its handshake went on by a step."""
        address = self._held.pop(stranger, None)
        if address is not None:
            self._held[stranger] = address

    def leave(self, stranger: S) -> None:
        """Give the place back, if it is still held."""
        self._held.pop(stranger, None)


def address_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, a /64 network of IPv6; a name as it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))


class Complaints:
    """What is wrong with connections, as lines for the log: one at once, then at most one in ten seconds a subject."""

    def __init__(self) -> None:
        self._subjects: dict[str, tuple[float, int]] = {}

    def line(self, subject: str, text: str, now_s: float) -> str | None:
        """Return the line, or None for one that is counted only.

        ``text`` may be a stranger's: what does not print is escaped, and what is long is cut.
        """
        next_s, left_out = self._subjects.get(subject, (now_s, 0))
        if now_s < next_s:
            self._subjects[subject] = next_s, left_out + 1
            return None
        if subject not in self._subjects and len(self._subjects) >= _SUBJECTS_MAX:
            self._subjects.clear()
        self._subjects[subject] = now_s + COMPLAINT_S, 0
        more = f" ({left_out} more before it)" if left_out else ""
        return f"{subject}: {printable(text)}{more}"


def printable(text: str) -> str:
    """Return ``text`` as one line of at most a few hundred printable ASCII characters."""
    escaped = text[:_TEXT_MAX].encode("unicode_escape").decode("ascii")
    return escaped if len(text) <= _TEXT_MAX else f"{escaped}…"
