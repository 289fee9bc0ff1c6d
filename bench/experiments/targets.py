"""Targets of the experiments: what is wanted beside what was reached, and what holds back the missed ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from bench.experiments.results import Line, judged
from bench.limits import Limit, missed
from bench.markdown import table

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


def section(judgements: Sequence[Judgement]) -> list[str]:
    """Return both tables."""
    rows = [
        (one.what, one.wanted, one.reached or "-", {True: "yes", False: "**NO**", None: one.why_not}[one.met])
        for one in judgements
    ]
    return ["## Targets", table(("", "wanted", "reached", "met"), rows), *missed(judgements)]
