"""Options of the source and the sink: Spark passes texts; this module checks and types them once.

Owns: names, defaults and bounds. Read next: `source`, `sink`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from oncegate.spark_sink.archived_flow import ArchivedFlow
from oncegate.spark_sink.derivation import ROWS_MAX_DEFAULT
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_client import FlowClient
from oncegate.spark_sink.tracing import checked_endpoint
from oncegate.stores.claimed import claimed_store
from oncegate.stores.errors import StoreCode
from oncegate.stores.retry import Retry
from oncegate.stores.write_times import COMMIT_MAX, EPOCH_MAX

Start = int | Literal["earliest", "latest", "cursor"]

BATCHES_PER_TRIGGER_DEFAULT: Final = 16
ROWS_PER_WRITE_DEFAULT: Final = ROWS_MAX_DEFAULT
TIMEOUT_S_DEFAULT: Final = 60
_COUNT_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """The flow to read, and the consumer to read it as.

    | option | meaning |
    |---|---|
    | `endpoints` | base URLs of gateway nodes, separated by commas; none are needed to read an archive alone |
    | `flow` | name of the flow |
    | `consumer` | named consumer whose cursor moves; without it none does |
    | `fence` | fence of an attachment made by the caller, who then also moves the cursor |
    | `timeout_s` | how long one call is retried over the endpoints, default 60 |
    | `archive` | URL of the flow's archive: batches that the gateway has dropped are read there |
    | `cluster` | identity of the cluster whose archive and store these are; default: that of the endpoints |
    """

    endpoints: tuple[str, ...]
    flow: str
    consumer: str | None
    fence: int | None
    timeout_s: int
    archive: str = ""
    cluster: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FlowOptions:
        """Return the checked options; raises BAD_OPTION."""
        archive, cluster = options.get("archive") or "", options.get("cluster") or ""
        alone = bool(archive and cluster)
        named = options.get("endpoints") or "" if alone else _required(options, "endpoints")
        endpoints = tuple(part.strip() for part in named.split(",") if part.strip())
        fence = _number(options, "fence", None, 0, 2**63 - 1)
        timeout_s = _number(options, "timeout_s", TIMEOUT_S_DEFAULT, 0, _COUNT_MAX)
        flow, consumer = _required(options, "flow"), options.get("consumer") or None
        parsed = cls(endpoints, flow, consumer, fence, timeout_s or 0, archive, cluster)
        if fence is not None and parsed.consumer is None:
            raise SinkError(StoreCode.BAD_OPTION, "fence without consumer")
        if parsed.consumer is not None and not endpoints:
            raise SinkError(StoreCode.BAD_OPTION, "a consumer needs endpoints: an archive alone has no cursors")
        return parsed

    def client(self, timeout_s: int | None = None) -> FlowClient | ArchivedFlow:
        """Return a client of the flow; it connects when it is first used, and retries for ``timeout_s`` seconds."""
        retry = Retry(self.timeout_s if timeout_s is None else timeout_s)
        live = FlowClient(self.endpoints, self.flow, retry=retry, cluster=self.cluster) if self.endpoints else None
        if self.archive or live is None:
            return ArchivedFlow(live, self.archive, self.flow, self.cluster)
        return live


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Where to read.

    | option | meaning |
    |---|---|
    | `starting_batch` | first batch: a number, `earliest`, `latest`, `cursor`; see below |
    | `ending_batch` | last batch that is read; default: of a batch read the newest when it starts, of a stream none |
    | `batches_per_trigger` | admission limit of a stream, default 16 |
    | `partitions_max` | how many tasks share a micro-batch, default: cores of the driver |
    | `delivered` | the consumer's cursor when it was attached, if the caller attached it: not read again |

    `latest` reads only what is sealed from now on, `cursor` what comes after the consumer's cursor. The default is
    `cursor` with a consumer, else `earliest`. A checkpoint overrules them all, and must fit the consumer's cursor.
    """

    flow: FlowOptions
    start: Start
    ending_batch: int | None
    batches_per_trigger: int
    partitions_max: int
    delivered: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Return the checked options; raises BAD_OPTION."""
        flow = FlowOptions.parse(options)
        named = options.get("starting_batch") or ("cursor" if flow.consumer else "earliest")
        start: Start
        match named:
            case "earliest" | "latest":
                start = named
            case "cursor" if flow.consumer:
                start = "cursor"
            case _:
                start = _number(options, "starting_batch", None, 1, 2**53) or 1
        return cls(
            flow,
            start,
            _number(options, "ending_batch", None, 1, 2**53),
            _number(options, "batches_per_trigger", BATCHES_PER_TRIGGER_DEFAULT, 1, _COUNT_MAX) or 1,
            _number(options, "partitions_max", os.cpu_count() or 1, 1, _COUNT_MAX) or 1,
            _number(options, "delivered", None, 0, 2**53),
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to write.

    | option | meaning |
    |---|---|
    | `store` | URL of the store (`stores.store.open_store`) |
    | `progress` | file to which a JSON line is appended for each micro-batch |
    | `rows_per_write` | upper bound of the rows made and written at once, default 400,000 |
    | `job` | name under which dead letters are kept, default: the consumer |
    | `stamp` | write timestamp of a replay that revises (`replay`), default 0: each row has its own |
    | `epoch` | the one to write in; default: that of the store's claim, which must be the cluster's |
    | `otlp_endpoint` | URL of a collector for spans of batches with traced items (`tracing`); default: none |
    | `replay` | name of the replay that it is, for its spans; default: none |
    """

    flow: FlowOptions
    store: str
    progress: str | None
    rows_per_write: int
    job: str
    stamp: int
    epoch: int
    otlp_endpoint: str = ""
    replay: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Return the checked options; raises BAD_OPTION; a sink with a consumer needs the fence of its attachment."""
        flow = FlowOptions.parse(options)
        if flow.consumer is not None and flow.fence is None:
            raise SinkError(StoreCode.BAD_OPTION, "a sink that moves a cursor needs the fence of its attachment")
        rows = _number(options, "rows_per_write", ROWS_PER_WRITE_DEFAULT, 1, 10 * _COUNT_MAX)
        job = options.get("job") or flow.consumer or ""
        stamp = _number(options, "stamp", 0, 0, COMMIT_MAX) or 0
        epoch = _number(options, "epoch", 0, 0, EPOCH_MAX) or 0
        store, progress = _required(options, "store"), options.get("progress") or None
        endpoint = options.get("otlp_endpoint") or ""
        traced = checked_endpoint(endpoint) if endpoint else ""
        return cls(flow, store, progress, rows or 1, job, stamp, epoch, traced, options.get("replay") or "")

    def of_present_epoch(self) -> SinkOptions:
        """Return them with identity and epoch looked up, at the gateway and in the store, where they are not given.

        Raises:
            StoreError: STORE_MISMATCH, and as `FlowClient.state`.
        """
        if self.flow.cluster and self.epoch:
            return self
        identity = self.flow.cluster or self.flow.client().state().cluster_identity
        with claimed_store(self.store, identity, epoch=self.epoch) as store:
            return replace(self, flow=replace(self.flow, cluster=identity), epoch=store.claim().epoch)


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise SinkError(StoreCode.BAD_OPTION, f"option {name} is missing")
    return value


def _number(options: Mapping[str, str], name: str, default: int | None, least: int, most: int) -> int | None:
    text = options.get(name)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError as error:
        raise SinkError(StoreCode.BAD_OPTION, f"option {name} is no integer") from error
    if not least <= value <= most:
        raise SinkError(StoreCode.BAD_OPTION, f"option {name} is not in {least}..{most}")
    return value
