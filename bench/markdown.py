"""What drawn pages are made of: prose that ends at 120 columns, tables, and their fractions of a number. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Final

COLUMNS: Final = 120


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def prose(text: str) -> str:
    """Return a paragraph whose lines end at ``COLUMNS``."""
    return fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
