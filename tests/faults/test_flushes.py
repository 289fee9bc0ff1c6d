"""What the kernel was asked to do: no sequential command is acknowledged without a flush on a majority (defect D1)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.harness.scene import running

pytestmark = pytest.mark.faults

COMMANDS = 200
# Of the segment in use: the next one has another name while it is made. A call that another thread interrupts takes two
# lines, of which the second is not counted.
FLUSH = re.compile(r"^\d+ +(?:fdatasync|fsync)\(\d+<[^>]*/journal-\d+\.segment>", re.MULTILINE)


def tracing_is_possible(path: Path) -> str | None:
    """Why system calls cannot be traced here, or None."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-f", "-o", str(path), "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() or "strace may not trace" if tried.returncode else None


async def test_each_sequential_command_is_flushed_on_a_majority_before_its_acknowledgement(tmp_path: Path) -> None:
    if (reason := tracing_is_possible(tmp_path / "tried")) is not None:
        pytest.skip(reason)
    names = ("n1", "n2", "n3")
    traces = {name: tmp_path / f"{name}.strace" for name in names}
    prefix = {
        name: ("strace", "-f", "-qq", "-y", "-e", "trace=fdatasync,fsync", "-o", str(path))
        for name, path in traces.items()
    }
    async with running(tmp_path / "cluster", linked=False, prefix=prefix, config={}) as scene:

        def flushes() -> dict[str, int]:
            return {name: len(FLUSH.findall(path.read_text())) for name, path in traces.items()}

        history = scene.client.history
        before, done = flushes(), history.commands
        async with scene.client.loaded(1):
            await scene.progress(COMMANDS)
        acknowledged = history.commands - done
        counted = {name: flushes()[name] - before[name] for name in names}
        assert acknowledged >= COMMANDS
        # Each waits for the one before, so no flush serves two of them. Which two nodes it is may change, and a slow
        # third node may flush several at once.
        needed = sum(min(count, acknowledged) for count in counted.values())
        assert needed >= 2 * acknowledged, f"{acknowledged} acknowledgements, flushes by node: {counted}"
        await scene.finish()
