"""What the kernel was asked to flush, and file systems without room.

No sequential command is acknowledged without a flush on a majority (defect D1). On a full disk writes are refused as
overload, reads go on, nobody dies, and room makes it whole again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from oncegate.proof.check.equipment import SmallDisk
from oncegate.proof.check.errors import Unavailable
from tests.faults.harness.scene import Scene, running, until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

DISK_BYTES = 40 * 1024 * 1024
NAMES = ("n1", "n2", "n3")
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
    traces = {name: tmp_path / f"{name}.strace" for name in NAMES}
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
        counted = {name: flushes()[name] - before[name] for name in NAMES}
        assert acknowledged >= COMMANDS
        # Each waits for the one before, so no flush serves two of them. Which two nodes it is may change, and a slow
        # third node may flush several at once.
        needed = sum(min(count, acknowledged) for count in counted.values())
        assert needed >= 2 * acknowledged, f"{acknowledged} acknowledgements, flushes by node: {counted}"
        await scene.finish()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Scene, dict[str, SmallDisk]]]:
    """A cluster whose nodes have a small file system each below their data directories."""
    directory = tmp_path_factory.mktemp("disks")
    with contextlib.ExitStack() as stack:
        try:
            disks = {name: stack.enter_context(SmallDisk(directory / name, DISK_BYTES)) for name in NAMES}
        except Unavailable as reason:
            pytest.skip(str(reason))
        prefix = {name: disk.prefix for name, disk in disks.items()}
        places = {name: directory / name / "data" for name in NAMES}
        async with running(directory, linked=False, prefix=prefix, places=places) as scene:
            yield scene, disks


async def test_all_disks_full_refuse_writes_as_overload_and_go_on_reading_until_there_is_room(
    small: tuple[Scene, dict[str, SmallDisk]],
) -> None:
    scene, disks = small
    history = scene.client.history
    async with scene.client.loaded(64, size=1000):
        await scene.progress(1000)
        for disk in disks.values():
            disk.fill()

        def refused() -> bool:
            assert all(scene.cluster.is_running(name) for name in scene.cluster.ids), "a full disk ended a node"
            return history.refusals["OVERLOADED"] > 500

        await until(refused, what="writes are refused as OVERLOADED")
        for name in scene.cluster.ids:
            assert isinstance(await scene.client.read(name), int), f"{name} reads nothing on a full disk"
        for disk in disks.values():
            disk.give_back()
        await scene.progress(5000)
    await scene.finish()


@pytest.mark.parametrize("ends", ["runs on", "is killed"])
async def test_follower_with_a_full_disk_stops_nobody_and_catches_up_when_there_is_room(
    small: tuple[Scene, dict[str, SmallDisk]], ends: str
) -> None:
    scene, disks = small
    follower = scene.others(await scene.leader())[0]
    async with scene.client.loaded(64, size=1000):
        await scene.progress(1000)
        disks[follower].fill()
        # More than its prepared segments hold, and less than the file systems of the others.
        await scene.progress(5000)
        assert scene.cluster.is_running(follower), "a full disk ended the node"
        await asyncio.gather(*(scene.client.read(name) for name in scene.others(follower)))
        if ends == "is killed":
            scene.cluster.kill(follower)
        disks[follower].give_back()
        scene.cluster.start(follower)
        await scene.progress(100)
    await scene.finish()
