"""Spans of a job: what became of each flow batch that holds a traced item, linked to the traces of these items.

Owns: names, attributes and links of a job's spans. Imports OpenTelemetry only where a job has a collector. Must not
know Spark or a store. Read next: `span_sender`, `applying`.

| span | kind | from | to |
|---|---|---|---|
| ``oncegate batch``, of a replay ``oncegate replay`` | consumer | the task asks for the batch | its rows are durable |
| ``oncegate read`` | internal | the task asks for the batch | it is whole: gateway, Spark's way, other process |
| ``oncegate derive`` | internal | the derivation is asked for more | rows to write, or the end |
| ``oncegate write``, ``update``, ``delete`` | client | rows of one table leave | the store has or refuses them |

An attempt at a batch is a trace of its own, for a batch has no single parent. It links to the contexts that wrote its
items: sampled ones only, the first 32 in commit order, each once. A batch without any has no spans. No span has a key,
a value or a text of an error, which may quote both: faults are told by their code.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.applying import UNWATCHED, Watch
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.errors import SinkError
from oncegate.stores.errors import BadRows, StoreCode, StoreError
from oncegate.stores.retry import repeated
from oncegate.stores.tables import StoreTable
from oncegate.version import installing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link

    from oncegate.spark_sink.span_sender import SpanSender

_log = logging.getLogger(__name__)

LINKS_MAX: Final = 32
STEPS_MAX: Final = 64
"""Child spans of one batch; those beyond are counted in ``oncegate.steps_left_out``."""
_SAMPLED: Final = r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]$"
_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.http"

Told: TypeAlias = dict[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Where a job's spans go, and what all of them say.

    Attributes:
        endpoint: URL of the collector, ``http://127.0.0.1:4318/v1/traces`` say.
        cluster: identity of the cluster whose flow it is.
        job: name of the job.
        store: URL of the store without options and users.
        replay: name of the replay, empty for the job itself.
        attempt: which attempt at the same task it is, from 1.
    """

    endpoint: str
    cluster: str = ""
    job: str = ""
    store: str = ""
    replay: str = ""
    attempt: int = 1


def checked_endpoint(url: str) -> str:
    """Return the URL of a collector; raises BAD_OPTION, where it is none or OpenTelemetry is not installed."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        fits = False
    if not fits:
        raise SinkError(
            StoreCode.BAD_OPTION, "otlp_endpoint is no http:// or https:// URL of a collector, or names a user"
        )
    if not _installed():
        raise SinkError(StoreCode.BAD_OPTION, f"otlp_endpoint needs OpenTelemetry: {installing('otlp')}")
    return url


def _installed() -> bool:
    try:
        return find_spec(_EXPORTER) is not None
    except ImportError:
        return False


class Untraced:
    """A task without a collector."""

    @contextmanager
    def batch(self, batch: FlowBatch, asked_s: float) -> Iterator[Watch]:
        """See `TaskSpans.batch`."""
        yield UNWATCHED

    def settle(self) -> None:
        """See `TaskSpans.settle`."""

    def take_dropped(self) -> int:
        """See `TaskSpans.take_dropped`."""
        return 0


class TaskSpans:
    """Makes the spans of one task's batches; what goes wrong in here is logged and fails nothing.

    Args:
        traced: what all spans say.
        provider: makes them.
        sender: of this process, to which the provider gives them.
    """

    def __init__(self, traced: Traced, provider: TracerProvider, sender: SpanSender) -> None:
        self._traced, self._provider, self._sender = traced, provider, sender

    @contextmanager
    def batch(self, batch: FlowBatch, asked_s: float) -> Iterator[Watch]:
        """Watch what is done to a batch, and send its spans when the block ends, also by an error.

        Args:
            batch: whole.
            asked_s: when the task asked for it, by `time.perf_counter`.
        """
        watched = _Watched(asked_s, urlsplit(self._traced.store).scheme)
        contexts, left_out = _linked(batch)
        if not contexts:
            yield UNWATCHED
            return
        fault = ""
        try:
            yield watched
        except Exception as error:
            fault = _named(error)
            raise
        finally:
            try:
                self._tell(batch, watched, contexts, left_out, fault)
            except Exception:  # noqa: BLE001 - a job never fails for its spans
                _log.exception("spans of batch %d could not be made", batch.number)

    def settle(self) -> None:
        """Wait for the collector, as long as `span_sender` allows."""
        self._sender.settle()

    def take_dropped(self) -> int:
        """Return how many spans this process has dropped since the last call: a task that fails leaves them to tell."""
        return self._sender.take_dropped()

    def _tell(
        self, batch: FlowBatch, watched: _Watched, contexts: Mapping[str, int], left_out: int, fault: str
    ) -> None:
        from opentelemetry import context, trace

        tracer = self._provider.get_tracer("oncegate.job")
        traced, done_s = self._traced, time.perf_counter()
        told: Told = {
            "messaging.system": "oncegate",
            "messaging.operation.type": "process",
            "messaging.destination.name": batch.flow,
            "messaging.consumer.group.name": traced.job,
            "messaging.batch.message_count": batch.items.num_rows,
            "oncegate.batch": batch.number,
            "oncegate.rows": watched.rows,
            "oncegate.dead_letters": watched.dead_letters,
            "oncegate.store": traced.store,
            "oncegate.attempt": traced.attempt,
            "oncegate.links_left_out": left_out,
            "oncegate.steps_left_out": watched.left_out,
        }
        if traced.replay:
            told["oncegate.replay"] = traced.replay
        links = [_link(traceparent, commit) for traceparent, commit in contexts.items()]
        alone = context.Context()  # not below whatever span this process may have: the batch is a trace of its own
        root = tracer.start_span(
            "oncegate replay" if traced.replay else "oncegate batch",
            alone,
            trace.SpanKind.CONSUMER,
            _with_fault(told, fault),
            links,
            watched.ns(watched.asked_s),
        )
        below = trace.set_span_in_context(root, alone)
        for step in watched.steps:
            kind = trace.SpanKind.CLIENT if "db.system.name" in step.told else trace.SpanKind.INTERNAL
            span = tracer.start_span(
                step.name, below, kind, _with_fault(step.told, step.fault), start_time=watched.ns(step.began_s)
            )
            if step.fault:
                span.set_status(trace.StatusCode.ERROR)
            span.end(watched.ns(step.ended_s))
        if fault:
            root.set_status(trace.StatusCode.ERROR)
        root.end(watched.ns(done_s))
        self._sender.send()


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    began_s: float
    ended_s: float
    told: Told = field(default_factory=dict)
    fault: str = ""


class _Watched(Watch):
    """What was done to one batch, by `time.perf_counter`."""

    def __init__(self, asked_s: float, system: str) -> None:
        now_s = time.perf_counter()
        self.asked_s = asked_s
        self.steps = [_Step("oncegate read", asked_s, now_s)]
        self.rows = self.dead_letters = self.left_out = 0
        self._system = system
        self._epoch_ns = time.time_ns() - int(now_s * 1e9)

    def ns(self, at_s: float) -> int:
        """Return a time as spans have it."""
        return self._epoch_ns + int(at_s * 1e9)

    def derived(self, began_s: float, ended_s: float) -> None:
        """See `Watch.derived`."""
        self._add(_Step("oncegate derive", began_s, ended_s))

    @contextmanager
    def write(self, change: str, table: StoreTable, rows: int) -> Iterator[None]:
        """See `Watch.write`."""
        began_s, repeated_before = time.perf_counter(), repeated()
        refused, fault = 0, ""
        try:
            yield
        except BadRows as error:
            refused = len(error.rejected)
            raise
        except Exception as error:
            fault = _named(error)
            raise
        finally:
            told: Told = {
                "db.system.name": self._system,
                "db.operation.name": change,
                "db.collection.name": table.name,
                "oncegate.rows": rows,
                "oncegate.rows_refused": refused,
                "oncegate.attempts": 1 + repeated() - repeated_before,
            }
            self._add(_Step(f"oncegate {change}", began_s, time.perf_counter(), told, fault))
            if not fault and table.name == DEAD_LETTERS.name:
                self.dead_letters += rows - refused
            elif not fault:
                self.rows += rows - refused

    def _add(self, step: _Step) -> None:
        if len(self.steps) < STEPS_MAX:
            self.steps.append(step)
        else:
            self.left_out += 1


def _linked(batch: FlowBatch) -> tuple[dict[str, int], int]:
    try:
        return _contexts(batch)
    except Exception:  # noqa: BLE001 - a job never fails for its spans
        _log.exception("traces of batch %d could not be read", batch.number)
        return {}, 0


def _contexts(batch: FlowBatch) -> tuple[dict[str, int], int]:
    """The first sampled contexts of the items with the commit of the first item of each, and how many more there are.

    Items of an archive, or of a store that somebody else filled, may have any text there.
    """
    commits, found = batch.items.column("commit"), batch.items.column("traceparent")
    if found.null_count == len(found):
        return {}, 0
    seen = pc.fill_null(pc.match_substring_regex(found, _SAMPLED), False)
    pairs = pa.table({"context": found.filter(seen), "commit": commits.filter(seen)})
    firsts = pairs.group_by("context", use_threads=False).aggregate([("commit", "min")]).sort_by("commit_min")
    firsts = firsts.filter(pc.invert(pc.match_substring_regex(firsts.column("context"), "^00-0{32}-|-0{16}-")))
    chosen = firsts.slice(0, LINKS_MAX)
    linked = zip(chosen.column("context").to_pylist(), chosen.column("commit_min").to_pylist(), strict=True)
    return dict(linked), firsts.num_rows - chosen.num_rows


def _link(traceparent: str, commit: int) -> Link:
    from opentelemetry.trace import Link, SpanContext, TraceFlags

    _, trace_id, span_id, _ = traceparent.split("-")
    context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(1))
    return Link(context, {"oncegate.commit": commit})


def _named(error: Exception) -> str:
    """A code, or the kind of the error: its text may quote a row."""
    return str(error.code) if isinstance(error, StoreError) else type(error).__name__


def _with_fault(told: Told, fault: str) -> Told:
    return {**told, "error.type": fault} if fault else told


def task_spans(traced: Traced) -> TaskSpans | Untraced:
    """Return what makes a task's spans; `Untraced` without an endpoint, or without OpenTelemetry in this process."""
    if not traced.endpoint:
        return Untraced()
    try:
        from oncegate.spark_sink.span_sender import of_process

        provider, sender = of_process(os.getpid(), traced.endpoint, traced.cluster)
    except ImportError as missing:
        _log.warning("no spans: %s is not installed in this executor; %s", missing.name, installing("otlp"))
        return Untraced()
    return TaskSpans(traced, provider, sender)
