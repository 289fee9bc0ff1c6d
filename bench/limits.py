"""What holds back a figure that misses its target: in words, and where its profile is. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bench.markdown import table


class Limit(NamedTuple):
    """What holds a load of ours back, in words, and the decision that has its profile."""

    words: str
    decision: str


def missed(found: Iterable[tuple[str, Limit]]) -> list[str]:
    """Return the table of what was missed and why, each limit once; nothing where nothing was."""
    whats: dict[Limit, list[str]] = {}
    for what, limit in found:
        whats.setdefault(limit, []).append(what)
    rows = [
        ("; ".join(dict.fromkeys(of)), f"{words} ([profile](decisions/{decision}.md))")
        for (words, decision), of in whats.items()
    ]
    return [table(("missed", "held back by"), rows)] if rows else []
