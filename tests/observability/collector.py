"""A collector of OpenTelemetry over real HTTP: decodes what exporters send with OpenTelemetry's own schema."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """What came; faults by its attributes.

    Attributes:
        status: what it answers; spans of requests that it refuses are not taken.
        open: while it is not set, requests wait for an answer.
        asked: requests that have come.
        bodies: what was sent, as it was sent.
        resources: of each group of spans.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Semaphore(0)
        self.bodies: list[bytes] = []
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    def take(self, kind: str, body: bytes) -> int:
        """Take one request; returns the status of its answer."""
        self.asked.release()
        self.open.wait()
        if kind != "application/x-protobuf" or self.status != 200:
            return 415 if self.status == 200 else self.status
        self.bodies.append(body)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append({one.key: one.value.string_value for one in group.resource.attributes})
            self.spans += [span for scope in group.scope_spans for span in scope.spans]
        return 200

    def named(self, name: str) -> list[Any]:
        """Return the spans of a name, in the order in which they began."""
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._held: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._held.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._held.discard(request)
        super().shutdown_request(request)

    def cut_off(self) -> None:
        """Close connections that clients keep, as the end of a process does."""
        for held in list(self._held):
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is what the tests are about."""


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """Run a collector; when the block ends, its port refuses connections."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = collector.take(self.headers["Content-Type"], body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = _Server(("127.0.0.1", port), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        collector.open.set()
        server.shutdown()
        server.server_close()
        server.cut_off()
        thread.join()


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a span or a link."""
    return {
        one.key: one.value.string_value if one.value.HasField("string_value") else one.value.int_value
        for one in of.attributes
    }
