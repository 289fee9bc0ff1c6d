"""The tutorial as a reader follows it: one shell, a cluster of real processes, real kills, a Spark job, the check."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from oncegate.gateway.local.ports import free_ports, is_free
from oncegate.gateway.local.processes import end_session, session_members
from tests.examples.reader import Reader, blocks_of

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
DEFAULT_PORT = 7400
PORTS = 6
LIMIT_S = 600
STOP_S = 20.0


def first_of_free_ones() -> int:
    """The first of as many ports in a row as ``oncegate dev`` takes."""
    while True:
        (first,) = free_ports(1)
        if all(is_free("127.0.0.1", port) for port in range(first, first + PORTS)):
            return first


@pytest.mark.spark
@pytest.mark.faults
async def test_tutorial_runs_in_its_order_and_prints_what_it_says(tmp_path: Path) -> None:
    first = first_of_free_ones()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ONCEGATE_ENDPOINT": f"http://127.0.0.1:{first}",
    }
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
                text = re.sub(
                    r"(?<=127\.0\.0\.1:)\d+", lambda port: str(int(port[0]) - DEFAULT_PORT + first), block.text
                )
                text = text.replace("oncegate dev ", f"oncegate dev --first-port {first} ")
                await reader.paste(block._replace(text=text))
        assert shell.stdin is not None
        shell.stdin.close()
        await shell.wait()
    finally:
        for pid in session_members(shell.pid):
            os.kill(pid, signal.SIGTERM)  # `oncegate dev` takes its nodes with it
        end_session(shell.pid, grace_s=STOP_S)
