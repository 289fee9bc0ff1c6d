"""A consumer that this process attached: its options for source and sink, and the moves of its cursor.

Owns: the nonce of the attachment. Must not know stores. Read next: `source`, `jobs.job`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from oncegate.spark_sink.options import TIMEOUT_S_DEFAULT, FlowOptions


@dataclass(frozen=True, slots=True)
class FlowConsumer:
    """The right to move a consumer's cursor, until another process attaches it.

    Attributes:
        flow: where it reads, its name and fence.
        cursor: the last finished batch when it was attached.
    """

    flow: FlowOptions
    cursor: int

    @classmethod
    def attach(cls, endpoints: str, flow: str, consumer: str, *, timeout_s: int = TIMEOUT_S_DEFAULT) -> FlowConsumer:
        """Take the consumer over; whoever had it before is FENCED at its next move.

        Args:
            endpoints: base URLs of gateway nodes, separated by commas.
            flow: name of the flow.
            consumer: its name; a new one begins at the oldest retained batch.
            timeout_s: how long one call is retried over the endpoints.

        Raises:
            SinkError: BAD_OPTION, FLOW_UNREACHABLE, FLOW_REFUSED.
        """
        named = {"endpoints": endpoints, "flow": flow, "consumer": consumer, "timeout_s": str(timeout_s)}
        options = FlowOptions.parse(named)
        lease = options.client().attach(consumer, secrets.token_hex(16))
        return cls(replace(options, fence=lease.fence), lease.cursor)

    def options(self) -> dict[str, str]:
        """Return the options for ``format("oncegate")``, and for a sink of ours, which then moves the cursor."""
        flow = self.flow
        named = {"endpoints": ",".join(flow.endpoints), "flow": flow.flow, "timeout_s": str(flow.timeout_s)}
        named["archive"] = flow.archive
        if flow.consumer is None or flow.fence is None:
            return named
        return {**named, "consumer": flow.consumer, "fence": str(flow.fence), "delivered": str(self.cursor)}

    def finish(self, done: Any) -> int | None:
        """Mark batches as finished, when what was made of them is durable; idempotent.

        Args:
            done: the number of the last one, or the data frame of a micro-batch, which is then read once more for it.

        Returns:
            The cursor; None for an empty frame.

        Raises:
            SinkError: FENCED, when another process has attached the consumer since; FLOW_UNREACHABLE, FLOW_REFUSED.
        """
        last = done if isinstance(done, int) else done.agg({"batch": "max"}).first()[0]
        if last is None or self.flow.consumer is None or self.flow.fence is None:
            return None
        return self.flow.client().move_cursor(self.flow.consumer, last, self.flow.fence)
