"""Builds one ordered timeline from what was found; pure.

Owns: the shape of the answer and the words in it. Times are milliseconds of the Unix epoch: those of attempts by the
clock of the node they came to, those of the log by the leader's. Read next: :mod:`oncegate.gateway.explain.explainer`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.gateway.explain.memory import ANSWERED, EXECUTED, GIVEN_UP, Attempt
from oncegate.gateway.explain.search import Mention, Moved
from oncegate.gateway.machine.flow_state import Flow, FlowTable
from oncegate.gateway.wire import RequestState
from oncegate.rifl.ids import RequestId

EVENTS_MAX: Final = 1_000
_NO_REFUSAL: Final = (ANSWERED, GIVEN_UP)


class TimelineEvent(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line: ``what`` is ``attempt``, ``log``, ``batch`` or ``delivery``; ``at_ms`` None where nobody knows when."""

    what: str
    at_ms: int | None = None
    request: str = ""
    node: str = ""
    index: int = 0
    term: int = 0
    commit: int = 0
    flow: str = ""
    batch: int = 0
    consumer: str = ""
    detail: str = ""


class Explained(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer. ``log_from`` is the first index searched; ``silent`` are members that did not answer."""

    table: str = ""
    key: str = ""
    request: str = ""
    version: int = 0
    state: RequestState | None = None
    log_from: int = 0
    truncated: bool = False
    silent: list[str] = []
    events: list[TimelineEvent] = []


class Timeline:
    """Collects events. ``offset_ms`` added to cluster time gives Unix time; None if no leader could tell it."""

    def __init__(self, offset_ms: int | None) -> None:
        self._offset_ms = offset_ms
        self._events: list[tuple[int, int, TimelineEvent]] = []

    def add_attempts(self, node: str, attempts: Iterable[Attempt], requests: frozenset[RequestId]) -> None:
        """Add the attempts that arrived at a node."""
        ordered: list[tuple[int, int]] = sorted(requests)
        for one in attempts:
            low = bisect_left(ordered, (one.client_id, one.first))
            high = bisect_right(ordered, (one.client_id, one.last))
            carried = list(map(str, ordered[low : low + min(5, high - low)]))
            how = f"{one.ended} after {one.took_ms} ms" if one.ended in _NO_REFUSAL else f"refused: {one.ended}"
            count = one.last - one.first + 1
            event = TimelineEvent(
                what="attempt",
                at_ms=one.came_ms,
                node=node,
                request=", ".join(carried[:4]) + (" …" if len(carried) > 4 else ""),
                detail=how if count == 1 else f"one of {count:,}, {how}",
            )
            self._events.append((one.came_ms, 0, event))

    def add_mentions(self, mentions: Iterable[Mention]) -> None:
        """Add the operations found in the log."""
        for one in mentions:
            key = f"{one.table}/{one.key}" if one.key else one.table
            self._add_cluster(
                one.time_ms,
                one.entry,
                TimelineEvent(
                    what="log",
                    at_ms=self._unix_ms(one.time_ms),
                    request=str(one.request_id) if one.sequence else "",
                    index=one.entry,
                    term=one.term,
                    commit=one.did.commit,
                    detail=f"{one.op} {key}: {one.did.what}",
                ),
            )

    def add_delivery(
        self, flows: FlowTable, mentions: Iterable[Mention], moves: Iterable[Moved], may_see: Callable[[str], bool]
    ) -> None:
        """Add batches that hold the effects, and the consumers that have finished them, of flows one may see."""
        passed: dict[tuple[str, str], list[Moved]] = {}
        for move in moves:
            passed.setdefault((move.flow, move.consumer), []).append(move)
        seen: set[tuple[str, int]] = set()
        for one in mentions:
            if one.did.what != EXECUTED or not one.did.commit:
                continue
            for flow in flows.of_table(one.table):
                if may_see(flow.declaration.name):
                    self._add_batch(flow, one, passed, seen)

    def events(self) -> tuple[list[TimelineEvent], bool]:
        """All of them in order, the newest ``EVENTS_MAX``, and whether older ones were left out."""
        ordered = [event for _, _, event in sorted(self._events, key=lambda entry: entry[:2])]
        return ordered[-EVENTS_MAX:], len(ordered) > EVENTS_MAX

    def _add_batch(
        self, flow: Flow, one: Mention, passed: Mapping[tuple[str, str], list[Moved]], seen: set[tuple[str, int]]
    ) -> None:
        name, batches = flow.declaration.name, flow.batches
        number = batches.of_commit(one.did.commit)
        if number is None:
            waits = batches.last < 1 or one.did.commit > batches.get(batches.last).last_commit
            detail = "waits in the open segment" if waits else "in a batch that retention has dropped"
            place = TimelineEvent(what="batch", flow=name, commit=one.did.commit, detail=detail)
            self._add_cluster(one.time_ms, one.entry, place)
            return
        if (name, number) in seen:
            return
        seen.add((name, number))
        meta = batches.get(number)
        sealed = TimelineEvent(
            what="batch",
            at_ms=self._unix_ms(meta.sealed_ms),
            flow=name,
            batch=number,
            detail=f"sealed with {meta.items:,} items, commits {meta.first_commit}..{meta.last_commit}",
        )
        self._add_cluster(meta.sealed_ms, one.entry, sealed)
        for consumer in flow.consumers.all():
            delivery = TimelineEvent(
                what="delivery", flow=name, batch=number, consumer=consumer.name, detail="finished"
            )
            move = next((m for m in passed.get((name, consumer.name), ()) if m.batch >= number), None)
            if consumer.cursor < number:
                waiting = replace(delivery, detail=f"not yet: the cursor is at {consumer.cursor}")
                self._events.append((_LATER, number, waiting))
            elif move is None:
                done = replace(delivery, detail="finished, before the log that is kept begins")
                self._add_cluster(meta.sealed_ms, one.entry + 1, done)
            else:
                when = self._unix_ms(move.time_ms)
                event = replace(delivery, at_ms=when, index=move.entry, term=move.term)
                self._add_cluster(move.time_ms, move.entry, event)

    def _unix_ms(self, cluster_ms: int) -> int | None:
        return None if self._offset_ms is None else cluster_ms + self._offset_ms

    def _add_cluster(self, cluster_ms: int, index: int, event: TimelineEvent) -> None:
        self._events.append((cluster_ms + (self._offset_ms or 0), index, event))


_LATER: Final = 1 << 62
