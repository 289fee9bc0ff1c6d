"""A child of the process that made a client: every call raises at once, and what is the parent's stays the parent's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncegate.testing import FakeCluster

SYNC = """
import os, sys, time
from oncegate import Code, OperationFailed, sync

client = sync.Client(sys.argv[1].split(","))
session = client.session(outbox=sys.argv[2])
session.put("rows", "a", 1)
child = os.fork()
if child == 0:
    calls = [lambda: session.put("rows", "b", 1, timeout_s=1), lambda: session.submit("put", "rows", "b", 1)]
    calls += [lambda: session.get("rows", "a"), lambda: client.get("rows", "a"), lambda: session.drain()]
    calls += [lambda: client.session().put("rows", "b", 1)]
    for call in calls:
        try:
            call()
        except OperationFailed as refused:
            assert (refused.code, refused.outcome) == (Code.CONFLICT, "not_applied"), refused
        else:
            raise AssertionError("a child has used its parent's client")
    session.close()
    client.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(session.put("rows", "c", 1).sequence)
client.close()
"""
ASYNC = """
import asyncio, os, sys
from oncegate import Client, Code, OperationFailed


async def main():
    async with Client(sys.argv[1].split(",")) as client, client.session(outbox=sys.argv[2]) as session:
        await session.put("rows", "a", 1)
        child = os.fork()
        if child == 0:
            for call in (
                lambda: session.put("rows", "b", 1, timeout_s=1), lambda: session.get("rows", "a"),
                lambda: client.get("rows", "a"), lambda: session.drain(), lambda: client.session().__aenter__(),
            ):
                try:
                    await call()
                except OperationFailed as refused:
                    assert (refused.code, refused.outcome) == (Code.CONFLICT, "not_applied"), refused
                else:
                    os._exit(1)
            await session.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print((await session.put("rows", "c", 1)).sequence)


asyncio.run(main())
"""
OUTLIVED = """
import asyncio, os, signal, sys
from oncegate import Client


async def main():
    async with Client(sys.argv[1].split(",")) as client:
        async with client.session(outbox=sys.argv[2]) as session:
            await session.put("rows", "a", 1)
            child = os.fork()
            if child == 0:
                signal.pause()
        try:
            async with client.session(outbox=sys.argv[2]) as session:
                print((await session.put("rows", "b", 1)).applied)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


asyncio.run(main())
"""


def test_forked_child_that_lives_on_does_not_keep_its_parents_outbox(
    oncegate_cluster: FakeCluster, tmp_path: Path
) -> None:
    oncegate_cluster.declare("rows")
    command = [sys.executable, "-c", OUTLIVED, ",".join(oncegate_cluster.endpoints), str(tmp_path / "o")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr


@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["sync", "async"])
def test_forked_child_is_refused_at_once_and_the_parent_goes_on(
    oncegate_cluster: FakeCluster, tmp_path: Path, program: str
) -> None:
    oncegate_cluster.declare("rows")
    command = [sys.executable, "-c", program, ",".join(oncegate_cluster.endpoints), str(tmp_path / "o")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert (done.returncode, done.stdout.split()) == (0, ["2"]), done.stderr
    assert [write.key for write in oncegate_cluster.executed] == ["a", "c"]
