"""README and guide as a reader follows them: every block in its order, one shell, one notebook, a fresh node."""

from __future__ import annotations

import ast
import asyncio
import codeop
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oncegate.gateway.http.server import running
from oncegate.testing import FakeCluster
from tests.examples.reader import Block, Reader, blocks_of
from tests.gateway.http_contract import one_node

ROOT = Path(__file__).parents[2]
NOT_HERE = {
    "pip install '.[client]'": "installs, and starts the node that this test has started",
    "$ oncegate serve --node n2": "needs the cluster of `oncegate dev`, and a node of it that was killed",
    "make demo": "tests/demo",
    "python -m oncegate.spark_sink.jobs.stream_rows": "needs Spark: tests/spark",
    "OncegateSource": "needs Spark: tests/spark",
}
"""What the blocks hold that are not run here, and why."""
PAGES = ("README.md", "docs/guide.md")


def blocks() -> list[Block]:
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    found = blocks_of(text)
    assert {block.language for block in found} <= {"console", "sh", "python", "toml"}
    return [block for block in found if not any(words in block.text for words in NOT_HERE)]


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    settings = one_node(tmp_path)
    async with running(settings) as node:
        await node.reads.reach("linearizable", 0)
        yield settings.address.http.removeprefix("http://")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_readme_and_guide_run_in_their_order_and_print_what_they_say(
    address: str, oncegate_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles.toml"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONCEGATE_PROFILES", str(profiles))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the command `oncegate`
    shell = await asyncio.create_subprocess_exec(
        "bash",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
    )
    reader = Reader(shell)
    ran = 0
    try:
        async with asyncio.timeout(180):
            for block in blocks():
                block = block._replace(text=re.sub(r"(localhost|127\.0\.0\.1):7400", address, block.text))
                if block.language == "toml":
                    profiles.write_text(block.text)
                    continue
                assert block.language != "console", block.text
                await reader.paste(block)
                ran += 1
        names = reader.names
        tests = [name for name in names if name.startswith("test_")]
        assert tests, "the guide shows a test of an application"
        for name in tests:
            await asyncio.to_thread(names[name], oncegate_cluster)
    finally:
        if "client" in reader.names:
            await asyncio.to_thread(reader.names["client"].close)
        assert shell.stdin is not None
        shell.stdin.close()
        await shell.wait()
    assert ran > 10


@pytest.mark.parametrize("page", ["docs/guide.md", "docs/recipes.md"])
def test_python_can_be_pasted_line_by_line(page: str) -> None:
    """As ``python -m asyncio`` reads it, where an indented block ends with a blank line."""
    asynchronous = codeop.CommandCompiler()
    asynchronous.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
        typed: list[str] = []
        for line in [*block.splitlines(), ""]:
            typed.append(line)
            if asynchronous("\n".join(typed), page, "single") is not None:  # a SyntaxError says which line
                typed.clear()
        assert not typed, f"does not end: {typed}"


def test_each_block_that_is_not_run_is_there() -> None:
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    assert [words for words in NOT_HERE if words not in text] == []
