"""Which node to ask next, and when to try again. Pure, except for random jitter: time comes in as a value.

Owns: the known endpoints, the leader, the nodes that failed lately; and the pauses between attempts (exponential
backoff with full jitter, one deadline, a budget) as tenacity's ``wait`` and ``stop``. Must not know HTTP or asyncio.
Read next: :mod:`oncegate.gateway.client.courier`, which acts on it.

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

import random
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from tenacity import RetryCallState

from oncegate.gateway.client.settings import Tuning
from oncegate.rifl.errors import Code, OncegateError

REST_REFUSED_S: Final = 0.05
REST_UNREACHABLE_S: Final = 0.2
REST_SILENT_S: Final = 1.0
REST_MAX_S: Final = 5.0
ENDPOINTS_MAX: Final = 64
"""Configured and learned together; a leader beyond that is reached through the others."""
_RETRY: Final = 10
"""Successes that pay for a retry; whole numbers, since ten floats of a tenth are less than one."""
LAST_ATTEMPT_S = 0.005
"""Too short for another attempt: with less left before the deadline, the call ends."""


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


class AttemptFailed(Exception):
    """One attempt that may be made again; never leaves the SDK.

    Attributes:
        code: the refusal, or TIMEOUT where no answer came.
        ambiguous: whether the attempt may have been applied nevertheless.
        retry_after_ms: what the node asked for.
        elsewhere: whether another node is likely to succeed at once.
        too_late: whether no node takes it before the deadline: it is to come back after that.
    """

    def __init__(
        self, code: Code, detail: str, *, ambiguous: bool, retry_after_ms: int | None = None, elsewhere: bool = False
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.ambiguous = ambiguous
        self.retry_after_ms = retry_after_ms
        self.elsewhere = elsewhere
        self.too_late = False


class RetryBudget:
    """A bucket of retries, shared by all calls of a client: a success puts a tenth back."""

    __slots__ = ("_size", "_tenths")

    def __init__(self, size: int) -> None:
        self._size = size * _RETRY
        self._tenths = self._size

    def spend(self) -> bool:
        """Take one retry; False when there is none."""
        if self._tenths < _RETRY:
            return False
        self._tenths -= _RETRY
        return True

    def refill(self) -> None:
        """Note a success."""
        if self._tenths < self._size:
            self._tenths += 1


class RetryPolicy:
    """The ``wait`` and ``stop`` of one call, which ends at ``deadline()`` on ``clock``, in seconds.

    The deadline may come nearer while the call lasts. ``budget`` is shared with the client's other calls; ``moves_max``
    is how many times in a row another node is asked without a pause.
    """

    __slots__ = ("_bound_s", "_budget", "_clock", "_deadline", "_moves", "_moves_max", "_tuning")

    def __init__(
        self,
        tuning: Tuning,
        budget: RetryBudget,
        deadline: Callable[[], float],
        clock: Callable[[], float],
        moves_max: int,
    ) -> None:
        self._tuning = tuning
        self._budget = budget
        self._deadline = deadline
        self._clock = clock
        self._moves_max = moves_max
        self._moves = 0
        self._bound_s = min(tuning.backoff_first_s, tuning.backoff_cap_s)

    def pause_s(self, failure: AttemptFailed) -> float:
        """Return the pause before the next attempt; called once a failure."""
        tuning, remaining = self._tuning, self._deadline() - self._clock()
        if not self._budget.spend():
            return self._within(tuning.backoff_cap_s, remaining)
        if failure.elsewhere and self._moves < self._moves_max:
            self._moves += 1
            return 0.0
        self._moves = 0
        # Moving to another node does not make the pauses longer.
        pause = random.uniform(0, self._bound_s)
        self._bound_s = min(2 * self._bound_s, tuning.backoff_cap_s)
        if failure.retry_after_ms is not None:
            # A node may ask for more than the jitter, up to a bound. The jitter is added to it: callers that were
            # refused together must not return together.
            pause += min(failure.retry_after_ms / 1000, tuning.retry_after_cap_s)
        return self._within(pause, remaining)

    def over(self, pause_s: float) -> bool:
        """Whether no time is left for another attempt after such a pause."""
        return self._clock() + pause_s + LAST_ATTEMPT_S >= self._deadline()

    def in_vain(self, failure: AttemptFailed) -> bool:
        """Tell, and note in it, whether a refusal says to come back after the deadline: nothing is left to wait for.

        That of a node which another may stand in for, or which may serve any moment (421, 503), never does.
        """
        if failure.retry_after_ms is not None and not failure.elsewhere:
            failure.too_late = self._clock() + failure.retry_after_ms / 1000 >= self._deadline()
        return failure.too_late

    def wait(self, state: RetryCallState) -> float:
        """Be tenacity's ``wait``."""
        failure = state.outcome.exception() if state.outcome is not None else None
        return self.pause_s(failure) if isinstance(failure, AttemptFailed) else 0.0

    def stop(self, state: RetryCallState) -> bool:
        """Be tenacity's ``stop``."""
        failure = state.outcome.exception() if state.outcome is not None else None
        return self.over(state.upcoming_sleep) or (isinstance(failure, AttemptFailed) and self.in_vain(failure))

    @staticmethod
    def _within(pause: float, remaining: float) -> float:
        # Sleep only half of the time that is left before the deadline: one more attempt may succeed.
        return pause if pause < remaining / 2 else max(0.0, remaining / 2)
