"""Everything in the documentation that is generated: a new part needs a line in `SECTIONS` and markers in its page.

Generated lines stand between two marker lines, everything around them is written by hand. In Markdown::

    <!-- generated: errors (make docs) -->
    | code | status |
    <!-- end: errors -->

In TOML the same words stand behind a ``#``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from oncegate.gateway.cli.perf_verdict import THRESHOLDS, shown
from oncegate.gateway.docs.commands import commands
from oncegate.gateway.http.metrics import METRICS
from oncegate.gateway.node.setting import sample
from oncegate.gateway.node.settings import SETTINGS
from oncegate.rifl.errors import REGISTRY
from oncegate.rifl.rule import table_as_markdown


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


def errors() -> Iterator[str]:
    """Return the table of errors, one row a code."""
    rows = (
        [f"`{code}`", str(one.status), one.outcome.value, "yes" if one.retryable else "no", one.title, one.advice]
        for code, one in REGISTRY.items()
    )
    return table(("code", "status", "outcome", "retryable", "meaning", "what to do"), rows)


def settings() -> Iterator[str]:
    """Return the table of settings, one row each."""
    rows = (
        [f"`{one.name}`", f"`{one.flag}`", f"`{one.variable}`", one.default_words, one.bounds, one.text]
        for one in SETTINGS.values()
    )
    return table(("key", "flag", "variable", "default", "bounds", "what it is"), rows)


def metrics() -> Iterator[str]:
    """Return the table of metrics, in the order of ``/metrics``."""
    rows = ([f"`{one.full_name}`", one.kind, ", ".join(one.labels), one.text] for one in METRICS)
    return table(("name", "kind", "labels", "what it is"), rows)


def thresholds() -> Iterator[str]:
    """Return the table of what ``oncegate perf`` wants."""
    rows = (
        [
            one.words,
            "at least" if one.least else "at most",
            *(shown(bound, one.unit) for bound in one.bounds),
            one.source,
        ]
        for one in THRESHOLDS
    )
    return table(("figure", "", "small", "medium", "large", "where it comes from"), rows)


SECTIONS: Final = (
    Section("docs/SEMANTICS.md", "the apply rule", table_as_markdown),
    Section("docs/SEMANTICS.md", "errors", errors),
    Section("docs/settings.md", "settings", settings),
    Section("docs/metrics.md", "metrics", metrics),
    Section("docs/cli.md", "commands", commands),
    Section("docs/sizing.md", "thresholds", thresholds),
    Section("deploy/oncegate.toml", "settings", lambda: sample(SETTINGS)),
)
