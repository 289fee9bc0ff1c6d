"""A file that changed while its node was down: the node refuses to serve and says where, or loses nothing.

One cluster for the whole table. The damaged directory is a copy of a real node's, taken after kill -9; each damage
starts a node process on it beside the two others, which go on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from oncegate.proof.check import damage
from tests.faults.harness.scene import Scene, running, until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

VICTIM = "n1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broken(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Scene, Path]]:
    """A cluster of which one node is down, and a copy of that node's directory, several segments long."""
    directory = tmp_path_factory.mktemp("corruption")
    async with running(directory, linked=False) as scene:
        async with scene.client.loaded(64, size=1000):
            data = scene.cluster.data(VICTIM)

            def enough() -> bool:
                used = damage.used(data) if len(damage.segments(data)) >= 4 else []
                return len(used) >= 3 and len(damage.records(used[-1])) >= 9

            await until(enough, what="three segments with records, and a spare")
            scene.cluster.kill(VICTIM)
            await scene.progress(64)
        kept = directory / "kept"
        shutil.copytree(scene.cluster.data(VICTIM), kept)
        yield scene, kept
        async with scene.client.loaded(8):
            await scene.progress(8)
        await scene.finish(*scene.others(VICTIM))


async def test_table_covers_every_kind_of_file_there_is(broken: tuple[Scene, Path]) -> None:
    _, kept = broken
    unknown = [path.name for path in kept.iterdir() if not any(path.match(kind) for kind in damage.KINDS)]
    assert not unknown, "these files have no damages in proof/check/damage.py"


@pytest.mark.parametrize("case", damage.ALL, ids=str)
async def test_damaged_node_refuses_and_names_the_file_or_loses_nothing(
    broken: tuple[Scene, Path], case: damage.Damage
) -> None:
    scene, kept = broken
    cluster = scene.cluster
    directory = cluster.data(VICTIM)
    cluster.kill(VICTIM)
    shutil.rmtree(directory)
    shutil.copytree(kept, directory)
    names = case.inflict(directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    said = len(cluster.log(VICTIM))
    cluster.start(VICTIM)
    if case.verdict == "starts":
        async with scene.client.loaded(8):
            await scene.progress(8)
        await scene.finish()
        # Older than what it has acknowledged by now, the copy would be a disk that was set back: another fault.
        cluster.kill(VICTIM)
        shutil.rmtree(kept)
        shutil.copytree(directory, kept)
        return
    status, log = await asyncio.to_thread(cluster.wait_ended, VICTIM)
    assert status not in (0, None), "it ended as if all were well"
    last = log[said:].rstrip().splitlines()[-1]
    named = (names,) if isinstance(names, str) else names
    assert any(str(directory / name) in last for name in named), f"the refusal names none of {named}: {last}"
    assert "byte" in last or "No such file" in last, f"the refusal names no offset: {last}"
    # Evidence is kept: a node that refuses has changed nothing.
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
