"""What drawn pages are made of: prose that ends at 120 columns, declared tables, judgements of targets. Pure.

A table is declared as its columns: a heading, and how a row is told there (a format, or a function of the row).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import fill
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bench.harness import Line, judged

COLUMNS: Final = 120
Columns = Mapping[str, str | Callable[[Mapping[str, Any]], str]]
"""By heading; a format names figures of the row: ``{p50_ms:.2f}``."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    head = [*head]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def drawn(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of some rows."""
    return table(columns, (cells(columns, row) for row in rows))


def cells(columns: Columns, row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row."""
    return [of.format_map(row) if isinstance(of, str) else of(row) for of in columns.values()]


def figures(columns: Columns, row: Mapping[str, Any]) -> str:
    """Return the table of one row, a line for each column."""
    return table(("", ""), zip(columns, cells(columns, row), strict=True))


def prose(text: str) -> str:
    """Return a paragraph whose lines end at ``COLUMNS``."""
    return fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def header_of(line: Line) -> str:
    """Return when, where and on what a run was measured; a sample says that it is one, and a disturbed run too."""
    warning = "**A sample (`--quick`): sizes and windows are too small to judge by.** " if line["quick"] else ""
    if line.get("disturbed"):
        warning += f"**Disturbed, {line['disturbed']}: not judged.** "
    run = f", {line['run']}" if line["run"] else ""
    watched = "" if "disturbed" in line else "; whether anything else had the machine was not looked at"
    load = f"; load of the machine before: {line['load_average']:.1f}" if line["load_average"] is not None else ""
    return prose(
        f"{warning}Commit {line['commit']}{run}, {line['cpu']}, {line['cores']} cores, "
        f"Linux {line['kernel']}, Python {line['python']}, seed {line['seed']}; {line['durability']}. Calibrations: "
        f"{line['fdatasync_4k_ms']:.3f} ms for `fdatasync` of 4 KiB, {line['bare_posts_per_s']:,.0f} bare aiohttp "
        f"POSTs/s{load}{watched}."
    )


class Limit(NamedTuple):
    """What holds a figure back that misses its target, in words, and the decision that has its profile."""

    words: str
    decision: str


_NONE: Final[Mapping[str, Limit]] = MappingProxyType({})


class Judgement(NamedTuple):
    """A target beside what was reached.

    Attributes:
        what: is judged. wanted: in words.
        reached: in words; empty: not measured.
        met: whether; None: it cannot be told, because of ``why_not``.
        limit: what holds it back where it is missed.
    """

    what: str
    wanted: str
    reached: str
    met: bool | None
    limit: Limit | None = None
    why_not: str = "not measured"


def judge(
    what: str, wanted: str, reached: str, line: Line, *, met: bool | None, limits: Mapping[str, Limit] = _NONE
) -> Judgement:
    """Return the judgement of a run; a sample and a disturbed one have none. ``limits`` by what is judged."""
    if judged(line) or met is None:
        return Judgement(what, wanted, reached, met, limits.get(what))
    return Judgement(what, wanted, reached, None, limits.get(what), "a sample" if line["quick"] else "disturbed")


def verdicts(judgements: Iterable[Judgement]) -> str:
    """Return the table of targets."""
    said = {True: "yes", False: "**NO**"}
    rows = [
        (one.what, one.wanted, one.reached or "-", said[one.met] if one.met is not None else one.why_not)
        for one in judgements
    ]
    return table(("", "wanted", "reached", "met"), rows)


def missed(judgements: Iterable[Judgement]) -> list[str]:
    """Return the table of what was missed and why, each limit once; nothing where nothing was."""
    whats: dict[Limit, list[str]] = {}
    for one in judgements:
        if one.met is False and one.limit is not None:
            whats.setdefault(one.limit, []).append(one.what)
    rows = [
        ("; ".join(dict.fromkeys(of)), f"{words} ([profile](decisions/{decision}.md))")
        for (words, decision), of in whats.items()
    ]
    return [table(("missed", "held back by"), rows)] if rows else []


def targets(judgements: Sequence[Judgement]) -> list[str]:
    """Return both tables."""
    return ["## Targets", verdicts(judgements), *missed(judgements)]
