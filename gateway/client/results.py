"""Typed results of SDK calls. Fields that a newer server adds are ignored.

Owns: the shapes a caller sees. Shapes on the wire: :mod:`oncegate.gateway.wire`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from oncegate.rifl.ids import ClientId, RequestId, SequenceNumber

if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
    """What JSON can say; of a value that is read, arrays are lists and objects are dicts."""
else:
    Json = Any


class WriteResult(msgspec.Struct, frozen=True, gc=False, kw_only=False):
    """Result of one write: durable, replicated, and the same in every replay.

    A condition that failed is a result and not an error: it is recorded, replayed and leaves the row alone.

    Attributes:
        client_id: session that wrote.
        sequence: sequence number of the write.
        applied: False if a condition failed; ``code`` then says which.
        commit: position of the operation in the shard's order.
        version: version of the row afterwards, where the server tells it.
        value: the row's value if the answer carries one: the sum of an increment, the value that a failed condition
            met. None otherwise.
        replayed: whether the stored result of an earlier attempt was returned.
        memory_ms_left: how long the session's memory is guaranteed from the answer on.
        code: None, or the code of a refused write, such as ``CONDITION_FAILED``.
    """

    client_id: ClientId
    sequence: SequenceNumber
    applied: bool
    commit: int
    version: int | None
    value: Json
    replayed: bool
    memory_ms_left: int
    code: str | None = None

    @property
    def request_id(self) -> RequestId:
        """The id under which the outcome can be asked for."""
        return RequestId(self.client_id, self.sequence)


class RowsPart(msgspec.Struct, frozen=True, gc=False):
    """Rows ``first``..``last`` of a ``put_many``: row ``first + i`` has commit number ``commit + i``."""

    first: SequenceNumber
    last: SequenceNumber
    commit: int
    replayed: bool


class ManyResult(msgspec.Struct, frozen=True):
    """Result of a ``put_many``: all rows are applied.

    Attributes:
        client_id: session that wrote.
        first: sequence number of the first row.
        last: sequence number of the last row.
        commit: commit number of the first row.
        replayed: whether every row was answered from memory.
        memory_ms_left: how long the session's memory is guaranteed from the last answer on.
        parts: the rows in their order, one part where sequence and commit numbers are contiguous.
    """

    client_id: ClientId
    first: SequenceNumber
    last: SequenceNumber
    commit: int
    replayed: bool
    memory_ms_left: int
    parts: tuple[RowsPart, ...]


class Row(msgspec.Struct, frozen=True):
    """A row as read; ``commit`` is the commit number that the answer reflects.

    ``age_ms``, of a ``stale`` read: how long ago the node that answered was last known to hold all that was committed;
    None if it has not heard from a leader since its start.
    """

    key: str
    value: Json
    version: int
    commit: int = 0
    age_ms: int | None = None


class Page(msgspec.Struct, frozen=True):
    """One page of a scan in key order; ``next`` is where the next one starts after, or None at the end."""

    rows: list[Row]
    next: str | None = None
    commit: int = 0


class TableInfo(msgspec.Struct, frozen=True):
    """A table as declared; ``rows`` counts those of a resident table."""

    kind: Literal["resident", "stream"]
    name: str = ""
    quota_bytes: int = 0
    rows: int = 0


class Consumer(msgspec.Struct, frozen=True):
    """A flow's consumer: its cursor and its lag.

    ``expired``: it is required and has never moved, and retention waits for it no longer. ``idle_ms``: cluster time
    since it was made, attached or moved last. ``trend``: how the node that answered has seen it keep up: ``ok``,
    ``falling_behind``, ``stalled``, or ``unknown`` while it has not seen enough.
    """

    cursor: int = 0
    fence: int = 0
    lag_batches: int = 0
    lag_items: int = 0
    lag_ms: int = 0
    required: bool = False
    attached: bool = False
    expired: bool = False
    replays: int = 0
    lag_bytes: int = 0
    idle_ms: int = 0
    trend: str = "unknown"


class FlowInfo(msgspec.Struct, frozen=True):
    """A flow: batches ``first_batch``..``last_batch`` can be read, none was sealed if ``last_batch`` is 0.

    ``items`` counts those of all sealed batches ever, ``open_items`` those not sealed yet. ``version`` rises with every
    change; ``held`` says what keeps the oldest batch.
    """

    flow: str
    source: str
    target: str | None = None
    version: int = 1
    first_batch: int = 0
    last_batch: int = 0
    items: int = 0
    open_items: int = 0
    watermark: int = 0
    retained_bytes: int = 0
    held: str = ""
    retention_ms: int = 0
    consumer_expiry_ms: int = 0
    max_items: int = 0
    max_bytes: int = 0
    linger_ms: int = 0
    consumers: dict[str, Consumer] = {}


class Member(msgspec.Struct, frozen=True):
    """A node of the cluster as the answering node sees it."""

    id: str
    http: str
    peer: str = ""
    role: str = ""
    match: int = 0


class ClusterInfo(msgspec.Struct, frozen=True):
    """The cluster as the answering node sees it; ``lag`` is what it has committed and not applied yet."""

    node: str
    role: str
    leader: str | None = None
    term: int = 0
    log_index: int = 0
    commit_index: int = 0
    applied_index: int = 0
    commit: int = 0
    cluster_time_ms: int = 0
    lag: int = 0
    version: str = ""
    members: list[Member] = []


class Resolution(msgspec.Struct, frozen=True):
    """How a doubt ended, for ever: ``applied`` with its result, or ``sealed``: never executed and never will be."""

    state: Literal["applied", "sealed"]
    result: WriteResult | None = None

    @property
    def applied(self) -> bool:
        """Whether the operation was applied."""
        return self.state == "applied"


class RequestState(msgspec.Struct, frozen=True):
    """What the cluster remembers of a request id; ``result`` is there if ``state`` is ``applied``."""

    state: Literal["applied", "never_seen", "acknowledged", "sealed", "expired"]
    result: WriteResult | None = None
