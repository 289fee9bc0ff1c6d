"""Two calibrations of a run: what the disk takes for a flush, what this machine takes for an HTTP request.

Owns: ``fdatasync`` of 4 KiB, and bare aiohttp POSTs a second. Figures of different machines compare by their ratio to
these. ``python -m bench.calibrate`` prints both.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from bench.children import serving
from bench.figures import Latency

BLOCK_BYTES: Final = 4096
BODY: Final = b"x" * 200


def fdatasync_4k(directory: Path, samples: int = 500) -> Latency:
    """Time overwrites of 4 KiB, each followed by ``fdatasync``, in a file whose blocks are written already."""
    path = directory / "calibration"
    block = os.urandom(BLOCK_BYTES)
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.pwrite(file, bytes(samples * BLOCK_BYTES), 0)
        os.fsync(file)
        times: list[float] = []
        for number in range(samples):
            began = time.perf_counter()
            os.pwrite(file, block, number * BLOCK_BYTES)
            os.fdatasync(file)
            times.append(time.perf_counter() - began)
        return Latency.of(times)
    finally:
        os.close(file)
        path.unlink()


async def _answer(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


def _serve() -> None:
    """Serve POSTs on a free port, printed first, until standard input closes."""

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/", _answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()

    asyncio.run(run())


async def _load(port: int, connections: int, seconds: float) -> float:
    count = 0
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
        until = time.perf_counter() + seconds

        async def one() -> None:
            nonlocal count
            while time.perf_counter() < until:
                async with http.post(f"http://127.0.0.1:{port}/", data=BODY) as answer:
                    await answer.read()
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(connections)))
        return count / (time.perf_counter() - began)


def bare_posts(connections: int = 64, seconds: float = 3.0) -> float:
    """Return aiohttp POSTs of 200 bytes a second: one client process, one server process, nothing behind it."""
    with serving("bench.calibrate", "--serve") as port:
        return asyncio.run(_load(int(port), connections, seconds))


def main() -> None:
    """Print both."""
    if "--serve" in sys.argv:
        _serve()
        return
    with tempfile.TemporaryDirectory() as directory:
        flush = fdatasync_4k(Path(directory))
    print(f"fdatasync of 4 KiB: p50 {flush.p50_ms:.3f} ms, p99 {flush.p99_ms:.3f} ms, {flush.samples} samples")
    print(f"bare aiohttp POSTs: {bare_posts():,.0f}/s with 64 connections")


if __name__ == "__main__":
    main()
