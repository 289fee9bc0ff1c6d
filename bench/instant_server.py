"""A server that answers the SDK at once, with valid answers and nothing behind them: only the client's cost counts.

Owns: the answers. It checks nothing, keeps nothing but a commit number, and speaks as much HTTP as the SDK sends.
Used by :mod:`bench.sdk_cost`; ``python -m bench.instant_server`` prints its address and serves until its input closes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import msgspec

from oncegate.gateway import wire

_ENCODE: Final = msgspec.msgpack.Encoder().encode


class _Numbered(msgspec.Struct):
    sequence: int


class _Operations(msgspec.Struct):
    operations: list[_Numbered]


class _Rows(msgspec.Struct):
    keys: list[msgspec.Raw]


_OPERATIONS: Final = msgspec.msgpack.Decoder(_Operations)
_ROWS: Final = msgspec.msgpack.Decoder(_Rows)


class InstantServer(asyncio.Protocol):
    """One connection; requests come one after another."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._commit = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request that is whole."""
        buffer = self._buffer
        buffer += data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            first, *lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            whole = end + 4 + int(fields.get("content-length", 0))
            if len(buffer) < whole:
                return
            body = bytes(buffer[end + 4 : whole])
            del buffer[:whole]
            method, path, _ = first.split(" ")
            self._answer(method, path, fields, body)

    def _answer(self, method: str, path: str, fields: dict[str, str], body: bytes) -> None:
        if path == "/v1/operations":
            verdicts = []
            for operation in _OPERATIONS.decode(body).operations:
                self._commit += 1
                verdicts.append(
                    wire.OperationResult(
                        operation.sequence, "applied", commit=self._commit, version=self._commit, replayed=False
                    )
                )
            self._send(wire.MSGPACK, _ENCODE(wire.OperationsResponse(verdicts, 60_000)))
        elif path.endswith("/ranges"):
            first, count = int(fields["oncegate-first-sequence"]), len(_ROWS.decode(body).keys)
            part = wire.RangeResult(first, first + count - 1, "applied", commit=self._commit + 1, replayed=False)
            self._commit += count
            self._send(wire.MSGPACK, _ENCODE(wire.RangeResponse([part], 60_000)))
        elif path == "/v1/sessions":
            opened = wire.SessionOpened("0000000000000001", 1, 600_000, msgspec.json.decode(body)["window"])
            self._send(wire.JSON, msgspec.json.encode(opened))
        elif "/rows/" in path:
            self._send(wire.JSON, b'{"key":"k","value":1,"version":1,"commit":1}')
        elif path.startswith("/v1/tables/"):
            kind = "stream" if "events" in path else "resident"
            name = path.rpartition("/")[2]
            self._send(wire.JSON, msgspec.json.encode({"name": name, "kind": kind, "rows": 0, "max_rows": 10}))
        else:
            self._send(wire.JSON, b'{"lease_ms_left": 600000}')

    def _send(self, kind: str, body: bytes) -> None:
        self._transport.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{wire.H_COMMIT}: {self._commit}\r\n"
            f"Content-Length: {len(body)}\r\nDate: Mon, 23 Nov 2026 08:00:00 GMT\r\n"
            f"Server: instant\r\n\r\n".encode()
            + body
        )


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(InstantServer, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
