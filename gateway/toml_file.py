"""A TOML file of settings, and the line on which each of its keys stands.

tomllib tells no lines. A statement ends with the first line up to which its text is TOML by itself, so the file, which
was read whole before, is read again statement by statement. Standard library only: every command may pay for it.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE_BYTES_MAX: Final = 2**20
_LIKE: Final = 0.6
"""How alike two names are, from 0 to 1, so that one is worth a hint."""


class TomlFile(NamedTuple):
    """The values of a file, and the line of each key, the names of its tables before it."""

    path: Path
    values: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def at(self, *key: str) -> str:
        """Return where a key stands, as ``path:line``."""
        return f"{self.path}:{self.lines[key]}"


def read_toml(path: Path) -> TomlFile:
    """Read a file of at most a MiB.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it cannot be read, is too large, or is not TOML; the text names it, and the line where there is one.
    """
    try:
        with path.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise
    except OSError as fault:
        raise ValueError(f"{path}: {fault.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"{path} is over {FILE_BYTES_MAX} bytes")
    try:
        text = content.decode().replace("\r\n", "\n")
        return TomlFile(path, tomllib.loads(text), _lines(text))
    except ValueError as fault:  # not TOML, or not text
        raise ValueError(f"{path} is not TOML: {fault}") from None


def _lines(text: str) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    lines = text.split("\n")
    table: tuple[str, ...] = ()
    begin = 0
    for at in range(len(lines)):
        try:
            statement: Any = tomllib.loads("\n".join(lines[begin : at + 1]) + "\n")
        except ValueError:
            continue  # a value goes on
        is_header = lines[begin].lstrip().startswith("[")
        key = () if is_header else table
        while isinstance(statement, dict) and statement:
            name, statement = next(iter(statement.items()))
            key = (*key, name)
            found.setdefault(key, begin + 1)
        if is_header:
            table = key
        begin = at + 1
    return found


def hint(name: str, known: Iterable[str]) -> str:
    """Return the question for the nearest of the known names, behind a semicolon; empty if none is near."""
    near = difflib.get_close_matches(name, list(known), 1, _LIKE)
    return f"; did you mean {near[0]}?" if near else ""
