"""The changes that no test can notice, each with the reason why it changes nothing.

The file holds, of each: ``PATH`` (``PATH #2`` for the second equal change of that file), ``- LINE AS IT IS``,
``+ LINE CHANGED``, then the reason, indented; empty lines between them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.mutate.changes import Change

Name = tuple[str, str, str, int]
_ENTRY: Final = re.compile(
    r"(?P<path>\S+)(?: #(?P<number>\d+))?\n- (?P<was>.*)\n\+ ?(?P<now>.*)\n(?P<why>(?:  .+\n?)+)"
)


class SurvivorsError(ValueError):
    """A list that cannot be read."""


def read(file: Path) -> dict[Name, str]:
    """Return the reason of each listed change, by its name."""
    listed: dict[Name, str] = {}
    for entry in re.split(r"\n{2,}", file.read_text(encoding="utf-8").strip("\n")):
        if not entry or entry.startswith("#"):
            continue
        match = _ENTRY.fullmatch(entry + "\n")
        if match is None:
            raise SurvivorsError(f"not a path, two lines and a reason: {entry!r}")
        path, number, was, now, why = match.group("path", "number", "was", "now", "why")
        listed[path, was, now, int(number or 1)] = " ".join(why.split())
    return listed


def written(change: Change) -> str:
    """Write a change as an entry that lacks its reason."""
    number = f" #{change.number}" if change.number > 1 else ""
    return f"{change.path}{number}\n- {change.was}\n+ {change.now}\n"
