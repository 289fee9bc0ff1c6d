"""Deliberate duplicates: the same request ids once more, by hand, over plain HTTP, to another node.

Owns: the copy's request and the reading of its verdict. Must not know when a copy is due
(:mod:`examples.demo.ingest`). The requests are those of ``docs``' HTTP API as curl would send them; nothing of the SDK
is used, so that a fault of the SDK cannot hide one of the cluster.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import aiohttp

from examples.demo.dataset import Messages, key_of
from examples.demo.errors import CouldNotRun
from examples.demo.plan import When
from examples.demo.recording import Copied, Recording, Verdict

DEADLINE_S: Final = 20.0
"""How long a copy is tried on one node after the other, through an election."""
_ATTEMPT_S: Final = 3.0
_PAUSE_S: Final = 0.1
_RANGE_HEADERS: Final = {"Content-Type": "application/x-ndjson"}
_ELSEWHERE: Final = frozenset((421, 429, 502, 503, 504))


class CopyError(CouldNotRun):
    """A copy got no verdict at all, or one for other operations."""


class Original(NamedTuple):
    """What is copied: consecutive messages, and the request ids under which they were first sent."""

    client_id: str
    epoch: int
    first_incomplete: int
    sequence: int
    number: int
    length: int
    ranged: bool


class Copier:
    """Sends copies to nodes that do not lead.

    Args:
        http: connections of its own.
        endpoints: HTTP addresses of the nodes.
        messages: the payloads.
        recording: told of each verdict.
        seed: chooses the node.
        table: the stream table.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        endpoints: Sequence[str],
        messages: Messages,
        recording: Recording,
        *,
        seed: int,
        table: str,
    ) -> None:
        self._http = http
        self._endpoints = list(endpoints)
        self._messages = messages
        self._recording = recording
        self._dice = random.Random(seed)
        self._table = table
        self._leader: str | None = None

    async def send(self, original: Original, when: When) -> None:
        """Send one copy and record the verdict on each of its operations.

        Raises:
            CopyError: no node gave a verdict in time, or the verdicts are not those of the operations sent.
        """
        path, headers, body = self._request(original)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        while True:
            for endpoint in self._others():
                answer = await self._attempt(endpoint + path, headers, body)
                if answer is not None:
                    self._record(original, when, answer)
                    return
                self._recording.copies_lost += 1
            if loop.time() > deadline:
                raise CopyError(f"no node gave a verdict on a copy within {DEADLINE_S:.0f} s")
            await asyncio.sleep(_PAUSE_S)

    def _others(self) -> list[str]:
        """Return the nodes in random order, the one that was last seen leading at the end."""
        order = self._dice.sample(self._endpoints, len(self._endpoints))
        return sorted(order, key=lambda endpoint: endpoint == self._leader)

    def _request(self, original: Original) -> tuple[str, dict[str, str], bytes]:
        numbers = range(original.number, original.number + original.length)
        if original.ranged:
            lines = [_text({"key": key_of(number), "value": self._messages.value(number)}) for number in numbers]
            headers = {
                "Oncegate-Client": original.client_id,
                "Oncegate-Epoch": str(original.epoch),
                "Oncegate-First-Sequence": str(original.sequence),
                "Oncegate-First-Incomplete": str(original.first_incomplete),
                **_RANGE_HEADERS,
            }
            return f"/v1/tables/{self._table}/ranges", headers, "\n".join(lines).encode()
        operations = [
            {
                "sequence": original.sequence + number - original.number,
                "op": "put",
                "table": self._table,
                "key": key_of(number),
                "value": self._messages.value(number),
            }
            for number in numbers
        ]
        body = {
            "client_id": original.client_id,
            "epoch": original.epoch,
            "first_incomplete": original.first_incomplete,
            "operations": operations,
        }
        return "/v1/operations", {"Content-Type": "application/json"}, _text(body).encode()

    async def _attempt(self, url: str, headers: dict[str, str], body: bytes) -> dict[str, Any] | None:
        """Return the answer, or None where another node, or this one later, may do better."""
        timeout = aiohttp.ClientTimeout(total=_ATTEMPT_S)
        try:
            async with self._http.post(url, data=body, headers=headers, timeout=timeout) as response:
                payload = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        self._leader = response.headers.get("Oncegate-Leader", self._leader)
        if response.status in _ELSEWHERE:
            return None
        if response.status != 200:
            raise CopyError(f"a copy was answered {response.status}: {payload[:200].decode(errors='replace')}")
        answer: dict[str, Any] = json.loads(payload)
        waits = any(part["status"] == "rejected" and part.get("retryable") for part in answer["results"])
        return None if waits else answer

    def _record(self, original: Original, when: When, answer: dict[str, Any]) -> None:
        found = list(_verdicts(answer["results"], ranged=original.ranged))
        if [sequence for sequence, _, _ in found] != list(
            range(original.sequence, original.sequence + original.length)
        ):
            raise CopyError("the verdicts on a copy are not those of the operations sent")
        for sequence, verdict, commit in found:
            number = original.number + sequence - original.sequence
            self._recording.copied.append(Copied(number, when, original.ranged, verdict, commit))


def _verdicts(results: list[dict[str, Any]], *, ranged: bool) -> Iterator[tuple[int, Verdict, int | None]]:
    """Yield sequence number, verdict and commit number of each operation of an answer."""
    for part in results:
        first = part["first"] if ranged else part["sequence"]
        last = part["last"] if ranged else first
        for sequence in range(first, last + 1):
            if part["status"] == "applied":
                verdict = Verdict.REPLAYED if part.get("replayed") else Verdict.FIRST
                yield sequence, verdict, part["commit"] + sequence - first
            else:
                yield sequence, Verdict.STALE if part.get("code") == "STALE" else Verdict.UNEXPECTED, None


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
