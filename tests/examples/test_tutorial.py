"""The tutorial as a reader follows it: one shell, a cluster of real processes, real kills, a Spark job, the check."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.gateway.local.processes import end_session, session_members
from tests.examples.reader import Reader, blocks_of

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
DEFAULT_PORTS = range(7400, 7406)
LIMIT_S = 600
STOP_S = 20.0


@contextlib.contextmanager
def another_cluster() -> Iterator[None]:
    """The ports that a cluster takes unless it is told otherwise are taken, and nothing answers there."""
    with contextlib.ExitStack() as taken:
        for port in DEFAULT_PORTS:
            there = taken.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # somebody else is there: as good
                there.bind(("127.0.0.1", port))
                there.listen()
        yield


@pytest.mark.spark
@pytest.mark.faults
async def test_tutorial_runs_beside_another_cluster_in_its_order_and_prints_what_it_says(tmp_path: Path) -> None:
    with another_cluster():
        await read(tmp_path)


async def read(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    pipe = asyncio.subprocess.PIPE
    shell = await asyncio.create_subprocess_exec(
        "bash", stdin=pipe, stdout=pipe, cwd=tmp_path, env=environment, start_new_session=True
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            reader = Reader(shell)
            for block in blocks_of(TUTORIAL.read_text()):
                if block.language == "console":
                    continue  # installs
                await reader.paste(block)
        assert shell.stdin is not None
        shell.stdin.close()
        await shell.wait()
    finally:
        for pid in session_members(shell.pid):
            os.kill(pid, signal.SIGTERM)  # `oncegate dev` takes its nodes with it
        end_session(shell.pid, grace_s=STOP_S)
