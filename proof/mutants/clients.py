"""Clients with planted bugs: the SDK of the workers breaks one promise, in front of real nodes that keep theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from oncegate.gateway.client.doubts import Doubts
from oncegate.gateway.client.fates import SEALED, Fates
from oncegate.proof.check.folder import RunVerdict
from oncegate.proof.mutants import liars

Plant = Callable[[], AbstractContextManager[Any]]
_keep = Fates.keep


def acknowledges_what_nobody_knows() -> AbstractContextManager[Any]:
    """A number in doubt is acknowledged when the window needs its place."""

    def gave_up(doubts: Doubts, firsts: Iterable[int]) -> None:
        doubts._tracker.spend(list(firsts))

    return patch.object(Doubts, "gave_up", gave_up)


def drops_answers_that_come_late() -> AbstractContextManager[Any]:
    """What became of a write is not kept when nobody waits for it."""
    return patch.object(Fates, "keep", lambda *_: None)


def takes_late_answers_for_refusals() -> AbstractContextManager[Any]:
    """A write that was applied late is told as one that never was."""
    return patch.object(Fates, "keep", lambda fates, request, fate: _keep(fates, request, SEALED))


CASES: list[tuple[Plant, str, str]] = [
    (acknowledges_what_nobody_knows, "doubts", "each doubt ends"),
    (drops_answers_that_come_late, "doubts", "each doubt ends"),
    (takes_late_answers_for_refusals, "doubts", "each doubt ends"),
]
"""Which bug which workload shows, and the check that says so."""


def verdict_with(runs: Path, workload: str, plant: Plant, times: int = 1) -> RunVerdict:
    """Run a workload whose workers have a bug; as :func:`oncegate.proof.mutants.liars.verdict_on`."""
    with plant():
        return liars.verdict_on(runs, workload, liars.honest, times)
