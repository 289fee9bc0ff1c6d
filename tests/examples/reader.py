"""A reader of a page: pastes its blocks in their order into one shell and one notebook, and looks at what is printed.

``#> text`` is what the line above it prints a part of; in Python, ``# > text`` what the block prints.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
from typing import Any, NamedTuple

DONE = "done-with-the-block"


class Block(NamedTuple):
    language: str
    text: str

    @property
    def expected(self) -> list[str]:
        return re.findall(r"^ *# ?> (.+)$", self.text, re.MULTILINE)


def blocks_of(text: str) -> list[Block]:
    return [Block(*parts) for parts in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


class Reader:
    """One shell and one notebook; both begin empty."""

    def __init__(self, shell: asyncio.subprocess.Process) -> None:
        self._shell = shell
        self.names: dict[str, Any] = {"__name__": "__main__"}

    async def paste(self, block: Block) -> None:
        """Run a block, and see that it ends well and prints what the page says, in that order."""
        printed = await (self._cell(block.text) if block.language == "python" else self._lines(block.text))
        at = 0
        for text in block.expected:
            found = printed.find(text, at)
            assert found >= 0, f"{text!r} is not printed after {printed[:at]!r}, but {printed[at:]!r}"
            at = found + len(text)

    async def _lines(self, text: str) -> str:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{text}\necho {DONE} $?\n".encode())
        printed = (await self._shell.stdout.readuntil(DONE.encode())).decode().removesuffix(DONE)
        status = (await self._shell.stdout.readline()).strip()
        assert status == b"0", (text, printed)
        return printed

    async def _cell(self, text: str) -> str:
        code = compile(text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

        def run() -> str:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                result = eval(code, self.names)
                if inspect.iscoroutine(result):
                    asyncio.run(result)
            return printed.getvalue()

        return await asyncio.to_thread(run)  # a script without an event loop of its own would stop the node's
