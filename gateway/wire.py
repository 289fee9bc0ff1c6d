"""Bodies of the HTTP API that client and server share (API.md), JSON and msgpack alike.

Owns: field names and types as they travel. Must not know the server or the SDK. Bodies that the SDK neither sends nor
gets may stand with their routes. :mod:`oncegate.gateway.http.request_bodies` checks limits, not this module.

A node refuses fields of a request that it does not know, and a client ignores those of an answer. So that clients of
one build and nodes of another understand each other, a field that is added to a request is sent only where it is used.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

DEFAULT_HTTP_PORT: Final = 7400

MSGPACK: Final = "application/vnd.oncegate+msgpack"
JSON: Final = "application/json"
BYTES: Final = "application/vnd.oncegate.bytes"
"""A value that is bytes, as they are; not ``application/octet-stream``, which a body without a type is called."""
BASE64: Final = "base64"
"""What the member ``encoding`` beside a value says of bytes: in JSON they are base64, in msgpack ``bin``."""
ARROW: Final = "application/vnd.apache.arrow.stream"
PROBLEM: Final = "application/problem+json"

H_COMMIT: Final = "Oncegate-Commit"
H_MEMORY_MS: Final = "Oncegate-Memory-Ms"
H_AGE_MS: Final = "Oncegate-Age-Ms"
H_LEADER: Final = "Oncegate-Leader"
"""HTTP address of the leader as the answering node knows it; absent where it knows none."""
H_ELSEWHERE: Final = "Oncegate-Elsewhere"
"""With a watch, and any text: its sender knows other nodes, and goes there if the leader asks it to."""
H_CLIENT: Final = "Oncegate-Client"
H_EPOCH: Final = "Oncegate-Epoch"
H_FIRST_SEQUENCE: Final = "Oncegate-First-Sequence"
H_FIRST_INCOMPLETE: Final = "Oncegate-First-Incomplete"
H_REQUEST: Final = "Oncegate-Request"
H_IDEMPOTENCY_KEY: Final = "Idempotency-Key"
H_REPLAYED: Final = "Idempotent-Replayed"
H_TRACEPARENT: Final = "traceparent"
H_TTL_MS: Final = "Oncegate-Ttl-Ms"
"""After how much cluster time the row that is written ends."""
H_TIME_MS: Final = "Oncegate-Time-Ms"
"""Cluster time, which a caller may put into its keys (docs/decisions/0012-idempotency-keys.md)."""


class Condition(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, rename={"if_": "if"}):
    """What must hold before a transaction: of a row what ``if`` says, or that the session ``session`` is alive."""

    table: str | msgspec.UnsetType = msgspec.UNSET
    key: str | msgspec.UnsetType = msgspec.UNSET
    if_: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    session: str | msgspec.UnsetType = msgspec.UNSET


class Write(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, rename={"if_": "if"}):
    """One write of a transaction, with the fields of an operation, and what only a transaction's writes may have.

    A put that is ``numbered`` has its commit number behind its key; one that ends may say where its row is moved
    ``then``. A ``take`` moves up to ``count`` rows, the first whose keys begin with ``key``, ``to`` keys that begin so.
    """

    op: str
    table: str
    key: str
    value: Any = msgspec.UNSET
    by: int | msgspec.UnsetType = msgspec.UNSET
    if_: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    item: Any = msgspec.UNSET
    ttl_ms: int | msgspec.UnsetType = msgspec.UNSET
    bound: bool | msgspec.UnsetType = msgspec.UNSET
    floor: int | msgspec.UnsetType = msgspec.UNSET
    ceiling: int | msgspec.UnsetType = msgspec.UNSET
    numbered: bool | msgspec.UnsetType = msgspec.UNSET
    then: str | msgspec.UnsetType = msgspec.UNSET
    to: str | msgspec.UnsetType = msgspec.UNSET
    count: int | msgspec.UnsetType = msgspec.UNSET


class Transaction(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /v1/transactions``: all conditions hold and all writes happen, or none."""

    writes: list[Write]
    conditions: list[Condition] = msgspec.field(default_factory=list)


class Operation(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename={"if_": "if"}, gc=False):
    """One operation as it travels. :mod:`oncegate.gateway.http.request_bodies` checks which fields an ``op`` needs.

    One with ``op`` ``transaction`` has ``writes`` and ``conditions``, and neither table nor key.
    """

    sequence: int
    op: str
    table: str = ""
    key: str = ""
    value: Any = msgspec.UNSET
    by: int | msgspec.UnsetType = msgspec.UNSET
    if_: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    item: Any = msgspec.UNSET
    floor: int | msgspec.UnsetType = msgspec.UNSET
    ceiling: int | msgspec.UnsetType = msgspec.UNSET
    ttl_ms: int | msgspec.UnsetType = msgspec.UNSET
    bound: bool | msgspec.UnsetType = msgspec.UNSET
    writes: list[Write] | msgspec.UnsetType = msgspec.UNSET
    conditions: list[Condition] | msgspec.UnsetType = msgspec.UNSET


class OperationsRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/operations``.

    ``in_order``: nothing new is executed behind an operation that is refused for now.
    """

    client_id: str
    epoch: int
    first_incomplete: int
    operations: list[Operation]
    in_order: bool = False


class Verdict(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What verdicts have in common: ``replayed`` of what was recorded, else why it was not."""

    replayed: bool | msgspec.UnsetType = msgspec.UNSET
    code: str | msgspec.UnsetType = msgspec.UNSET
    outcome: str | msgspec.UnsetType = msgspec.UNSET
    retryable: bool | msgspec.UnsetType = msgspec.UNSET
    detail: str | msgspec.UnsetType = msgspec.UNSET


class TakenRow(msgspec.Struct, omit_defaults=True):
    """A row that was taken, under the key that it has since; ``value`` is left out if it is over 64 KiB."""

    key: str
    version: int
    value: Any = msgspec.UNSET
    encoding: str | msgspec.UnsetType = msgspec.UNSET


class TransactionWrite(msgspec.Struct, omit_defaults=True):
    """Result of one write of an applied transaction; ``rows`` are those that a take has moved, in the order of keys."""

    commit: int
    version: int
    value: Any = msgspec.UNSET
    encoding: str | msgspec.UnsetType = msgspec.UNSET
    rows: list[TakenRow] | msgspec.UnsetType = msgspec.UNSET


class TransactionApplied(msgspec.Struct):
    """Answer of ``POST /v1/transactions``: ``commit`` is that of its last write. A replay is the same bytes."""

    request: str
    commit: int
    writes: list[TransactionWrite]


class OperationResult(Verdict, omit_defaults=True, gc=False):
    """Verdict on one operation: ``applied``, ``refused`` (recorded) or ``rejected`` (not recorded).

    Of an applied transaction ``commit`` is that of its last write, and ``writes`` are all of them. Of a refused one
    ``failed`` names what refused it, ``conditions[0]`` or ``writes[0]``; ``version`` and ``value`` are that row's.
    ``encoding``, here and below: ``base64`` if the value is bytes, which is how JSON says them; msgpack has ``bin``.
    """

    sequence: int
    status: str
    commit: int | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET
    value: Any = msgspec.UNSET
    writes: list[TransactionWrite] | msgspec.UnsetType = msgspec.UNSET
    failed: str | msgspec.UnsetType = msgspec.UNSET
    encoding: str | msgspec.UnsetType = msgspec.UNSET


class OperationsResponse(msgspec.Struct):
    """Answer of ``POST /v1/operations``: a verdict per operation, in request order."""

    results: list[OperationResult]
    memory_ms: int


class RangeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/tables/{table}/ranges`` in msgpack: two columns of equal length.

    ``values`` holds JSON texts. Row ``i`` has sequence number ``Oncegate-First-Sequence`` + i.
    """

    keys: list[str]
    values: list[str]


class RangeResult(Verdict, omit_defaults=True):
    """Verdict on the part ``first``..``last`` of a range; ``commit`` is that of its first operation."""

    first: int
    last: int
    status: str
    commit: int | msgspec.UnsetType = msgspec.UNSET


class RangeResponse(msgspec.Struct):
    """Answer of ``POST /v1/tables/{table}/ranges``, split where verdicts differ."""

    results: list[RangeResult]
    memory_ms: int


class OpenSession(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/sessions``; the nonce makes a retried open the same session."""

    nonce: str
    lease_ms: int | None = None
    window: int | None = None


class SessionOpened(msgspec.Struct):
    """Answer of ``POST /v1/sessions``."""

    client_id: str
    epoch: int
    lease_ms: int
    window: int


class SessionRenewed(msgspec.Struct):
    """Answer of ``POST /v1/sessions/{client_id}/renew``."""

    lease_ms_left: int


class RenewSession(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/sessions/{client_id}/renew``."""

    epoch: int


class TakeOver(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/sessions/{client_id}/take-over``."""

    nonce: str


class SessionTaken(msgspec.Struct):
    """Answer of ``POST /v1/sessions/{client_id}/take-over``."""

    epoch: int
    first_incomplete: int
    highest_sequence: int


class SessionState(msgspec.Struct):
    """Answer of ``GET /v1/sessions/{client_id}``."""

    epoch: int
    lease_ms_left: int
    first_incomplete: int
    highest_sequence: int
    records: int


class SessionListed(SessionState):
    """One session of ``GET /v1/sessions``; its nonce, by which it can be taken over, is not told."""

    client_id: str
    window: int
    lease_ms: int


class SessionList(msgspec.Struct):
    """Answer of ``GET /v1/sessions``: a page in the order of ids, perhaps short; ``next`` is null on the last one."""

    sessions: list[SessionListed]
    next: str | None


class OpenRequests(msgspec.Struct, omit_defaults=True):
    """Sequence numbers ``first``..``last`` that are not acknowledged, and what is known of them.

    ``state`` is ``executed`` (recorded; ``commit`` is that of ``first``), ``sealed``, or ``never_seen``: a gap below
    the highest number that was seen.
    """

    first: int
    last: int
    state: str
    commit: int | msgspec.UnsetType = msgspec.UNSET
    traceparent: str | msgspec.UnsetType = msgspec.UNSET


class OpenRequestList(msgspec.Struct):
    """Answer of ``GET /v1/sessions/{client_id}/requests``: a page, ascending; ``next`` is null on the last one."""

    requests: list[OpenRequests]
    next: int | None


class SessionClosed(msgspec.Struct):
    """Empty answer: the session is closed."""


class OwnFlow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How a stream table's own flow cuts, keeps and hands on its writes; what is left out is the default of a flow."""

    consumers: list[str] | msgspec.UnsetType = msgspec.UNSET
    retention_ms: int | msgspec.UnsetType = msgspec.UNSET
    retention_bytes: int | msgspec.UnsetType = msgspec.UNSET
    event_time: str | msgspec.UnsetType = msgspec.UNSET
    shed_lag_bytes: int | msgspec.UnsetType = msgspec.UNSET
    max_items: int | msgspec.UnsetType = msgspec.UNSET
    max_bytes: int | msgspec.UnsetType = msgspec.UNSET
    linger_ms: int | msgspec.UnsetType = msgspec.UNSET
    consumer_expiry_ms: int | msgspec.UnsetType = msgspec.UNSET


class AlterFlow(OwnFlow, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Body of ``PATCH /v1/flows/{flow}``: the version that the caller has seen, and what changes."""

    version: int


class DeclareTable(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``PUT /v1/tables/{table}``; ``flow`` for stream tables only."""

    kind: Literal["resident", "stream"]
    quota_bytes: int | None = None
    flow: OwnFlow | None = None


class TableState(msgspec.Struct):
    """Answer of ``PUT`` and ``GET /v1/tables/{table}``; ``rows`` and ``bytes`` are of resident rows.

    ``incarnation`` is the number that this declaration of the name got; no other table has it, earlier or later.
    """

    name: str
    kind: str
    quota_bytes: int
    rows: int
    bytes: int = 0
    incarnation: int = 0


class TableList(msgspec.Struct):
    """Answer of ``GET /v1/tables``: a page in the order of names; ``next`` is null on the last one."""

    tables: list[TableState]
    next: str | None
    commit: int


class TableDropped(msgspec.Struct):
    """Answer of ``DELETE /v1/tables/{table}``: this incarnation is gone; its rows are removed from now on."""

    table: str
    incarnation: int


class RowState(msgspec.Struct):
    """Answer of ``GET /v1/tables/{table}/rows/{key}``; ``commit`` is what the answer reflects.

    Of a row that ends by itself: ``ends_ms``, in cluster time, and ``owner``, the session that it ends with.
    """

    key: str
    value: Any
    version: int
    commit: int
    ends_ms: int | msgspec.UnsetType = msgspec.UNSET
    owner: str | msgspec.UnsetType = msgspec.UNSET
    encoding: str | msgspec.UnsetType = msgspec.UNSET


class RowPage(msgspec.Struct):
    """Answer of ``GET /v1/tables/{table}/rows``; ``next`` and ``page`` are null on the last page.

    ``next`` is a key, from which ``after`` goes on in the rows as they are then; ``page`` goes on at ``commit``.
    """

    rows: list[RowState]
    next: str | None
    commit: int
    page: str | None = None


class RowName(msgspec.Struct, forbid_unknown_fields=True):
    """A row to be read."""

    table: str
    key: str


class ReadRows(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/rows``."""

    rows: list[RowName]


class RowsRead(msgspec.Struct):
    """Answer of ``POST /v1/rows``: the rows in the order of the request as they were at ``commit``, null if absent."""

    rows: list[RowState | None]
    commit: int


class ChangedRow(msgspec.Struct, omit_defaults=True):
    """A change of a row: its new value, or ``deleted`` and, unless an operation did it, the ``cause``."""

    key: str
    commit: int
    value: Any = msgspec.UNSET
    deleted: bool = False
    cause: str = ""
    encoding: str | msgspec.UnsetType = msgspec.UNSET


class RowChanges(msgspec.Struct):
    """An event of ``GET /v1/tables/{table}/watch``: a change, or all that a transition has changed of these rows.

    ``commit`` is the last commit number of the transition; each change has its own, which is its row's version.
    """

    commit: int
    changes: list[ChangedRow]


class WatchProgress(msgspec.Struct):
    """An event of the same: up to this commit number, there are no changes but those that were told."""

    commit: int


class TurnsGiven(msgspec.Struct):
    """Answer of ``GET /v1/tables/{table}/turns``: how many; 0 if no row has come in time."""

    turns: int


class ResolveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/requests/{client_id}/{sequence}/resolve``; may be left out, and need not come from the owner.

    The owner's epoch and first incomplete acknowledge as with an operation, which makes room in the window.
    """

    epoch: int | None = None
    first_incomplete: int = 1


class RequestState(msgspec.Struct, omit_defaults=True):
    """Answer of ``GET /v1/requests/{client_id}/{sequence}`` and of ``POST …/resolve``.

    ``state``: ``applied`` or ``refused`` if it ran, as ``status`` of the result says; else ``sealed``, ``never_seen``,
    ``acknowledged`` or ``expired``. Of what ran, ``executed`` is true, and ``applied`` tells whether it took effect.
    """

    state: str
    result: OperationResult | None = None
    traceparent: str | msgspec.UnsetType = msgspec.UNSET
    executed: bool | msgspec.UnsetType = msgspec.UNSET
    applied: bool | msgspec.UnsetType = msgspec.UNSET


Trend = Literal["ok", "falling_behind", "stalled", "unknown"]


class ConsumerState(msgspec.Struct):
    """One consumer of a flow and how far it is behind.

    ``expired``: it has never moved, and retention waits for it no longer. ``idle_ms``: cluster time since it was made,
    attached or moved last. ``trend``: as the node that answers judges it from what it has seen itself. ``event_ms``:
    the flow's event-time clock at its cursor, which goes back with a replay; ``event_lag_ms``: how far it is behind.
    """

    cursor: int
    fence: int
    lag_batches: int
    lag_items: int
    lag_ms: int
    required: bool
    attached: bool
    expired: bool
    replays: int
    lag_bytes: int
    idle_ms: int
    trend: Trend = "unknown"
    event_ms: int = 0
    event_lag_ms: int = 0


class FlowState(msgspec.Struct):
    """Answer of ``PUT`` and ``GET /v1/flows/{flow}``.

    Batches ``first_batch``..``last_batch`` are retained (``last_batch`` 0: none was sealed yet). ``items`` counts the
    items of all sealed batches ever, ``open_items`` those not sealed yet. ``version`` rises with every change of the
    flow; ``held`` says what keeps its oldest batch, empty if it has none. ``event_ms`` is the newest event time of the
    sealed batches, by their member ``event_time``, as far as it was read; 0 = none. ``cluster_identity`` is that of
    ``GET /v1/cluster``: commit numbers of two identities are of two logs.
    """

    flow: str
    source: str
    target: str | list[str] | None
    version: int
    first_batch: int
    last_batch: int
    items: int
    open_items: int
    watermark: int
    retained_bytes: int
    held: str
    retention_ms: int
    retention_bytes: int
    consumer_expiry_ms: int
    max_items: int
    max_bytes: int
    linger_ms: int
    consumers: dict[str, ConsumerState]
    cluster_identity: str = ""
    event_time: str = ""
    event_ms: int = 0
    shed_lag_bytes: int = 0
    shed_level: int = 0
    shed_items: int = 0


class DeadLetter(msgspec.Struct):
    """An item that became no row of a job: which, of which batch, and why."""

    job: str
    batch: int
    commit: int
    key: str
    error: str
    time_ms: int


class DeadLetters(msgspec.Struct):
    """Answer of ``GET /v1/flows/{flow}/dead-letters``: the newest ones in the node's store of rows.

    ``store`` is False where the node reads none: letters of other stores are not known here. ``found`` counts the
    flow's letters; ``whole`` is False where so many are in the store that not all were looked at.
    """

    store: bool
    letters: list[DeadLetter]
    found: int
    whole: bool


class FlowDeleted(msgspec.Struct):
    """Answer of ``DELETE /v1/flows/{flow}``; a flow of this name begins above ``last_batch``."""

    flow: str
    last_batch: int


class FlowList(msgspec.Struct):
    """Answer of ``GET /v1/flows``."""

    flows: list[FlowState]


class AttachConsumer(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/flows/{flow}/consumers/{name}/attach``."""

    nonce: str


class ConsumerAttached(msgspec.Struct):
    """Answer of ``attach``: the fence to show with each move, and where the cursor stands."""

    fence: int
    cursor: int


class StartConsumer(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/flows/{flow}/consumers/{name}/start``: where it begins, in one of five ways.

    ``start``: the oldest retained batch, what is sealed from now on, or where its cursor stands; ``batch``: with this
    one; ``time_ms``, ``ago_ms``: with what was applied since a cluster time, or in so many milliseconds before now;
    ``event_ms``: with all items of this event time or a later one.
    """

    nonce: str
    start: Literal["beginning", "now", "cursor"] | None = None
    batch: int | None = None
    time_ms: int | None = None
    ago_ms: int | None = None
    event_ms: int | None = None


class MoveCursor(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/flows/{flow}/consumers/{name}/cursor``."""

    batch: int
    fence: int
    replay: bool = False


class CursorMoved(msgspec.Struct):
    """Answer of ``cursor``."""

    cursor: int


class CascadeWrite(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One write of a cascade: ``put`` (``value``), ``delete`` or ``increment`` (``by``), without a condition."""

    op: Literal["put", "delete", "increment"]
    table: str
    key: str
    value: Any = msgspec.UNSET
    by: int | msgspec.UnsetType = msgspec.UNSET


class Cascade(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/flows/{flow}/consumers/{name}/cascade``: a part of what derives from a batch.

    Parts are numbered from 1 and come in order; the ``last`` one moves the cursor. A part may be empty.
    """

    batch: int
    part: int
    fence: int
    last: bool
    writes: list[CascadeWrite]


class CascadeWritten(msgspec.Struct):
    """Answer of ``cascade``: the cursor, and the commit number of the part's last write.

    ``commit`` is 0 for an empty part, and for a part of a batch that was finished before the newest one.
    """

    cursor: int
    commit: int
    replayed: bool


class ClusterLevel(msgspec.Struct):
    """Answer of ``POST /v1/cluster/level``: the feature level in force."""

    level: int


class Sealed(msgspec.Struct):
    """Number of the newest sealed batch of a flow; an event of ``watch``."""

    batch: int


class LiveCheckCluster(msgspec.Struct):
    """The newest checked operations of all members, checked together; ``silent`` members did not answer."""

    verdict: str
    nodes: list[str]
    silent: list[str]
    operations: int
    keys: int
    first_anomaly: str


class LiveCheck(msgspec.Struct):
    """Answer of ``GET /v1/check``: what the check of live traffic found at this node since its start.

    ``verdict`` is ``ok``, ``anomaly`` or ``unknown`` (nothing was checked); ``keys`` are those of the last window,
    ``dropped`` operations came beyond what a window takes. ``complete``: no operation on a sampled row can have passed
    this node by, and no row ends by itself.
    """

    node: str
    verdict: str
    share: float
    operations: int
    keys: int
    windows: int
    window_ms: int
    last_unix_ms: int
    dropped: int
    complete: bool
    anomalies: int
    first_anomaly: str
    cluster: LiveCheckCluster


class Problem(msgspec.Struct, omit_defaults=True):
    """``application/problem+json`` as SEMANTICS.md, *Errors*, has it."""

    type: str
    title: str
    status: int
    code: str
    outcome: str
    retryable: bool
    detail: str = ""
    retry_after_ms: int | None = None
    elsewhere: bool = False
    """Other nodes are better placed to answer, and nothing else stands in the way; see ``Oncegate-Elsewhere``."""
