"""A session whose attempts the workload decides: which id, at which node, how often, with which acknowledgement.

Owns: sequence numbers, first incomplete, and the verdict of one request over all of its attempts. The SDK hides all
of this; here it is the subject. Contract: docs/API.md, *Operations*.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from random import Random
from typing import Any, Final, Literal, NamedTuple

from oncegate.gateway.client.paths import OPERATIONS, SESSIONS, resolve_path, session_path
from oncegate.proof.check.node_requests import ATTEMPT_S, REFUSED_ALONE, AttemptReply, Nodes

OPERATION_S: Final = 3.0
"""How long a request is tried before its outcome counts as unknown."""

OPEN_S: Final = 10.0
PAUSE_S: Final = 0.05
OVER: Final = frozenset({"FENCED", "SESSION_EXPIRED"})


class RequestVerdict(NamedTuple):
    """What is known of a request.

    Attributes:
        kind: ``applied``; ``refused``: a condition failed, recorded; ``failed``: it was not applied and never will be
            by any attempt so far; ``unknown``.
        result: the operation's result where it was applied or refused.
        code: why not.
        node: who answered last.
        retryable: whether another attempt may end otherwise.
    """

    kind: Literal["applied", "refused", "failed", "unknown"]
    result: Mapping[str, Any]
    code: str
    node: str
    retryable: bool

    @property
    def answered(self) -> bool:
        """Whether the operation has a recorded result."""
        return self.kind in ("applied", "refused")


def verdict_of(reply: AttemptReply, node: str) -> RequestVerdict:
    """Return what one attempt that carried one operation says about that attempt."""
    if not reply.done:
        alone = reply.code in REFUSED_ALONE
        kind: Literal["failed", "unknown"] = "unknown" if reply.doubt and not alone else "failed"
        return RequestVerdict(kind, {}, reply.code, node, reply.retryable)
    try:
        result = reply.body["results"][0]
        status = result["status"]
    except (KeyError, IndexError, TypeError):
        return RequestVerdict("unknown", {}, "malformed answer", node, retryable=True)
    if status in ("applied", "refused"):
        return RequestVerdict(status, result, str(result.get("code", "")), node, retryable=False)
    code = str(result.get("code", "rejected"))
    doubt = result.get("outcome") != "not_applied" and code not in REFUSED_ALONE
    return RequestVerdict("unknown" if doubt else "failed", {}, code, node, bool(result.get("retryable")))


class DirectSession:
    """One session, used by one worker; see :func:`open_session`.

    Attributes:
        client_id: as written.
        epoch: with which it sends.
        pending: sequence numbers that are not acknowledged.
        over: whether it was fenced or has expired.
    """

    def __init__(self, nodes: Nodes, random: Random, client_id: str, epoch: int, first: int = 1) -> None:
        self.nodes = nodes
        self.client_id = client_id
        self.epoch = epoch
        self.pending: set[int] = set()
        self.over = False
        self._random = random
        self._next = first

    @property
    def first_incomplete(self) -> int:
        """Smallest sequence number that is not acknowledged."""
        return min(self.pending, default=self._next)

    def take(self) -> int:
        """Return a new sequence number, not acknowledged until :meth:`acknowledge`."""
        sequence = self._next
        self._next += 1
        self.pending.add(sequence)
        return sequence

    def acknowledge(self, sequence: int) -> None:
        """Say with the next request that the result of this one is not needed any more."""
        self.pending.discard(sequence)

    def request(self, sequence: int) -> str:
        """Return the request id as written."""
        return f"{self.client_id}/{sequence}"

    async def attempt(
        self, node: str, sequence: int, operation: Mapping[str, Any], *, timeout_s: float = ATTEMPT_S
    ) -> RequestVerdict:
        """Send a request once to one node."""
        body = {
            "client_id": self.client_id,
            "epoch": self.epoch,
            "first_incomplete": min(self.first_incomplete, sequence),
            "operations": [{"sequence": sequence, **operation}],
        }
        reply = await self.nodes.call(node, "POST", OPERATIONS, body, timeout_s=timeout_s)
        verdict = verdict_of(reply, node)
        self.over = self.over or verdict.code in OVER
        return verdict

    async def perform(
        self,
        sequence: int,
        operation: Mapping[str, Any],
        *,
        operation_s: float = OPERATION_S,
        doubt: bool = False,
    ) -> RequestVerdict:
        """Send a request to one node after another until it has a verdict or time is up.

        Args:
            sequence: from :meth:`take`.
            operation: without its sequence number; the same in every attempt.
            operation_s: total time.
            doubt: whether an earlier attempt may have been applied.
        """
        ends = time.monotonic() + operation_s
        while True:
            node = self._random.choice(self.nodes.ids)
            verdict = await self.attempt(node, sequence, operation)
            if verdict.answered:
                return verdict
            doubt = doubt or verdict.kind == "unknown"
            if not verdict.retryable or time.monotonic() >= ends:
                return verdict._replace(kind="unknown" if doubt else "failed")
            await asyncio.sleep(self._random.uniform(0, PAUSE_S))

    async def resolve(self, node: str, sequence: int) -> AttemptReply:
        """Ask one node once to end the doubt about a request."""
        return await self.nodes.call(node, "POST", resolve_path(self.client_id, sequence))

    async def close(self) -> None:
        """Say goodbye, once: its lease ends by itself otherwise."""
        path = f"{session_path(self.client_id)}?epoch={self.epoch}"
        await self.nodes.call(self.nodes.ids[0], "DELETE", path)


async def open_session(
    nodes: Nodes, random: Random, *, lease_ms: int = 60_000, open_s: float = OPEN_S
) -> DirectSession | None:
    """Open a session, the same nonce at one node after another; None if nobody answers in time."""
    body = {"nonce": f"{random.getrandbits(128):032x}", "lease_ms": lease_ms}
    ends = time.monotonic() + open_s
    while time.monotonic() < ends:
        reply = await nodes.call(random.choice(nodes.ids), "POST", SESSIONS, body)
        if reply.done:
            return DirectSession(nodes, random, str(reply.body["client_id"]), int(reply.body["epoch"]))
        await asyncio.sleep(random.uniform(0, PAUSE_S))
    return None
