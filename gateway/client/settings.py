"""Bounds and timings of the SDK, with the reason for each default.

Owns: numbers. Knows nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from oncegate.rifl.ids import LEASE_MS_DEFAULT, WINDOW_DEFAULT

Consistency = Literal["linearizable", "session", "stale"]
TableKind = Literal["resident", "stream"]
Full = Literal["wait", "fail"]

TIMEOUT_S_DEFAULT: Final = 30.0
"""Total time an operation may take, waiting for a place and all retries included."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """How operations travel. The defaults suit a cluster one millisecond away.

    Attributes:
        in_flight_max: requests of one session under way at once, 1..16: the client, the leader and its followers work
            at the same time, each on another one.
        pipeline_min: operations that must wait before a further request leaves while one is under way, and the fewest
            to which what waits is divided among requests. Smaller ones cost more than they gain: writes that wait a
            little longer are sent together. While attempts of a request fail, the next one leaves without this
            condition. With an outbox nothing is divided.
        batch_operations_max: operations in one request.
        batch_bytes_max: bytes of one request's body; a larger one is cut in two.
        linger_s: how long an idle session waits for further writes before it sends. 0: not at all.
        range_min: contiguous puts on one stream table from which they travel as a range.
        range_rows_max: rows of one range, and never more than the window: a lost range must fit below what may be
            acknowledged. A range costs the servers mostly the same however long it is.
        connections_max: connections to one node, each with one request at a time; 1..4096. What comes beyond waits its
            turn, first come first served, up to its deadline. More than a node answers at once only makes it slower.
        streams_max: watches and consumptions of flows at once, each with a connection of its own; a further one is
            refused.
        attempt_timeout_s: how long one node may take to answer before the next one is asked.
        backoff_first_s: bound of the first random pause between attempts; doubles with each.
        backoff_cap_s: bound of all of them.
        retry_budget: retries a client may make at once; refilled by a tenth for each success. With an empty budget
            every pause is ``backoff_cap_s``, so that retries do not overload a sick cluster.
        retry_after_cap_s: longest pause that a node may ask for.
    """

    in_flight_max: int = 4
    pipeline_min: int = 128
    batch_operations_max: int = 512
    batch_bytes_max: int = 2**20
    linger_s: float = 0.0
    range_min: int = 8
    range_rows_max: int = 4096
    connections_max: int = 64
    streams_max: int = 1024
    attempt_timeout_s: float = 2.0
    backoff_first_s: float = 0.02
    backoff_cap_s: float = 0.5
    retry_budget: int = 100
    retry_after_cap_s: float = 5.0


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a session; see :meth:`oncegate.gateway.client.Client.session`."""

    lease_ms: int = LEASE_MS_DEFAULT
    window: int = WINDOW_DEFAULT
    full: Full = "wait"
    outbox: str | None = None
    on_unknown: Callable[[Any], Any] | None = None
    on_lost: Callable[[Any], None] | None = None
    renew_lost: bool = False
    in_order: bool = False
