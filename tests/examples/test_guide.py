"""The guide's chapters on the SDK: every Python block runs as it stands."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import oncegate.gateway.client
from oncegate import sync
from oncegate.testing import FakeCluster

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()


def blocks(chapter: str) -> list[str]:
    (text,) = re.findall(rf"^## {re.escape(chapter)}\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    found: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert found, chapter
    return found


@pytest.fixture
def names(oncegate_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a reader has at hand: the SDK's names, and a cluster with the guide's tables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONCEGATE_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.setenv("ONCEGATE_ENDPOINTS", ",".join(oncegate_cluster.endpoints))
    for table in ("seats", "counters"):
        oncegate_cluster.declare(table)
    oncegate_cluster.declare("messages", "stream")
    exported = {name: getattr(oncegate.gateway.client, name) for name in oncegate.gateway.client.__all__}
    return {**exported, "pytest": pytest, "sync": sync, "lines": ["a", "b", "a"]}


async def execute(block: str, names: dict[str, Any]) -> None:
    """Run a block as a notebook would: ``await`` is allowed at the top."""
    code = compile(block, "guide.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


async def test_chapter_on_the_sdk_runs(oncegate_cluster: FakeCluster, names: dict[str, Any]) -> None:
    client = oncegate.gateway.client.Client(oncegate_cluster.endpoints)
    names["Client"] = lambda endpoints, **options: oncegate.gateway.client.Client(oncegate_cluster.endpoints, **options)
    connect, doubt = blocks("With the SDK")
    await execute(connect, names)
    assert oncegate_cluster.value("seats", "12A") == "ann"
    assert oncegate_cluster.value("seats", "visits") == 2
    async with client, client.session() as session:
        await execute(doubt, {**names, "session": session})
    assert oncegate_cluster.value("seats", "visits") == 3


async def test_chapter_on_workers_runs(oncegate_cluster: FakeCluster, names: dict[str, Any]) -> None:
    (worker,) = blocks("A worker that may be killed")
    for _ in range(2):
        async with oncegate.gateway.client.Client() as client:
            await execute(worker, {**names, "client": client})
    assert (oncegate_cluster.value("counters", "a"), oncegate_cluster.value("counters", "b")) == (2, 1)


async def test_chapter_on_scripts_and_tests_runs(oncegate_cluster: FakeCluster, names: dict[str, Any]) -> None:
    script, test = blocks("Scripts, notebooks, tests")
    await execute(textwrap.dedent(script) + "client.close()\n", names)
    assert oncegate_cluster.value("seats", "visits") == 1
    await execute(test, names)
    names["test_visit_is_counted_once_although_the_answer_is_lost"](oncegate_cluster)
    assert oncegate_cluster.value("seats", "visits") == 2
