"""A small HTTP client of a flow: describe it, read batches, attach a consumer, move its cursor.

Owns: one keep-alive connection a thread and endpoint, failover, retries, the translation of answers into typed
errors, and the checks that a batch is whole and the one asked for. Standard library only, so that executors need
nothing but pyarrow. Must not know Spark. Read next: `source`, `sink`.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow as pa

from oncegate.flows.schema import ITEM_SCHEMA, PLAIN_SCHEMA, VERSION
from oncegate.spark_sink.errors import SinkError
from oncegate.stores.errors import StoreCode
from oncegate.stores.retry import Retry

T = TypeVar("T")

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BATCH_BYTES_MAX: Final = 1 << 30
_REREAD_MEMORY: Final = 4096
_RETRYABLE_STATUS: Final = frozenset({408, 421, 425, 429, 500, 502, 503, 504})

_local = threading.local()


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """A consumer's cursor and lag; the lag counts what is sealed and not finished yet.

    ``attached``: an instance ever was; else somebody set the cursor, and nothing was delivered.
    """

    cursor: int
    lag_batches: int
    lag_items: int
    lag_ms: int
    attached: bool = True


@dataclass(frozen=True, slots=True)
class FlowState:
    """A flow: sealed batches ``first_batch`` .. ``last_batch`` are retained; ``last_batch`` 0 = none.

    ``cluster_identity`` says to which log its commit numbers belong: a store must hold the rows of the same.
    ``version`` rises with every change of the flow, 0 where the gateway is of an earlier version.
    """

    first_batch: int
    last_batch: int
    consumers: Mapping[str, ConsumerPosition]
    cluster_identity: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerLease:
    """A consumer's right to move its cursor: a later attach gets a newer fence, and this one is refused."""

    fence: int
    cursor: int


class FlowClient:
    """Talks to any of several equal endpoints; keeps to one as long as it answers.

    ``retry`` says how long each call goes on trying, all calls are idempotent; ``timeout_s`` is for one answer of one
    endpoint. ``cluster``, its identity where the caller knows it: a process that outlives a rebuilt gateway does not
    take the new batches for changed ones.
    """

    def __init__(
        self, endpoints: Sequence[str], flow: str, *, retry: Retry, timeout_s: float = 10.0, cluster: str = ""
    ) -> None:
        if not endpoints or not all(
            urlsplit(e).scheme in ("http", "https") and urlsplit(e).hostname for e in endpoints
        ):
            raise SinkError(StoreCode.BAD_OPTION, "endpoints are URLs http://host:port, at least one")
        self._endpoints = tuple(endpoint.rstrip("/") for endpoint in endpoints)
        self._flow, self._cluster = flow, cluster
        self._base = f"/v1/flows/{quote(flow, safe='')}"
        self._retry = retry
        self._timeout_s = timeout_s
        self._preferred = os.getpid() % len(self._endpoints)

    def state(self) -> FlowState:
        """Return the flow's batches and consumers, and whose they are; raises FLOW_UNREACHABLE, FLOW_REFUSED."""
        return self._call("GET", "", None, _flow_state)

    def batch(self, number: int) -> pa.RecordBatch:
        """Return the items of a sealed batch, columns of `PLAIN_SCHEMA`; checked to be whole and the one asked for.

        Raises RETENTION_EXCEEDED, BATCH_CHANGED (a reread in this process differs), BAD_BATCH, FLOW_UNREACHABLE,
        FLOW_REFUSED.
        """
        return self._call("GET", f"/batches/{number}", None, lambda answer: self._checked_batch(answer, number))

    def attach(self, consumer: str, nonce: str) -> ConsumerLease:
        """Take over the consumer's cursor; a repeated nonce gets the same fence.

        Raises:
            SinkError: FLOW_UNREACHABLE, FLOW_REFUSED.
        """
        path = f"/consumers/{quote(consumer, safe='')}/attach"
        return self._call("POST", path, {"nonce": nonce}, _attachment)

    def move_cursor(self, consumer: str, batch: int, fence: int) -> int:
        """Mark all batches up to ``batch`` as finished, and return the cursor; idempotent.

        Raises:
            SinkError: FENCED, when another instance attached since; FLOW_UNREACHABLE, FLOW_REFUSED.
        """
        path = f"/consumers/{quote(consumer, safe='')}/cursor"
        return self._call("POST", path, {"batch": batch, "fence": fence}, lambda answer: int(_json(answer)["cursor"]))

    def cascade(self, consumer: str, batch: int, part: int, fence: int, writes: Sequence[str], *, last: bool) -> int:
        """Write a part of what derives from a batch to tables of the gateway, and return the cursor; idempotent.

        Args:
            consumer: whose cursor the last part moves.
            batch: the one after the cursor.
            part: its number, from 1; parts come in order.
            fence: of the consumer's newest attachment.
            writes: JSON texts of ``CascadeWrite`` (docs/API.md), in order.
            last: whether no part follows.

        Raises:
            SinkError: FENCED, when another instance attached since; RETENTION_EXCEEDED; FLOW_REFUSED, also for a part
                that was written with another content; FLOW_UNREACHABLE, also while a table is full.
        """
        about = json.dumps({"batch": batch, "part": part, "fence": fence, "last": last})
        body = f'{about[:-1]},"writes":[{",".join(writes)}]}}'
        path = f"/consumers/{quote(consumer, safe='')}/cascade"
        return self._call("POST", path, body.encode(), lambda answer: int(_json(answer)["cursor"]))

    def remove_consumer(self, consumer: str) -> None:
        """Forget a consumer and its cursor, so that retention does not wait for it.

        Raises:
            SinkError: FLOW_UNREACHABLE; FLOW_REFUSED, also where the flow was changed meanwhile.
        """
        version = self.state().version
        self._call("DELETE", f"/consumers/{quote(consumer, safe='')}?version={version}", None, _json)

    def _call(self, method: str, path: str, body: object, read: Callable[[_Answer], T]) -> T:
        """Make one call: try each endpoint in turn, again and again until the deadline."""
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()

        def try_each() -> T:
            last: SinkError | None = None
            for step in range(len(self._endpoints)):
                at = (self._preferred + step) % len(self._endpoints)
                try:
                    result = read(self._exchange(self._endpoints[at], method, self._base + path, payload))
                except SinkError as error:
                    if not error.retryable:
                        raise
                    last = error
                else:
                    self._preferred = at
                    return result
            raise last or SinkError(StoreCode.FLOW_UNREACHABLE, "no endpoint")

        return self._retry.run(try_each, lambda error: isinstance(error, SinkError) and error.retryable)

    def _exchange(self, endpoint: str, method: str, path: str, payload: bytes | None) -> _Answer:
        wants_batch = "/batches/" in path
        headers = {"Accept": "application/vnd.apache.arrow.stream" if wants_batch else "application/json"}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        if token := os.environ.get("ONCEGATE_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        connection = _connection(endpoint, self._timeout_s)
        try:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            body = response.read(_BATCH_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            _drop(endpoint)
            raise SinkError(StoreCode.FLOW_UNREACHABLE, f"{endpoint}: {type(error).__name__} {error}") from error
        if len(body) > _BATCH_BYTES_MAX:
            _drop(endpoint)
            raise SinkError(StoreCode.FLOW_REFUSED, f"{endpoint}: an answer of more than {_BATCH_BYTES_MAX} bytes")
        answer = _Answer(response.status, body, response.headers.get("ETag", ""), endpoint)
        if response.status != http.HTTPStatus.OK:
            raise _refusal(answer, batch=wants_batch)
        return answer

    def _checked_batch(self, answer: _Answer, number: int) -> pa.RecordBatch:
        batch = _arrow_batch(answer, self._flow, number)
        # Remember the checksum of whole batches only. If a node sends no ETag, use a checksum of the bytes.
        seen: dict[tuple[str, str, int], tuple[str, int]] = _local.__dict__.setdefault("seen", {})
        mark = (answer.etag, zlib.crc32(answer.body))
        if seen.setdefault((self._cluster, self._flow, number), mark) != mark:
            raise SinkError(StoreCode.BATCH_CHANGED, f"batch {number} of {self._flow} at {answer.endpoint}")
        if len(seen) > _REREAD_MEMORY:
            seen.pop(next(iter(seen)))
        return batch


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    etag: str
    endpoint: str


def _connection(endpoint: str, timeout_s: float) -> http.client.HTTPConnection:
    """The connection of this thread of this process: one made before a fork would be shared with the parent."""
    if _local.__dict__.get("pid") != os.getpid():
        _local.pid, _local.connections = os.getpid(), {}
    connections: dict[str, http.client.HTTPConnection] = _local.connections
    if endpoint not in connections:
        parts = urlsplit(endpoint)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connections[endpoint] = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    return connections[endpoint]


def _drop(endpoint: str) -> None:
    _local.connections.pop(endpoint).close()


def close_connections() -> None:
    """Close this thread's connections; the next call opens new ones."""
    for endpoint in list(_local.__dict__.get("connections", ())):
        _drop(endpoint)


def _refusal(answer: _Answer, *, batch: bool) -> SinkError:
    """The typed error of an answer that is not 200."""
    try:
        problem: dict[str, Any] = json.loads(answer.body)
        code, detail = str(problem.get("code", "")), str(problem.get("detail") or problem.get("title") or "")
    except (ValueError, AttributeError):
        problem, code, detail = {}, "", ""
    text = f"{answer.endpoint}: {answer.status} {code} {detail}".rstrip()
    if code in (StoreCode.FENCED, StoreCode.RETENTION_EXCEEDED):
        return SinkError(StoreCode(code), text)
    # A node that lags may not know a batch yet that another node has announced.
    again = bool(problem.get("retryable", answer.status in _RETRYABLE_STATUS)) or (
        batch and answer.status == http.HTTPStatus.NOT_FOUND
    )
    return SinkError(StoreCode.FLOW_UNREACHABLE if again else StoreCode.FLOW_REFUSED, text)


def _json(answer: _Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except ValueError as error:
        raise SinkError(StoreCode.FLOW_REFUSED, f"{answer.endpoint}: the answer is no JSON") from error
    if not isinstance(found, dict):
        raise SinkError(StoreCode.FLOW_REFUSED, f"{answer.endpoint}: the answer is no object")
    return found


def _flow_state(answer: _Answer) -> FlowState:
    found = _json(answer)
    try:
        consumers = {
            name: ConsumerPosition(
                int(state["cursor"]),
                int(state["lag_batches"] or 0),
                int(state["lag_items"] or 0),
                int(state["lag_ms"] or 0),
                bool(state.get("attached", True)),
            )
            for name, state in found.get("consumers", {}).items()
        }
        first, last = int(found["first_batch"]), int(found["last_batch"])
        described = FlowState(first, last, consumers, str(found["cluster_identity"]), int(found.get("version", 0)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SinkError(StoreCode.FLOW_REFUSED, f"{answer.endpoint}: the flow is described without {error}") from error
    if not described.cluster_identity:  # its first leader is about to give it one
        raise SinkError(StoreCode.FLOW_UNREACHABLE, f"{answer.endpoint}: the cluster has no identity yet")
    return described


def _attachment(answer: _Answer) -> ConsumerLease:
    found = _json(answer)
    return ConsumerLease(int(found["fence"]), int(found["cursor"]))


def _arrow_batch(answer: _Answer, flow: str, number: int) -> pa.RecordBatch:
    def bad(why: str) -> SinkError:
        return SinkError(StoreCode.BAD_BATCH, f"batch {number} of {flow} at {answer.endpoint}: {why}")

    # A stream cut between two messages looks like a shorter one; only its end mark is missing.
    if not answer.body.endswith(_END_OF_STREAM):
        raise bad("cut short")
    try:
        table = pa.ipc.open_stream(answer.body).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise bad(str(error)) from error
    about = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    expected = {"oncegate.version": str(VERSION), "oncegate.flow": flow, "oncegate.batch": str(number)}
    if any(about.get(name) != value for name, value in expected.items()):
        raise bad(f"says it is { ({name: about.get(name) for name in expected}) }")
    if not table.schema.remove_metadata().equals(ITEM_SCHEMA):
        raise bad("other columns than version 1 has")
    commits = np.asarray(table.column("commit"))
    if len(commits) == 0 or commits[0] < 1 or np.any(commits[1:] <= commits[:-1]):
        raise bad("commit numbers do not ascend")
    return table.cast(PLAIN_SCHEMA).combine_chunks().to_batches(max_chunksize=table.num_rows)[0]
