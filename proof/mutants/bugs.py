"""The planted bugs that are changes of text, read from ``bugs.toml``: what each breaks, where it stands, what shows it.

Read next: ``bugs.toml``, :mod:`oncegate.proof.mutants.planting`, :mod:`oncegate.proof.mutants.catalogue`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oncegate.proof.mutants.planting import Change, planted


@dataclass(frozen=True)
class Bug:
    """One bug; the keys of ``bugs.toml`` say what the fields are.

    Attributes:
        kinds: weights of faults; the usual mix if it is None.
        fixed: fields of the plan.
        runs: within how many seeds it has to be caught; None for the usual number.
    """

    name: str
    breaks: str
    by: str
    check: str
    changes: tuple[Change, ...]
    kinds: Mapping[str, int] | None
    fixed: Mapping[str, Any]
    runs: int | None
    start: int
    watches: bool

    def planted(self):
        """Plant it until the block ends."""
        return planted(self.changes)


def _read() -> dict[str, Bug]:
    found = tomllib.loads(Path(__file__).with_name("bugs.toml").read_text(encoding="utf-8"))
    plans = found.pop("plans")
    return {name: _bug(name, entry, found, plans) for name, entry in found.items()}


def _bug(name, entry, found, plans) -> Bug:
    plan = plans.get(entry.get("plan"), {})
    return Bug(
        name,
        entry["breaks"],
        entry["by"],
        entry["check"],
        tuple(Change(*change) for change in found.get(entry.get("same"), entry)["changes"]),
        plan.get("kinds"),
        {key: _value(value) for key, value in plan.get("fixed", {}).items()},
        entry.get("runs"),
        entry.get("start", 0),
        entry.get("watches", False),
    )


def _value(value):
    """A field of a plan: TOML has neither tuples nor None."""
    return tuple(value) if isinstance(value, list) else None if value == "never" else value


BUGS: Final = _read()
"""By name."""
ENGINE: Final = "engine/"
"""How the names of those begin that the simulator of consensus shows."""
