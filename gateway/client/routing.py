"""Which node to ask next. Pure: time comes in as a value.

Owns: the known endpoints, the leader, and the nodes that failed lately. Must not know HTTP or asyncio. Read next:
:mod:`oncegate.gateway.client.courier`, which acts on it.

| event | effect |
|---|---|
| answer | the node is well; the leader that it names is believed unless that leader is resting |
| refusal (421, 503) | the node rests briefly; the leader that it names is believed as above |
| no connection | the node rests, twice as long each time |
| no answer in time | the same, from a longer first rest: asking a frozen node again costs a whole attempt |

A resting node is asked only when all of them rest, the one that has rested longest first. While no leader is known, a
node whose rest is over gets no turn before one that has rested longer or not at all: pauses may be longer than rests,
and a node that refuses for minutes must not keep a client from nodes that serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from oncegate.rifl.errors import Code, OncegateError

REST_REFUSED_S: Final = 0.05
REST_UNREACHABLE_S: Final = 0.2
REST_SILENT_S: Final = 1.0
REST_MAX_S: Final = 5.0
ENDPOINTS_MAX: Final = 64
"""Configured and learned together; a leader beyond that is reached through the others."""


class Router:
    """Chooses endpoints.

    Args:
        endpoints: ``http://host:port`` each, at least one; order is the order of first attempts.
        prefer_leader: ask the leader when it is known; False takes all endpoints in turn.
    """

    __slots__ = ("_failures", "_rest_until", "_secure", "_turn", "endpoints", "leader", "prefer_leader")

    def __init__(self, endpoints: Sequence[str], *, prefer_leader: bool = True) -> None:
        known = dict.fromkeys(origin(endpoint) for endpoint in endpoints)
        if not 1 <= len(known) <= ENDPOINTS_MAX:
            raise OncegateError(Code.BAD_REQUEST, f"1 to {ENDPOINTS_MAX} endpoints are needed")
        self.endpoints = list(known)
        self.prefer_leader = prefer_leader
        self.leader: str | None = None
        self._turn = 0
        self._rest_until: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._secure = all(endpoint.startswith("https:") for endpoint in known)

    def pick(self, now: float, *, anywhere: bool = False) -> str:
        """Return the endpoint to ask now; ``anywhere`` spreads calls that any node can answer."""
        resting = self._rest_until
        if not self.prefer_leader or anywhere:
            self._turn += 1
            count = len(self.endpoints)
            for step in range(count):
                endpoint = self.endpoints[(self._turn + step) % count]
                if resting.get(endpoint, 0.0) <= now:
                    self._turn = (self._turn + step) % count
                    return endpoint
        else:
            leader = self.leader
            if leader is not None and (not resting or resting.get(leader, 0.0) <= now):
                return leader
        return min(self.endpoints, key=lambda endpoint: resting.get(endpoint, 0.0))

    def answered(self, endpoint: str, leader: str | None, now: float) -> None:
        """Note a useful answer and the leader that it names."""
        if self._failures or self._rest_until:
            self._failures.pop(endpoint, None)
            self._rest_until.pop(endpoint, None)
        if leader is not None and leader != self.leader:
            self._believe(leader, now)

    def refused(self, endpoint: str, leader: str | None, now: float) -> None:
        """Note that the node cannot serve now, and the leader that it names."""
        self._rest(endpoint, now + REST_REFUSED_S)
        if leader is not None:
            self._believe(leader, now)

    def unreachable(self, endpoint: str, now: float, *, silent: bool = False) -> None:
        """Note that no connection was made, or with ``silent`` that no answer came in time."""
        failures = self._failures.get(endpoint, 0)
        self._failures[endpoint] = failures + 1
        first = REST_SILENT_S if silent else REST_UNREACHABLE_S
        self._rest(endpoint, now + min(REST_MAX_S, first * 2 ** min(failures, 10)))

    def rested(self, now: float) -> bool:
        """Whether some endpoint can be asked without waiting."""
        return any(self._rest_until.get(endpoint, 0.0) <= now for endpoint in self.endpoints)

    def _rest(self, endpoint: str, until: float) -> None:
        self._rest_until[endpoint] = until
        if self.leader == endpoint:
            self.leader = None

    def _believe(self, leader: str, now: float) -> None:
        try:
            leader = origin(leader)
        except OncegateError:
            return
        if self._secure and not leader.startswith("https:"):
            return  # tokens and writes must not be sent unencrypted because a node names an http address
        if self._rest_until.get(leader, 0.0) > now:
            # A follower names the dead leader until the election; asking it again would only cost time.
            return
        if leader not in self.endpoints:
            if len(self.endpoints) >= ENDPOINTS_MAX:
                return
            self.endpoints.append(leader)
        self.leader = leader


def origin(url: str) -> str:
    """Return ``scheme://host:port`` of an endpoint's address.

    Raises:
        OncegateError: BAD_REQUEST when it is not an http or https address.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as malformed:
        raise OncegateError(Code.BAD_REQUEST, "an endpoint is http://host:port") from malformed
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise OncegateError(Code.BAD_REQUEST, "an endpoint is http://host:port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" if port is None else f"{parts.scheme}://{host}:{port}"
