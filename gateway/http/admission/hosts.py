"""Which names a node answers to, and which pages may change something: the checks against browsers of other sites.

Owns: the rule about ``Host`` and ``Origin``. Pure. A page of another site may point its own name at this node's address
(DNS rebinding): its browser then takes the node for the page's own server, and sends and reads whatever the page asks
for. ``Host`` still carries the page's name, so a node without tokens answers to names that it knows only. An address is
no name, and ``localhost`` never leaves the machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

ANY: Final = "*"
_CACHED_MAX: Final = 256


class AllowedHosts:
    """The names that a node answers to.

    Args:
        names: hosts without port; ``.example.org`` stands for every name below it, ``*`` for any.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = {name.lower().rstrip(".") for name in names}
        self._all = ANY in known
        self._names = known | {"localhost"}
        self._suffixes = tuple(name for name in known if name.startswith("."))
        self.serves = lru_cache(_CACHED_MAX)(self._serves)
        """Tell whether a ``Host`` header names this node."""

    def _serves(self, host: str) -> bool:
        if self._all:
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._names or name.endswith((".localhost", *self._suffixes)) or _is_address(name)


def is_own_origin(origin: str, host: str) -> bool:
    """Tell whether a page comes from where its request goes to; its scheme may end at a proxy before this node."""
    scheme, _, authority = origin.lower().partition("://")
    return scheme in ("http", "https") and authority == host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
