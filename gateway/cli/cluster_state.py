"""What a node tells of its cluster, looked at before a command uses it, and which of the members it names are asked.

Owns: the form of ``/v1/cluster`` that commands rely on, and that no token leaves TLS: whoever named an https endpoint
asks no member by http because a node names such an address. The SDK's router has the same rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from oncegate.gateway.local.blocking_http import NotAsked, Unreachable, send_json

MEMBERS_MAX: Final = 1_000
"""No cluster has as many; each that a node names is asked."""
_NODE_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
_TEXTS: Final = ("role", "version")
_NUMBERS: Final = ("term", "commit", "commit_index", "applied_index")
_NUMBER_MAX: Final = 2**64 - 1


class OddAnswer(Unreachable):
    """What answered is no node, or not as a node does; the text says what of the answer is odd."""


def state_of(address: str, timeout_s: float) -> dict[str, Any]:
    """Ask a node for its cluster; raises as ``send_json``, and OddAnswer as :func:`whole`."""
    return whole(send_json("GET", f"{address}/v1/cluster", None, timeout_s))


def whole(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``/v1/cluster`` if it holds all that commands show; raises OddAnswer."""
    found = naming(told)
    for name in _TEXTS:
        if not isinstance(found.get(name), str):
            raise _odd(f"{name} is no text")
    for name in _NUMBERS:
        number = found.get(name)
        if type(number) is not int or not 0 <= number <= _NUMBER_MAX:
            raise _odd(f"{name} is no number of 64 bits")
    if not isinstance(found.get("leader"), str | None):
        raise _odd("leader is no text")
    return found


def naming(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``/v1/cluster`` if it names the node and the members, each with an address; raises OddAnswer."""
    if not isinstance(told.get("node"), str):
        raise _odd("node is no text")
    members = told.get("members")
    if not isinstance(members, list) or not 0 < len(members) <= MEMBERS_MAX:
        raise _odd("members is no list of members")
    for one in members:
        if not isinstance(one, dict) or not isinstance(one.get("http"), str):
            raise _odd("a member has no address")
        if not isinstance(one.get("id"), str) or not _NODE_ID.fullmatch(one["id"]):
            raise _odd("a member has no id")
    return dict(told)


def unasked(endpoint: str, address: str) -> str | None:
    """Say in a word or two why a member is not asked at an address that a node named; None if it is.

    Args:
        endpoint: what the user named.
        address: what the node at it, or another one, named.
    """
    if not address.startswith(("http://", "https://")):
        return "no address"
    if endpoint.startswith("https:") and not address.startswith("https:"):
        return "no https"
    return None


def followed(endpoint: str, address: str) -> str:
    """Return an address that a node named, if it is to be asked; raises NotAsked as :func:`unasked`."""
    reason = unasked(endpoint, address)
    if reason is not None:
        raise NotAsked(f"{address} is not asked: {reason}")
    return address


def _odd(what: str) -> OddAnswer:
    return OddAnswer(f"what answers is no node: {what}")
