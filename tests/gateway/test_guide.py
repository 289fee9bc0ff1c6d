"""The guide's curl commands, run as they stand there: ``#> text`` is what the command above it prints a part of."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Api

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
SECTIONS = ("With curl alone", "One row a request", "CloudEvents")


def script() -> str:
    """Return the shell blocks of the sections, in order."""
    parts = re.split(r"^## (.+)\n", GUIDE, flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    sections = "\n".join(texts[section] for section in SECTIONS)
    return "\n".join(re.findall(r"```sh\n(.*?)```", sections, re.DOTALL))


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl_commands_of_the_guide_print_what_it_says(api: Api) -> None:
    base = str(api._http._base_url).removeprefix("http://").rstrip("/")
    commands = script().replace("localhost:7400", base)
    expected = re.findall(r"^#> (.+)$", commands, re.MULTILINE)
    assert len(expected) > 10
    shell = await asyncio.create_subprocess_exec(
        "bash", "-euc", commands, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, err = await shell.communicate()
    assert shell.returncode == 0, err.decode()
    printed = out.decode()
    at = 0
    for text in expected:
        found = printed.find(text, at)
        assert found >= 0, f"{text!r} is not printed after {printed[:at]!r}, but {printed[at:]!r}"
        at = found + len(text)
