"""A gateway's flow interface over HTTP, in memory: what the source and the sink are tested against.

Owns: batches, consumers and fences as API.md describes them, and faults on request. One `FakeFlow` may be served by
several `FakeNode`s, as a cluster serves one flow.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import google_crc32c
import pyarrow as pa

from oncegate.flows.schema import batch_schema

CLUSTER = "c0ffee"
"""Identity of the cluster that every fake node belongs to."""
Item = tuple[int, str, str | None]
"""Commit number, key, value."""


@dataclass
class Consumer:
    cursor: int = 0
    fence: int = 0
    nonces: dict[str, int] = field(default_factory=dict)


class FakeFlow:
    """The replicated side: sealed batches and cursors."""

    def __init__(self, name: str = "timeline", table: str = "messages") -> None:
        self.name = name
        self.table = table
        self.cluster_identity = CLUSTER
        self.lock = threading.Lock()
        self.first_batch = 1
        self.batches: dict[int, bytes] = {}
        self.items: dict[int, int] = {}
        self.consumers: dict[str, Consumer] = {}
        self.moves: list[tuple[str, int, int]] = []

    @property
    def last_batch(self) -> int:
        return max(self.batches, default=0)

    def seal(self, items: Iterable[Item], traceparents: Sequence[str | None] = ()) -> int:
        """Seal a batch of these items, with a trace context each or none at all, and return its number."""
        with self.lock:
            number = self.last_batch + 1
            self.batches[number], self.items[number] = encode(self.name, self.table, number, list(items), traceparents)
            return number

    def seal_all(self, items: list[Item], per_batch: int) -> None:
        for at in range(0, len(items), per_batch):
            self.seal(items[at : at + per_batch])

    def drop_before(self, number: int) -> None:
        """Let retention overtake every batch below ``number``."""
        with self.lock:
            self.first_batch = number
            for old in [n for n in self.batches if n < number]:
                del self.batches[old]

    def attach(self, name: str, nonce: str) -> Consumer:
        with self.lock:
            consumer = self.consumers.setdefault(name, Consumer())
            if nonce not in consumer.nonces:
                consumer.fence += 1
                consumer.nonces[nonce] = consumer.fence
            return Consumer(consumer.cursor, consumer.nonces[nonce])

    def move(self, name: str, batch: int, fence: int) -> int | None:
        """Move a cursor; None when the fence is not the newest."""
        with self.lock:
            consumer = self.consumers.setdefault(name, Consumer())
            if fence != consumer.fence:
                return None
            consumer.cursor = max(consumer.cursor, batch)
            self.moves.append((name, batch, fence))
            return consumer.cursor

    def remove(self, name: str) -> None:
        with self.lock:
            self.consumers.pop(name, None)

    def describe(self) -> dict[str, Any]:
        with self.lock:
            last = self.last_batch
            return {
                "flow": self.name,
                "cluster_identity": self.cluster_identity,
                "source": self.table,
                "version": 3,
                "first_batch": self.first_batch,
                "last_batch": last,
                "items": sum(self.items.values()),
                "consumers": {
                    name: {
                        "cursor": consumer.cursor,
                        "lag_batches": last - consumer.cursor,
                        "lag_items": sum(n for number, n in self.items.items() if number > consumer.cursor),
                        "lag_ms": 0,
                    }
                    for name, consumer in self.consumers.items()
                },
            }


LOST = object()
"""A request that came, and was forgotten."""


class FakeNode:
    """One node that serves a flow; faults are switched by its attributes.

    Attributes:
        refuse: answer every request with 503, retryable.
        damage: applied to the body of each batch that goes out.
        before_batch: called with the number before a batch is answered.
        at_cursor: called with "asked" before a cursor moves, which it does not when that returns `LOST`, and with
            "moved" after it and before the answer.
        requests: method and path of every request so far.
    """

    def __init__(self, flow: FakeFlow) -> None:
        self.flow = flow
        self.refuse = False
        self.damage: Callable[[bytes], bytes] = lambda body: body
        self.before_batch: Callable[[int], object] = lambda number: None
        self.at_cursor: Callable[[str], object] = lambda moment: None
        self.requests: list[tuple[str, str]] = []
        node = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_GET(self) -> None:
                node.serve(self, None)

            def do_POST(self) -> None:
                node.serve(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def do_DELETE(self) -> None:
                node.serve(self, None)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def serve(self, request: BaseHTTPRequestHandler, body: dict[str, Any] | None) -> None:
        self.requests.append((request.command, request.path))
        status, headers, payload = self._answer(request.path, body)
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(payload))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(payload)
        request.wfile.flush()

    def _answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, str], bytes]:
        flow, base = self.flow, f"/v1/flows/{self.flow.name}"
        if self.refuse:
            return problem(503, "NOT_READY", retryable=True)
        if path == base:
            return 200, {"Content-Type": "application/json"}, json.dumps(flow.describe()).encode()
        path, _, query = path.partition("?")
        parts = path.removeprefix(base).split("/")[1:]
        match parts:
            case ["batches", text]:
                number = int(text)
                self.before_batch(number)
                if number < flow.first_batch:
                    return problem(410, "RETENTION_EXCEEDED", retryable=False)
                if number not in flow.batches:
                    return problem(404, "NOT_FOUND", retryable=False)
                payload = self.damage(flow.batches[number])
                etag = f'"crc32c-{google_crc32c.value(flow.batches[number]):08x}"'
                return 200, {"Content-Type": "application/vnd.apache.arrow.stream", "ETag": etag}, payload
            case ["consumers", name] if query == "version=3":
                flow.remove(name)
                return 200, {"Content-Type": "application/json"}, json.dumps(flow.describe()).encode()
            case ["consumers", name, "attach"] if body is not None:
                consumer = flow.attach(name, body["nonce"])
                answer = {"fence": consumer.fence, "cursor": consumer.cursor}
                return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()
            case ["consumers", name, "cursor"] if body is not None:
                if self.at_cursor("asked") is LOST:
                    return problem(503, "OVERLOADED", retryable=True)
                cursor = flow.move(name, body["batch"], body["fence"])
                self.at_cursor("moved")
                if cursor is None:
                    return problem(410, "FENCED", retryable=False)
                return 200, {"Content-Type": "application/json"}, json.dumps({"cursor": cursor}).encode()
        return problem(404, "NOT_FOUND", retryable=False)


@contextmanager
def serving(flow: FakeFlow) -> Iterator[FakeNode]:
    """Serve a flow as long as the context is open."""
    node = FakeNode(flow)
    try:
        yield node
    finally:
        node.close()


def problem(status: int, code: str, *, retryable: bool) -> tuple[int, dict[str, str], bytes]:
    body = {"status": status, "title": code, "code": code, "outcome": "not_applied", "retryable": retryable}
    return status, {"Content-Type": "application/problem+json"}, json.dumps(body).encode()


def encode(
    flow: str, table: str, number: int, items: list[Item], traceparents: Sequence[str | None] = ()
) -> tuple[bytes, int]:
    """Return a batch as the gateway serves it, and its number of items."""
    columns = [
        pa.array([commit for commit, _, _ in items], pa.int64()),
        pa.array([key for _, key, _ in items], pa.string()),
        pa.array([value for _, _, value in items], pa.string()),
        pa.array([1_700_000_000_000 + commit for commit, _, _ in items], pa.int64()),
        pa.array([7] * len(items), pa.int64()),
        pa.array([commit for commit, _, _ in items], pa.int64()),
        pa.array(traceparents or [None] * len(items), pa.string()).dictionary_encode(),
    ]
    schema = batch_schema(flow, table, number)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return out.getvalue().to_pybytes(), len(items)
