"""Bodies of the HTTP API that client and server share (API.md), JSON and msgpack alike.

Owns: field names and types as they travel. Must not know the server or the SDK. Bodies that the SDK neither sends nor
gets may stand with their routes. :mod:`oncegate.gateway.http.request_bodies` checks limits, not this module.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

DEFAULT_HTTP_PORT: Final = 7400

MSGPACK: Final = "application/vnd.oncegate+msgpack"
JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
PROBLEM: Final = "application/problem+json"

H_COMMIT: Final = "Oncegate-Commit"
H_MEMORY_MS: Final = "Oncegate-Memory-Ms"
H_AGE_MS: Final = "Oncegate-Age-Ms"
H_LEADER: Final = "Oncegate-Leader"
"""HTTP address of the leader as the answering node knows it; absent where it knows none."""
H_CLIENT: Final = "Oncegate-Client"
H_EPOCH: Final = "Oncegate-Epoch"
H_FIRST_SEQUENCE: Final = "Oncegate-First-Sequence"
H_FIRST_INCOMPLETE: Final = "Oncegate-First-Incomplete"
H_REQUEST: Final = "Oncegate-Request"
H_IDEMPOTENCY_KEY: Final = "Idempotency-Key"
H_REPLAYED: Final = "Idempotent-Replayed"
H_TRACEPARENT: Final = "traceparent"
H_TIME_MS: Final = "Oncegate-Time-Ms"
"""Cluster time, which a caller may put into its keys (docs/decisions/0012-idempotency-keys.md)."""


class Operation(msgspec.Struct, omit_defaults=True, rename={"if_": "if"}):
    """One operation as it travels. :mod:`oncegate.gateway.http.request_bodies` checks which fields an ``op`` needs."""

    sequence: int
    op: str
    table: str
    key: str
    value: Any = msgspec.UNSET
    by: int | msgspec.UnsetType = msgspec.UNSET
    if_: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    item: Any = msgspec.UNSET


class OperationsRequest(msgspec.Struct):
    """Body of ``POST /v1/operations``."""

    client_id: str
    epoch: int
    first_incomplete: int
    operations: list[Operation]


class Verdict(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What verdicts have in common: ``replayed`` of what was recorded, else why it was not."""

    replayed: bool | msgspec.UnsetType = msgspec.UNSET
    code: str | msgspec.UnsetType = msgspec.UNSET
    outcome: str | msgspec.UnsetType = msgspec.UNSET
    retryable: bool | msgspec.UnsetType = msgspec.UNSET
    detail: str | msgspec.UnsetType = msgspec.UNSET


class OperationResult(Verdict, omit_defaults=True):
    """Verdict on one operation: ``applied``, ``refused`` (recorded) or ``rejected`` (not recorded)."""

    sequence: int
    status: str
    commit: int | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET
    value: Any = msgspec.UNSET


class OperationsResponse(msgspec.Struct):
    """Answer of ``POST /v1/operations``: a verdict per operation, in request order."""

    results: list[OperationResult]
    memory_ms: int


class RangeBody(msgspec.Struct):
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


class OpenSession(msgspec.Struct, omit_defaults=True):
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


class RenewSession(msgspec.Struct):
    """Body of ``POST /v1/sessions/{client_id}/renew``."""

    epoch: int


class TakeOver(msgspec.Struct):
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


class SessionClosed(msgspec.Struct):
    """Empty answer: the session is closed."""


class OwnFlow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How a stream table's own flow cuts, keeps and hands on its writes; what is left out is the default of a flow."""

    consumers: list[str] | msgspec.UnsetType = msgspec.UNSET
    retention_ms: int | msgspec.UnsetType = msgspec.UNSET
    max_items: int | msgspec.UnsetType = msgspec.UNSET
    max_bytes: int | msgspec.UnsetType = msgspec.UNSET
    linger_ms: int | msgspec.UnsetType = msgspec.UNSET
    consumer_expiry_ms: int | msgspec.UnsetType = msgspec.UNSET


class AlterFlow(OwnFlow, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Body of ``PATCH /v1/flows/{flow}``: the version that the caller has seen, and what changes."""

    version: int


class DeclareTable(msgspec.Struct):
    """Body of ``PUT /v1/tables/{table}``; ``flow`` for stream tables only."""

    kind: Literal["resident", "stream"]
    quota_bytes: int | None = None
    flow: OwnFlow | None = None


class TableState(msgspec.Struct):
    """Answer of ``PUT`` and ``GET /v1/tables/{table}``; ``rows`` counts resident rows."""

    name: str
    kind: str
    quota_bytes: int
    rows: int


class RowState(msgspec.Struct):
    """Answer of ``GET /v1/tables/{table}/rows/{key}``; ``commit`` is what the answer reflects."""

    key: str
    value: Any
    version: int
    commit: int


class RowPage(msgspec.Struct):
    """Answer of ``GET /v1/tables/{table}/rows``; ``next`` is null on the last page."""

    rows: list[RowState]
    next: str | None
    commit: int


class ResolveRequest(msgspec.Struct):
    """Body of ``POST /v1/requests/{client_id}/{sequence}/resolve``; may be left out, and need not come from the owner.

    The owner's epoch and first incomplete acknowledge as with an operation, which makes room in the window.
    """

    epoch: int | None = None
    first_incomplete: int = 1


class RequestState(msgspec.Struct, omit_defaults=True):
    """Answer of ``GET /v1/requests/{client_id}/{sequence}`` and of ``POST …/resolve``."""

    state: str
    result: OperationResult | None = None
    traceparent: str | msgspec.UnsetType = msgspec.UNSET


Trend = Literal["ok", "falling_behind", "stalled", "unknown"]


class ConsumerState(msgspec.Struct):
    """One consumer of a flow and how far it is behind.

    ``expired``: it has never moved, and retention waits for it no longer. ``idle_ms``: cluster time since it was made,
    attached or moved last. ``trend``: as the node that answers judges it from what it has seen itself.
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


class FlowState(msgspec.Struct):
    """Answer of ``PUT`` and ``GET /v1/flows/{flow}``.

    Batches ``first_batch``..``last_batch`` are retained (``last_batch`` 0: none was sealed yet). ``items`` counts the
    items of all sealed batches ever, ``open_items`` those not sealed yet. ``version`` rises with every change of the
    flow; ``held`` says what keeps its oldest batch, empty if it has none. ``cluster_identity`` is that of
    ``GET /v1/cluster``: commit numbers of two identities are of two logs.
    """

    flow: str
    source: str
    target: str | None
    version: int
    first_batch: int
    last_batch: int
    items: int
    open_items: int
    watermark: int
    retained_bytes: int
    held: str
    retention_ms: int
    consumer_expiry_ms: int
    max_items: int
    max_bytes: int
    linger_ms: int
    consumers: dict[str, ConsumerState]
    cluster_identity: str = ""


class FlowDeleted(msgspec.Struct):
    """Answer of ``DELETE /v1/flows/{flow}``; a flow of this name begins above ``last_batch``."""

    flow: str
    last_batch: int


class FlowList(msgspec.Struct):
    """Answer of ``GET /v1/flows``."""

    flows: list[FlowState]


class AttachConsumer(msgspec.Struct):
    """Body of ``POST /v1/flows/{flow}/consumers/{name}/attach``."""

    nonce: str


class ConsumerAttached(msgspec.Struct):
    """Answer of ``attach``: the fence to show with each move, and where the cursor stands."""

    fence: int
    cursor: int


class StartConsumer(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/flows/{flow}/consumers/{name}/start``: where it begins, in one of four ways.

    ``start``: the oldest retained batch, what is sealed from now on, or where its cursor stands; ``batch``: with this
    one; ``time_ms``, ``ago_ms``: with what was applied since a cluster time, or in so many milliseconds before now.
    """

    nonce: str
    start: Literal["beginning", "now", "cursor"] | None = None
    batch: int | None = None
    time_ms: int | None = None
    ago_ms: int | None = None


class MoveCursor(msgspec.Struct):
    """Body of ``POST /v1/flows/{flow}/consumers/{name}/cursor``."""

    batch: int
    fence: int
    replay: bool = False


class CursorMoved(msgspec.Struct):
    """Answer of ``cursor``."""

    cursor: int


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
    this node by.
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
