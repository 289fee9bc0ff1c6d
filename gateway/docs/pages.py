"""How generated lines get into a page: between two marker lines, everything around them is written by hand.

Owns: the markers. Must not know what is generated: :mod:`oncegate.gateway.docs.sections` lists that. In Markdown::

    <!-- generated: errors (make docs) -->
    | code | status |
    <!-- end: errors -->

In TOML the same words stand behind a ``#``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class Section(NamedTuple):
    """One generated part of one page.

    Attributes:
        page: path of the page below the repository's root.
        marker: name between the markers; unique in its page.
        lines: returns the part, without line ends.
    """

    page: str
    marker: str
    lines: Callable[[], Iterable[str]]


def fill(text: str, marker: str, lines: Iterable[str]) -> str:
    """Return ``text`` with ``lines`` between the markers of that name; filling twice changes nothing.

    Raises:
        ValueError: the pair of markers does not stand in the text exactly once.
    """
    name = re.escape(marker)
    pattern = rf"(?ms)^([^\n]*\bgenerated: {name} \(make docs\)[^\n]*\n).*?^([^\n]*\bend: {name}(?: -->)?)$"
    body = "".join(f"{line}\n" for line in lines)
    filled, found = re.subn(pattern, lambda match: match[1] + body + match[2], text)
    if found != 1:
        raise ValueError(f"the markers of {marker!r} stand {found} times in the page, not once")
    return filled


def filled_pages(root: Path, sections: Sequence[Section]) -> Iterator[tuple[Path, str, str]]:
    """Yield each page of ``sections`` once: its path, the text it has, the text it should have."""
    for page in dict.fromkeys(section.page for section in sections):
        path = root / page
        present = text = path.read_text(encoding="utf-8")
        for section in sections:
            if section.page == page:
                text = fill(text, section.marker, section.lines())
        yield path, present, text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for cells in rows:
        yield f"| {' | '.join(cells)} |"
