"""All planted bugs, by name: one list of what each breaks, which checker catches it, and how it is hunted.

Most are changes of text (:mod:`oncegate.proof.mutants.bugs`): in production code under simulated clients, in the engine
under the simulator of consensus (names begin with ``engine/``), or in the SDK of the clients of real nodes
(``client/``). Others stand in front of real nodes (:mod:`oncegate.proof.mutants.liars`; ``server/``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncegate.proof.mutants import liars
from oncegate.proof.mutants.bugs import BUGS, ENGINE, Bug
from oncegate.proof.sim.engine import run as engine
from oncegate.proof.sim.engine.plan import make_plan
from oncegate.proof.sim.gateway.run import gateway_plan, run_plan
from oncegate.proof.sim.gateway.scripts import SCRIPTS

PLACES: Final = (ENGINE, "client/", "node/")
SCRIPT: Final = "script "
MUTANTS: Final = {name: bug for name, bug in BUGS.items() if not name.startswith(PLACES)}
"""Those that simulated clients see."""
PLANTED: Final = {name: bug for name, bug in BUGS.items() if name.startswith(ENGINE)}
CLIENTS: Final = {name: bug for name, bug in BUGS.items() if name.startswith("client/")}


class Caught(NamedTuple):
    """How a bug was found: ``outcome`` is that of the run of ``seed``, the ``runs``-th one."""

    seed: int
    runs: int
    outcome: Any


def seeds(bug: Bug):
    """Those that are tried; the steps of a script are the same in all of them."""
    usual = 100 if bug.name.startswith(ENGINE) else 20
    return range(bug.start, bug.start + (1 if bug.by.startswith(SCRIPT) else bug.runs or usual))


def run(bug: Bug, seed, *, planted=True):
    """Run a seed of what shows the bug, with it or without it."""
    if planted:
        with bug.planted():
            return run(bug, seed, planted=False)
    if bug.name.startswith(ENGINE):
        return engine.run_plan(make_plan(seed, kinds=bug.kinds, **bug.fixed))
    if bug.by.startswith(SCRIPT):
        return SCRIPTS[bug.by.removeprefix(SCRIPT)].run(seed, watches=bug.watches)
    return run_plan(gateway_plan(seed, bug.by, kinds=bug.kinds, **bug.fixed), watches=bug.watches)


def says(bug: Bug, outcome):
    """Tell whether the bug's own check has spoken in a run."""
    if bug.name.startswith(ENGINE):
        return outcome.checker == bug.check
    return bug.check in {check for check, _ in outcome.findings}


def hunt(bug: Bug):
    """Run seeds until the bug's own check says so; None if it does not within the bound."""
    for runs, seed in enumerate(seeds(bug), 1):
        if says(bug, outcome := run(bug, seed)):
            return Caught(seed, runs, outcome)
    return None


@dataclass(frozen=True)
class Hunt:
    """A planted bug, wherever it is planted.

    Attributes:
        name: unique.
        breaks: what does not hold any more.
        caught_by: the workload, script or check whose verdict shows it.
        run: plants it and runs until it is caught; says by what, and when, or None.
    """

    name: str
    breaks: str
    caught_by: str
    run: Callable[[], str | None]


def _simulated(bug):
    caught = hunt(bug)
    return None if caught is None else f"{bug.check} after {caught.runs} of {len(seeds(bug))} runs"


def _at_nodes(check, judged):
    with tempfile.TemporaryDirectory() as runs:
        verdict = liars.shown(check, partial(judged, Path(runs)))
    return next((one.name for one in verdict.checks if one.verdict == "invalid" and one.name.startswith(check)), None)


def _first_line(text):
    return text.strip().partition("\n")[0].rstrip(".")


CATALOGUE: Final = {
    one.name: one
    for one in (
        *(Hunt(name, bug.breaks, bug.by, partial(_simulated, bug)) for name, bug in MUTANTS.items()),
        *(Hunt(name, bug.breaks, bug.check, partial(_simulated, bug)) for name, bug in PLANTED.items()),
        *(
            Hunt(
                f"server/{bug.__name__}/{workload}".replace("_", "-"),
                _first_line(bug.__doc__ or bug.__name__.replace("_", " ")),
                f"{workload}: {check}",
                partial(_at_nodes, check, partial(liars.verdict_on, workload, bug)),
            )
            for bug, workload, check in liars.CASES
        ),
        *(
            Hunt(
                name,
                bug.breaks,
                f"{bug.by}: {bug.check}",
                partial(_at_nodes, bug.check, partial(liars.verdict_with, bug)),
            )
            for name, bug in CLIENTS.items()
        ),
    )
}
