"""Flow declarations and the graph they form.

Owns: the bounds of a declaration, the refusal of cycles and of differing redeclarations. Pure. Must not
know items or batches. Read next: :mod:`oncegate.flows.batcher`, :mod:`oncegate.flows.cursor`.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from oncegate.flows.errors import BadRequestError, ConflictError, QuotaError

NAME_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
"""Names of flows and consumers. The first character keeps file names off ``.``, ``..`` and hidden files."""

ITEMS_MAX: Final = 1_000_000
BYTES_MAX: Final = 256 * 1024 * 1024
"""Keeps a batch far below the 2 GiB that 32-bit Arrow string offsets can address."""

LINGER_MS_MAX: Final = 3_600_000
RETENTION_MS_MAX: Final = 366 * 24 * 3_600_000
RETENTION_BYTES_MAX: Final = 1 << 50
CONSUMERS_MAX: Final = 64
TARGETS_MAX: Final = 16
EVENT_FIELD_LENGTH_MAX: Final = 128
FLOWS_MAX: Final = 1024
ROWS_CONSUMER: Final = "rows"
"""Consumer that brings a stream table's own flow into the store: batches above its cursor are retained."""


def check_name(kind: str, name: str) -> None:
    """Accept a name of a flow or consumer.

    Raises:
        BadRequestError: not 1..64 of ``a-z 0-9 _ . -`` starting with a letter or digit.
    """
    if NAME_PATTERN.fullmatch(name) is None:
        raise BadRequestError(f"{kind} name {name!r} is not of the form {NAME_PATTERN.pattern}")


class FlowDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a flow derives from and how its items are cut, kept and consumed.

    Attributes:
        name: 1..64 characters, see :data:`NAME_PATTERN`.
        source: table whose committed writes are the flow's items.
        target: table, or tables, that the flow's consumers write through the gateway, or None when they write outside.
            These are the edges by which cycles are found; a cascade writes no other table.
        max_items: items of a batch at most, 1..ITEMS_MAX.
        max_bytes: size at which a batch is cut, 1..BYTES_MAX; one range may exceed it.
        linger_ms: age of its first item at which a batch is cut, 0..LINGER_MS_MAX, in cluster time.
        retention_ms: for how long a sealed batch is kept at least, 0..RETENTION_MS_MAX, in cluster time.
        retention_bytes: size of the sealed batches from which on the oldest need not be kept, whatever their time,
            0..RETENTION_BYTES_MAX, 0 = no such size.
        event_time: member of the items' JSON values that is their event time, in milliseconds of the writers' clock;
            empty: the flow has no clock of its own.
        shed_lag_bytes: bytes that its consumers have not read from which on it leaves items out
            (:mod:`oncegate.flows.shedding`), 0..RETENTION_BYTES_MAX, 0 = it never does.
        consumers: the required ones: no batch is dropped before each of them has passed it.
        consumer_expiry_ms: for how long, in cluster time, retention waits for a required consumer that has never moved;
            0..RETENTION_MS_MAX, 0 = for ever.
    """

    name: str
    source: str
    target: str | tuple[str, ...] | None = None
    max_items: int = 16_384
    max_bytes: int = 8 * 1024 * 1024
    linger_ms: int = 500
    retention_ms: int = 24 * 3_600_000
    retention_bytes: int = 0
    event_time: str = ""
    shed_lag_bytes: int = 0
    consumers: tuple[str, ...] = ()
    consumer_expiry_ms: int = 0

    def __post_init__(self) -> None:
        check_name("flow", self.name)
        if not self.source or "" in self.targets:
            raise BadRequestError("a table name is empty")
        _check_bound("the number of targets", len(self.targets), 0, TARGETS_MAX)
        if len(set(self.targets)) != len(self.targets):
            raise BadRequestError("a target is named twice")
        if isinstance(self.target, tuple) and len(self.target) < 2:
            # One form for one meaning: a declaration that is sent again is compared with the one that is there.
            msgspec.structs.force_setattr(self, "target", self.target[0] if self.target else None)
        _check_bound("max_items", self.max_items, 1, ITEMS_MAX)
        _check_bound("max_bytes", self.max_bytes, 1, BYTES_MAX)
        _check_bound("linger_ms", self.linger_ms, 0, LINGER_MS_MAX)
        _check_bound("retention_ms", self.retention_ms, 0, RETENTION_MS_MAX)
        _check_bound("shed_lag_bytes", self.shed_lag_bytes, 0, RETENTION_BYTES_MAX)
        _check_bound("retention_bytes", self.retention_bytes, 0, RETENTION_BYTES_MAX)
        _check_bound("the length of event_time", len(self.event_time), 0, EVENT_FIELD_LENGTH_MAX)
        _check_bound("consumer_expiry_ms", self.consumer_expiry_ms, 0, RETENTION_MS_MAX)
        _check_bound("the number of consumers", len(self.consumers), 0, CONSUMERS_MAX)
        for consumer in self.consumers:
            check_name("consumer", consumer)
        if len(set(self.consumers)) != len(self.consumers):
            raise BadRequestError("a consumer is named twice")

    @property
    def targets(self) -> tuple[str, ...]:
        """The tables that its consumers write through the gateway."""
        target = self.target
        return () if target is None else (target,) if isinstance(target, str) else target


def _check_bound(what: str, number: int, low: int, high: int) -> None:
    if not low <= number <= high:
        raise BadRequestError(f"{what} is {number}, not in {low}..{high}")


class FlowGraph:
    """All declared flows: tables are the nodes, flows with a target the edges, and there is no cycle.

    Deterministic: everything follows from the order of calls.
    """

    __slots__ = ("_by_source", "_flows")

    def __init__(self) -> None:
        self._flows: dict[str, FlowDeclaration] = {}
        self._by_source: dict[str, tuple[FlowDeclaration, ...]] = {}

    def declare(self, flow: FlowDeclaration) -> bool:
        """Add a flow; return False if the same declaration was there. Idempotent.

        Raises:
            ConflictError: the name is declared differently.
            BadRequestError: the flow would close a cycle; the detail shows it.
            QuotaError: FLOWS_MAX flows are declared.
        """
        known = self._flows.get(flow.name)
        if known is not None:
            if known != flow:
                raise ConflictError(f"flow {flow.name} is declared differently: alter it, or declare it as it is")
            return False
        if len(self._flows) >= FLOWS_MAX:
            raise QuotaError(f"{FLOWS_MAX} flows are declared")
        cycle = self._path(flow.targets, flow.source)
        if cycle is not None:
            raise BadRequestError(f"flow {flow.name} closes a cycle: {' -> '.join([flow.source, *cycle])}")
        self._flows[flow.name] = flow
        self._by_source[flow.source] = (*self._by_source.get(flow.source, ()), flow)
        return True

    def replace(self, flow: FlowDeclaration) -> None:
        """Put a declaration in the place of the one of that name; both have the same source and target."""
        before = self._flows[flow.name]
        self._flows[flow.name] = flow
        self._by_source[flow.source] = tuple(flow if one is before else one for one in self._by_source[flow.source])

    def remove(self, name: str) -> None:
        """Forget a declared flow."""
        gone = self._flows.pop(name)
        self._by_source[gone.source] = tuple(one for one in self._by_source[gone.source] if one is not gone)

    def _path(self, starts: tuple[str, ...], goal: str) -> list[str] | None:
        """Return the tables from one of ``starts`` to ``goal`` along existing flows, or None."""
        came_from = dict.fromkeys(starts, "")
        todo = [*starts]
        while todo:
            table = todo.pop()
            if table == goal:
                path = []
                while table:
                    path.append(table)
                    table = came_from[table]
                return path[::-1]
            for flow in self._by_source.get(table, ()):
                for target in flow.targets:
                    if target not in came_from:
                        came_from[target] = table
                        todo.append(target)
        return None
