"""Targets of the experiments: what is wanted beside what was reached, and what holds back the missed ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench import limits
from bench.experiments.results import Line, judged
from bench.limits import Limit
from bench.markdown import table


class Verdict(NamedTuple):
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


def verdict(what: str, wanted: str, reached: str, line: Line, met: bool | None, limit: Limit | None = None) -> Verdict:
    """Return the verdict of a run; a sample and a disturbed one have none."""
    if judged(line) or met is None:
        return Verdict(what, wanted, reached, met, limit)
    return Verdict(what, wanted, reached, None, limit, "a sample" if line["quick"] else "disturbed")


def section(verdicts: Sequence[Verdict]) -> list[str]:
    """Return both tables."""
    rows = [
        (one.what, one.wanted, one.reached or "-", {True: "yes", False: "**NO**", None: one.why_not}[one.met])
        for one in verdicts
    ]
    held_back = limits.missed((one.what, one.limit) for one in verdicts if one.met is False and one.limit is not None)
    return ["## Targets", table(("", "wanted", "reached", "met"), rows), *held_back]
