"""All planted bugs, by name: one list of what each breaks, which checker catches it, and how it is hunted.

A bug is planted in one of four places, with the means that fit there: in production code under simulated clients
(:mod:`oncegate.proof.mutants.mutant`), in the engine under the simulator of consensus
(:mod:`oncegate.proof.sim.engine.planted`; names begin with ``engine/``), in front of real nodes
(:mod:`oncegate.proof.mutants.liars`; names begin with ``server/``), or in the SDK of their clients
(:mod:`oncegate.proof.mutants.clients`; names begin with ``client/``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from oncegate.proof.mutants import (  # noqa: F401 - they enter their bugs
    clients,
    liars,
    replication,
    rows_that_end,
    runs_of_puts,
    sessions,
    transactions,
)
from oncegate.proof.mutants.checks import CHECK_IN_ENGINE
from oncegate.proof.mutants.mutant import MUTANTS
from oncegate.proof.sim.engine.plan import make_plan
from oncegate.proof.sim.engine.planted import PLANTED
from oncegate.proof.sim.engine.run import run_plan


@dataclass(frozen=True)
class Bug:
    """A planted bug, wherever it is planted.

    Attributes:
        name: unique.
        breaks: what does not hold any more.
        caught_by: the workload, script or check whose verdict shows it.
        hunt: plants it and runs until it is caught; says by what, and when, or None.
    """

    name: str
    breaks: str
    caught_by: str
    hunt: Callable[[], str | None]


def _in_gateway(name):
    caught = MUTANTS[name].hunt()
    if caught is None:
        return None
    return f"{caught.verdict} after {caught.runs} of {len(MUTANTS[name].seeds)} runs"


def _in_engine(name):
    bug = PLANTED[name]
    with bug.plant() as node_type:
        for seed in range(bug.seeds):
            outcome = run_plan(make_plan(seed, kinds=bug.kinds, **bug.fixed), node_type=node_type)
            if outcome.checker == CHECK_IN_ENGINE[name]:
                return f"{outcome.checker} at seed {seed}"
    return None


def _at_nodes(verdict_of, bug, workload, check):
    with tempfile.TemporaryDirectory() as runs:
        verdict = liars.shown(check, partial(verdict_of, Path(runs), workload, bug))
    return next((one.name for one in verdict.checks if one.verdict == "invalid" and one.name.startswith(check)), None)


def _first_line(text):
    return text.strip().partition("\n")[0].rstrip(".")


CATALOGUE = {
    bug.name: bug
    for bug in (
        *(Bug(name, one.breaks, one.shown_by, partial(_in_gateway, name)) for name, one in MUTANTS.items()),
        *(
            Bug(f"engine/{name}", one.wrong, CHECK_IN_ENGINE[name], partial(_in_engine, name))
            for name, one in PLANTED.items()
        ),
        *(
            Bug(
                f"{where}/{bug.__name__}/{workload}".replace("_", "-"),
                _first_line(bug.__doc__ or bug.__name__.replace("_", " ")),
                f"{workload}: {check}",
                partial(_at_nodes, verdict_of, bug, workload, check),
            )
            for where, verdict_of, cases in (
                ("server", liars.verdict_on, liars.CASES),
                ("client", clients.verdict_with, clients.CASES),
            )
            for bug, workload, check in cases
        ),
    )
}
