"""What a request costs the node that serves it: processor time with the hot path and without, side by side.

``python -m bench.hot_route [--rounds 15] [--requests 400] [--keyed]``: one connection, then 64 independent ones, each
with a session of its own and one put of 200 bytes a request; ``--keyed``: a ``PUT`` of a row under an idempotency key
instead. Both nodes are clusters of one in processes of their own and differ in one internal argument; rounds alternate
between them. The time is that of all threads of the node (``/proc``), so neither the load generator nor whatever else
runs counts. Prints medians and the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from bench.figures import header
from oncegate.gateway.http.server import running
from oncegate.gateway.local.blocking_http import get, send_json
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.settings import Settings

VALUE: Final = "v" * 198
MSGPACK: Final = "application/vnd.oncegate+msgpack"
START_S: Final = 120.0
Request = Callable[[int], bytes]


async def serve(settings: Settings, *, hot: bool) -> None:
    """Serve until the process is ended."""
    async with running(settings, hot=hot):
        await asyncio.Event().wait()


@contextlib.contextmanager
def node(directory: Path, *, hot: bool) -> Iterator[tuple[int, int]]:
    """Run a node in a process of its own; return its process id and its port."""
    http_port, peer_port = free_ports(2)
    command = [sys.executable, "-m", "bench.hot_route", "--serve", str(directory), str(http_port), str(peer_port)]
    with subprocess.Popen([*command, *(["--hot"] if hot else [])]) as child:
        try:
            end_s = time.monotonic() + START_S
            while get(f"http://127.0.0.1:{http_port}/readyz") is None:
                if child.poll() is not None or time.monotonic() > end_s:
                    raise SystemExit("a node did not start")
            send_json("PUT", f"http://127.0.0.1:{http_port}/v1/tables/rows", {"kind": "resident"}, 10)
            yield child.pid, http_port
        finally:
            child.terminate()


def cpu_ns(pid: int) -> int:
    """Return the processor time of all threads of a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


class Caller:
    """One connection, and the requests that leave on it one after the other."""

    def __init__(self, port: int, request: Request) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._number = 0
        self._answer = b""

    def send(self) -> None:
        """Send the next request."""
        self._number += 1
        self.socket.sendall(self._request(self._number))

    def has_answer(self) -> bool:
        """Read; tell whether the answer is whole. Raises SystemExit for another status than 200."""
        self._answer += self.socket.recv(65536)
        head, blank, body = self._answer.partition(b"\r\n\r\n")
        if not blank or len(body) < int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]):
            return False
        if b" 200 " not in head[:13]:
            raise SystemExit(self._answer.decode())
        self._answer = b""
        return True


def operations(port: int, name: str) -> Request:
    """Open a session; return its requests of one put each."""
    opened = send_json("POST", f"http://127.0.0.1:{port}/v1/sessions", {"nonce": name}, 10)
    client_id = opened["client_id"]
    head = (
        f"POST /v1/operations HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {MSGPACK}\r\nAccept: {MSGPACK}\r\n"
        "User-Agent: bench\r\nContent-Length: "
    ).encode()

    def request(number: int) -> bytes:
        put = {"sequence": number, "op": "put", "table": "rows", "key": f"{name}-{number % 1000}", "value": VALUE}
        body = msgspec.msgpack.encode(
            {"client_id": client_id, "epoch": 1, "first_incomplete": number, "operations": [put]}
        )
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    return request


def keyed(port: int, name: str) -> Request:
    """Return puts of single rows under a key each."""
    body = msgspec.json.encode(VALUE)

    def request(number: int) -> bytes:
        return (
            f"PUT /v1/tables/rows/rows/{name}-{number % 1000} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f'Content-Type: application/json\r\nUser-Agent: bench\r\nIdempotency-Key: "{name}-{number}"\r\n'
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    return request


def run(callers: list[Caller], requests: int) -> None:
    """Keep one request under way on each connection until so many are answered."""
    poll, by_number = select.epoll(), {caller.socket.fileno(): caller for caller in callers}
    for number, caller in by_number.items():
        poll.register(number, select.EPOLLIN)
        caller.send()
    sent, answered = len(callers), 0
    while answered < sent:
        for number, _ in poll.poll():
            caller = by_number[number]
            if caller.has_answer():
                answered += 1
                if sent < requests:
                    sent += 1
                    caller.send()
    poll.close()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--keyed", action="store_true")
    parser.add_argument("--serve", nargs=3, metavar=("DIRECTORY", "HTTP_PORT", "PEER_PORT"))
    parser.add_argument("--hot", action="store_true")
    given = parser.parse_args()
    if given.serve:
        directory, http_port, peer_port = given.serve
        settings = Settings(members=[f"n1=127.0.0.1:{http_port}:{peer_port}"], data_dir=Path(directory) / "n1")
        asyncio.run(serve(settings, hot=given.hot))
        return
    make = keyed if given.keyed else operations
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        nodes = {
            hot: stack.enter_context(node(Path(directory) / str(hot), hot=hot))
            for hot in (False, True)
        }  # fmt: skip
        header("hot route", seed=0, durability="flushed, one node", calibrations={})
        print(f"processor time of the node, us a request; medians of {given.rounds} interleaved rounds")
        for connections in (1, 64):
            callers = {
                hot: [Caller(port, make(port, f"{connections}-{n}")) for n in range(connections)]
                for hot, (_, port) in nodes.items()
            }
            costs: dict[bool, list[float]] = {False: [], True: []}
            requests = given.requests * (1 if connections == 1 else 3)
            for round_ in range(given.rounds + 1):
                for hot, (pid, _) in nodes.items():
                    began = cpu_ns(pid)
                    run(callers[hot], requests)
                    if round_:  # the first one warms up
                        costs[hot].append((cpu_ns(pid) - began) / requests / 1000)
            old, new = (statistics.median(costs[hot]) for hot in (False, True))
            ratios = sorted(b / a for a, b in zip(costs[False], costs[True], strict=True))
            spread = f"{ratios[len(ratios) // 4]:.2f}-{ratios[-1 - len(ratios) // 4]:.2f}"
            print(f"{connections:3} connections: aiohttp {old:6.1f}, hot {new:6.1f}, ratio {new / old:.3f} ({spread})")


if __name__ == "__main__":
    main()
