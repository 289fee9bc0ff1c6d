"""docs/recipes.md: its examples run as they stand, in their order, and print what they say."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
from pathlib import Path
from typing import Any

from oncegate import recipes
from oncegate.testing import FakeCluster

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def test_the_page_runs_and_prints_what_it_says() -> None:
    with FakeCluster() as fake:  # in a thread of its own: a block without await stops this one's loop
        names: dict[str, Any] = {}
        for block in BLOCKS:
            text = block.replace("http://localhost:7400", fake.endpoints[0])
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                running = eval(compile(text, "recipes.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
                if inspect.iscoroutine(running):
                    await running
            assert printed.getvalue().splitlines() == re.findall(r"  # (.+)$", block, re.MULTILINE)
    assert len(BLOCKS) == 10


def test_the_page_tells_of_each_recipe() -> None:
    table = PAGE.split("|---|---|---|")[1].split("\n\n")[0]
    for name in set(recipes.__all__) - {"Claim", "DeadLetter", "Hold", "Leader"}:
        assert f"`{name}`" in table, name
        assert re.search(rf"\b{name}\(client, session,", PAGE), name
