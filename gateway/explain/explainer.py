"""Asks the log, the state and every member what they know of one key or request.

Owns: the search's pace (slices of the log between which the event loop serves others, one search at a time) and the
question to the other nodes. Decides nothing: :mod:`oncegate.gateway.explain.timeline` owns words and order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.replica.replica import Replica
from oncegate.gateway.answers import request_state
from oncegate.gateway.explain.memory import Attempt, AttemptLog, VerdictLog
from oncegate.gateway.explain.search import Mention, Moved, OfKey, OfRequest, Search, Wanted
from oncegate.gateway.explain.timeline import Explained, Timeline
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import ClusterClock
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import RequestId

EXPLAIN: Final = b"e"
SLICE_BYTES: Final = 256 * 1024
MENTIONS_MAX: Final = 400
"""Attempts in the log that are shown, the newest."""
MOVES_MAX: Final = 20_000
SEQUENCES_MAX: Final = 1_000
PEER_S: Final = 1.0


class Question(msgspec.Struct, frozen=True, array_like=True):
    """What one node asks another: attempts at these operations, by client id."""

    requests: dict[int, list[int]]


class ExplainReply(msgspec.Struct, frozen=True, array_like=True):
    """``cluster_ms`` is cluster time at ``unix_ms``, -1 at a node that does not lead."""

    attempts: list[Attempt]
    unix_ms: int
    cluster_ms: int


_encode = msgspec.msgpack.Encoder().encode
_question = msgspec.msgpack.Decoder(Question)
_reply = msgspec.msgpack.Decoder(ExplainReply)


class Explainer:
    """One a node; event loop's thread."""

    def __init__(
        self,
        replica: Replica,
        machine: Machine,
        clock: ClusterClock,
        node_id: str,
        leads: Callable[[], bool],
        others: Callable[[], Iterable[str]],
    ) -> None:
        self.attempts = AttemptLog()
        self.verdicts = VerdictLog()
        self._replica = replica
        self._machine = machine
        self._clock = clock
        self._node_id = node_id
        self._leads = leads
        self._others = others
        self._busy = False

    async def explain(self, wanted: Wanted, may_see: Callable[[str], bool]) -> Explained:
        """Return the timeline of a row or a request; ``may_see`` tells which flows the asker may know of, by name.

        Raises:
            OncegateError: OVERLOADED while another search is under way, NOT_FOUND for a table that is not declared,
                FORBIDDEN for a request of another tenant.
        """
        if isinstance(wanted, OfKey) and wanted.table not in self._machine.tables:
            raise OncegateError(Code.NOT_FOUND, f"no table {wanted.table}")
        if isinstance(wanted, OfRequest):
            self._machine.check_tenant(wanted.client_id, wanted.tenant)
        if self._busy:
            raise OncegateError(Code.OVERLOADED, "another search of the log is under way", retry_after_ms=500)
        self._busy = True
        try:
            mentions, moves, log_from, cut = await self._search(wanted)
        finally:
            self._busy = False
        requests = frozenset(one.request_id for one in mentions if one.sequence)
        if isinstance(wanted, OfRequest) and wanted.client_id in self._machine.trackers:
            # Also attempts that never reached the log; only the log tells the owner of other ids.
            requests |= {RequestId(wanted.client_id, wanted.sequence)}  # type: ignore[arg-type]
        question = _asked(requests)
        replies, silent = await self._ask(question)
        # Unix time less cluster time, as a node that leads tells it.
        leading = (reply.unix_ms - reply.cluster_ms for reply in replies.values() if reply.cluster_ms >= 0)
        timeline = Timeline(next(leading, None))
        for node_id, reply in replies.items():
            timeline.add_attempts(node_id, reply.attempts, requests)
        timeline.add_mentions(mentions)
        timeline.add_delivery(self._machine.flows, mentions, moves, may_see)
        events, more = timeline.events()
        answer = Explained(log_from=log_from, truncated=cut or more, silent=silent, events=events)
        if isinstance(wanted, OfRequest):
            state = request_state(self._machine, wanted.client_id, wanted.sequence, wanted.tenant)
            request = RequestId(wanted.client_id, wanted.sequence)  # type: ignore[arg-type]
            return msgspec.structs.replace(answer, request=str(request), state=state)
        table = self._machine.tables.get(wanted.table)
        row = table.rows.get(wanted.key) if table is not None and table.kind == "resident" else None
        version = 0 if row is None else row.version
        return msgspec.structs.replace(answer, table=wanted.table, key=wanted.key, version=version)

    def serve(self, payload: bytes) -> bytes:
        """Answer another node's question."""
        return _encode(self._reply(_question.decode(payload)))

    def _reply(self, question: Question) -> ExplainReply:
        found: list[Attempt] = []
        for client_id, sequences in question.requests.items():
            found += self.attempts.of(client_id, frozenset(sequences))
        cluster_ms = self._clock.stamp_ms(time.monotonic()) if self._leads() else -1
        return ExplainReply(found, int(time.time() * 1000), cluster_ms)

    async def _ask(self, question: Question) -> tuple[dict[str, ExplainReply], list[str]]:
        replies = {self._node_id: self._reply(question)}
        payload = EXPLAIN + _encode(question)
        others = sorted(self._others())
        answers = await asyncio.gather(
            *(self._replica.call(peer, payload, timeout_s=PEER_S) for peer in others), return_exceptions=True
        )
        silent: list[str] = []
        for peer, answer in zip(others, answers, strict=True):
            if isinstance(answer, bytes):
                replies[peer] = _reply.decode(answer)
            elif isinstance(answer, ConsensusError):
                silent.append(peer)
            else:
                raise answer
        return replies, silent

    async def _search(self, wanted: Wanted) -> tuple[list[Mention], list[Moved], int, bool]:
        search = Search(wanted, self.verdicts)
        mentions: deque[Mention] = deque(maxlen=MENTIONS_MAX)
        moves: deque[Moved] = deque(maxlen=MOVES_MAX)
        log_from = index = count = 0
        while entries := self._replica.read_log(index + 1, bytes_max=SLICE_BYTES):
            log_from = log_from or entries[0][1]
            for command, index, term in entries:
                for found in search.entry(command, index, term):
                    if found is None:
                        await asyncio.sleep(0)
                    elif isinstance(found, Mention):
                        count += 1
                        mentions.append(found)
                    else:
                        moves.append(found)
            await asyncio.sleep(0)
        return list(mentions), list(moves), log_from, count > MENTIONS_MAX


def _asked(requests: Iterable[RequestId]) -> Question:
    asked: dict[int, list[int]] = {}
    for client_id, sequence in sorted(requests, reverse=True)[:SEQUENCES_MAX]:
        asked.setdefault(client_id, []).append(sequence)
    return Question(asked)
