"""What holds back a figure that misses its target: in words, and where its profile is. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from bench.markdown import table


class Limit(NamedTuple):
    """What holds a load of ours back, in words, and the decision that has its profile."""

    words: str
    decision: str


class Judged(Protocol):
    """Something that was to be reached."""

    @property
    def what(self) -> str:
        """In words."""

    @property
    def met(self) -> bool | None:
        """Whether it was; None: it cannot be told."""

    @property
    def limit(self) -> Limit | None:
        """What holds it back."""


def missed(judged: Iterable[Judged]) -> list[str]:
    """Return the table of what was missed and why, each limit once; nothing where nothing was."""
    whats: dict[Limit, list[str]] = {}
    for one in judged:
        if one.met is False and one.limit is not None:
            whats.setdefault(one.limit, []).append(one.what)
    rows = [
        ("; ".join(dict.fromkeys(of)), f"{words} ([profile](decisions/{decision}.md))")
        for (words, decision), of in whats.items()
    ]
    return [table(("missed", "held back by"), rows)] if rows else []
