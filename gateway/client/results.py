"""Typed results of SDK calls. Fields that a newer server adds are ignored.

Owns: the shapes a caller sees. Shapes on the wire: :mod:`oncegate.gateway.wire`.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

import msgspec

from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.wire import BASE64, TransactionWrite
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ClientId, RequestId, SequenceNumber

if TYPE_CHECKING:
    from datetime import date, time, timedelta
    from decimal import Decimal
    from enum import Enum
    from uuid import UUID

    from _typeshed import DataclassInstance
    from typing_extensions import TypeVar  # which type checkers bring along: with a default

    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
    """What JSON can say; of a value that is read, arrays are lists and objects are dicts."""
    Value: TypeAlias = (
        bool
        | int
        | float
        | str
        | date
        | time
        | timedelta
        | UUID
        | Decimal
        | Enum
        | msgspec.Struct
        | DataclassInstance
        | Sequence["Value"]
        | Mapping[str, "Value"]
        | None
    )
    """What is written: beside :data:`Json` what the client's ``encode`` turns into it; refused without one."""
    V_co = TypeVar("V_co", covariant=True, default=Json)
else:
    from typing import TypeVar

    Json = Value = Any
    V_co = TypeVar("V_co", covariant=True)

T = TypeVar("T")


def told(value: Any, encoding: str | msgspec.UnsetType) -> Any:
    """Return a value of an answer: bytes where JSON has said them as base64."""
    return b64decode(value) if encoding == BASE64 and type(value) is str else value


class _Valued(msgspec.Struct, frozen=True, kw_only=True):
    """What has a value from an answer in JSON; ``encoding`` is ``base64`` if it is bytes."""

    encoding: str = ""

    def __post_init__(self) -> None:
        if self.encoding:
            value = told(self.value, self.encoding)  # type: ignore[attr-defined]
            msgspec.structs.force_setattr(self, "value", value)

    def value_as(self, kind: type[T]) -> T:
        """Return the value as a type: a dataclass, a struct, a time, a UUID, a decimal, a list of them.

        It brings back what ``Client(encode=msgspec.to_builtins)`` has written, and checks what others have.

        Raises:
            OperationFailed: BAD_REQUEST if the value does not fit, with where.
        """
        return as_kind(self.value, kind)  # type: ignore[attr-defined]


def as_kind(value: Any, kind: type[T]) -> T:
    """Return a value as a type; raises as :meth:`Row.value_as`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as unfit:
        raise OperationFailed(Code.BAD_REQUEST, f"the value is no {kind!r}: {unfit}") from unfit


class WriteResult(msgspec.Struct, Generic[V_co], frozen=True, gc=False, kw_only=False):
    """Result of one write: durable, replicated, and the same in every replay.

    A condition that failed is a result and not an error: it is recorded, replayed and leaves the row alone.
    ``WriteResult[int]`` is that of an increment: where ``applied``, its value is a whole number. Look there first if it
    has a condition, a floor or a ceiling: a refused one has what the row holds.

    Attributes:
        client_id: session that wrote.
        sequence: sequence number of the write.
        applied: False if a condition failed; ``code`` then says which.
        commit: its commit number: the state right after it. Of a transaction that of its last write.
        version: version of the row afterwards, where the server tells it.
        value: the row's value if the answer carries one: the sum of an increment, the value that a failed condition
            met. None otherwise.
        replayed: whether the stored result of an earlier attempt was returned.
        memory_ms_left: how long the session's memory is guaranteed from the answer on.
        code: None, or the code of a refused write, such as ``CONDITION_FAILED``.
        writes: of an applied transaction each write's commit number, version and value, in order.
        failed: of a refused transaction what refused it, as ``conditions[0]`` or ``writes[0]``; ``version`` and
            ``value`` are that row's.
    """

    client_id: ClientId
    sequence: SequenceNumber
    applied: bool
    commit: int
    version: int | None
    value: V_co
    replayed: bool
    memory_ms_left: int
    code: str | None = None
    writes: tuple[TransactionWrite, ...] = ()
    failed: str | None = None

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


class Row(_Valued, frozen=True):
    """A row as read; ``commit`` is the commit number that the answer reflects.

    ``age_ms``, of a ``stale`` read: how long ago the node that answered was last known to hold all that was committed;
    None if it has not heard from a leader since its start. ``ends_ms``: cluster time at which it ends by itself, 0 for
    never. ``owner``: client id of the session that it ends with, in its written form; empty for none. ``value`` is what
    JSON can say, or bytes.
    """

    key: str
    value: Json
    version: int
    commit: int = 0
    age_ms: int | None = None
    ends_ms: int = 0
    owner: str = ""


class Page(msgspec.Struct, frozen=True):
    """One page of a scan in key order; ``next`` is where the next one starts after, or None at the end.

    ``page`` stands for the pages behind it at the same commit number; None at the end.
    """

    rows: list[Row]
    next: str | None = None
    commit: int = 0
    page: str | None = None


class Change(_Valued, frozen=True):
    """A change of a row.

    Attributes:
        key: of the row.
        commit: a state's: all up to it was told once this change was, and a watch from it goes on there. Of changes
            that took effect together the last has the number of the state after them. The others have the one before
            them: a watch from there tells all of them again, never the rest alone.
        value: what the row holds since; None if it was deleted.
        deleted: whether it was deleted.
        cause: why, unless an operation has asked for it: ``ttl end`` or ``session end``.
        until: commit number of the state after all that took effect together with it.
        version: the change's own commit number, which is the row's version since.
    """

    key: str
    commit: int
    value: Json
    deleted: bool
    cause: str
    until: int
    version: int


class FlowItem(_Valued, frozen=True):
    """An item of a flow: a committed write. ``deleted`` tells a deletion from a null."""

    commit: int
    key: str
    value: Json
    time_ms: int
    client_id: str
    sequence: int
    deleted: bool = False
    traceparent: str = ""


class TableInfo(msgspec.Struct, frozen=True):
    """A table as declared; ``rows`` and ``bytes`` are of a resident table.

    ``incarnation`` is the number of this declaration of the name: a later one, after a drop, has another.
    """

    kind: Literal["resident", "stream"]
    name: str = ""
    quota_bytes: int = 0
    rows: int = 0
    bytes: int = 0
    incarnation: int = 0


class SessionInfo(msgspec.Struct, frozen=True):
    """A live session of the token's tenant; ``records``: results that it has not acknowledged."""

    client_id: str
    epoch: int
    lease_ms_left: int
    first_incomplete: int
    highest_sequence: int
    records: int
    window: int = 0
    lease_ms: int = 0


class OpenRequests(msgspec.Struct, frozen=True):
    """Sequence numbers of a session that are not acknowledged: ``executed``, ``sealed``, or ``never_seen``, a gap."""

    first: int
    last: int
    state: str
    commit: int | None = None
    traceparent: str = ""


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
    event_ms: int = 0
    event_lag_ms: int = 0


class FlowInfo(msgspec.Struct, frozen=True):
    """A flow: batches ``first_batch``..``last_batch`` can be read, none was sealed if ``last_batch`` is 0.

    ``items`` counts those of all sealed batches ever, ``open_items`` those not sealed yet. ``version`` rises with every
    change; ``held`` says what keeps the oldest batch.
    """

    flow: str
    source: str
    target: str | list[str] | None = None
    version: int = 1
    first_batch: int = 0
    last_batch: int = 0
    items: int = 0
    open_items: int = 0
    watermark: int = 0
    retained_bytes: int = 0
    held: str = ""
    retention_ms: int = 0
    retention_bytes: int = 0
    consumer_expiry_ms: int = 0
    max_items: int = 0
    max_bytes: int = 0
    linger_ms: int = 0
    consumers: dict[str, Consumer] = {}
    event_time: str = ""
    event_ms: int = 0
    shed_lag_bytes: int = 0
    shed_level: int = 0
    shed_items: int = 0


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
    """How a doubt ended, for ever.

    Attributes:
        state: ``applied``, or ``refused`` (its condition failed), each with its result; or ``sealed``: it never ran and
            never will.
        result: what the call would have returned; None if it never ran.
    """

    state: Literal["applied", "refused", "sealed"]
    result: WriteResult | None = None

    @property
    def executed(self) -> bool:
        """Whether it ran: True for ``applied`` and ``refused``."""
        return self.state != "sealed"

    @property
    def applied(self) -> bool:
        """Whether it took effect, as :attr:`WriteResult.applied`."""
        return self.state == "applied"


class RequestState(msgspec.Struct, frozen=True):
    """What the cluster remembers of a request id; ``result`` is there if it ran and is remembered."""

    state: Literal["applied", "refused", "never_seen", "acknowledged", "sealed", "expired"]
    result: WriteResult | None = None

    @property
    def executed(self) -> bool | None:
        """Whether it ran; None where that is not known, or may change: ``never_seen`` can run yet."""
        return True if self.result is not None else False if self.state == "sealed" else None

    @property
    def applied(self) -> bool | None:
        """Whether it took effect; None as of :attr:`executed`."""
        return self.result.applied if self.result is not None else self.executed
