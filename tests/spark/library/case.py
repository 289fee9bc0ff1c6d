"""What the common kill test needs to know of a job: what is written, how users read the result, and a recount."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oncegate.spark import ClaimedStore, Derivation, Store, StoreTable

Write = tuple[str, object | None]
"""Key, and value as JSON has it; None deletes."""


@dataclass(frozen=True)
class Case:
    """A job that is killed in the middle of its batches, and what it must end with.

    Args:
        name: of the job; its flow, its consumer and the gateway's table have it too.
        derivation: of a module, so that Spark's workers can import it.
        tables: all that it writes; of no other case.
        writes: about 2,000, in commit order.
        read: the result as users read it.
        expected: the same from the writes alone, by code that the job does not share.
    """

    name: str
    derivation: Derivation
    tables: tuple[StoreTable, ...]
    writes: Callable[[random.Random], Iterable[Write]]
    read: Callable[[ClaimedStore | Store], object]
    expected: Callable[[list[Write]], object]


def all_cases() -> dict[str, Case]:
    """Return the cases of all modules `case_*` beside this one, by name."""
    package = importlib.import_module(__package__ or "")
    found: list[Case] = []
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.startswith("case_"):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            found += getattr(module, "CASES", None) or [module.CASE]
    cases = {case.name: case for case in found}
    tables = [table.name for case in found for table in case.tables]
    assert len(cases) == len(found), "two cases have one name"
    assert len(set(tables)) == len(tables), "two cases write one table"
    return cases
