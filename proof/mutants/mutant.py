"""What a planted bug is, how it is put in place for a while, and the search for a run that shows it.

Read next: :mod:`oncegate.proof.mutants.sessions`, :mod:`oncegate.proof.mutants.replication`,
:mod:`oncegate.proof.mutants.__main__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from oncegate.gateway.machine.apply import HANDLERS
from oncegate.proof.mutants.checks import CHECK_OF
from oncegate.proof.sim.gateway.node import GatewayNode
from oncegate.proof.sim.gateway.run import gateway_plan, run_plan
from oncegate.proof.sim.gateway.scripts import Script
from oncegate.proof.sim.gateway.stage import ScriptedNode


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes:
        name: unique.
        breaks: the promise that does not hold any more.
        workload: of :mod:`oncegate.proof.sim.gateway`, which shows it under random faults.
        patches: (owner, attribute, replacement), put in place while it is planted; of :data:`HANDLERS` the command.
        parts: attributes of the node's class: another engine or journal.
        kinds: weights of faults; the workload's mix if it is None.
        fixed: fields of the plan.
        runs: within how many seeds it has to be caught.
        start: the first of them.
        watches: Raft's own rules are checked as well: a history shows this one too rarely.
        script: of :mod:`oncegate.proof.sim.gateway.scripts`, which shows it at its first run, in place of a workload.
    """

    name: str
    breaks: str
    workload: str = ""
    patches: tuple = ()
    parts: Mapping[str, Any] = field(default_factory=dict)
    kinds: Mapping[str, int] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 20
    start: int = 0
    watches: bool = False
    script: Script | None = None

    @property
    def shown_by(self):
        """The workload, or the script."""
        return self.workload if self.script is None else f"script {self.script.name}"

    @property
    def seeds(self):
        """Those that are tried; the steps of a script are the same in all of them."""
        return range(self.start, self.start + (self.runs if self.script is None else 1))

    @contextmanager
    def planted(self):
        """Give the type of a node with the bug, which is gone behind the block."""
        with ExitStack() as stack:
            for owner, name, replacement in self.patches:
                if owner is HANDLERS:
                    stack.enter_context(patch.dict(owner, {name: replacement}))
                else:
                    stack.enter_context(patch.object(owner, name, replacement))
            base = GatewayNode if self.script is None else ScriptedNode
            yield type("MutantNode", (base,), dict(self.parts))

    def run(self, seed, *, planted=True):
        """Run a seed of its workload, with the bug or without it."""
        options = {"watches": self.watches}
        if self.script is None:
            run = partial(run_plan, gateway_plan(seed, self.workload, kinds=self.kinds, **self.fixed))
        else:
            run = partial(self.script.run, seed)
        if not planted:
            return run(**options)
        with self.planted() as node_type:
            return run(node_type=node_type, **options)

    @property
    def check(self):
        """The check that has to say so."""
        return CHECK_OF[self.name]

    def hunt(self):
        """Run seeds until the bug's own check says so; None if it does not within the bound."""
        for runs, seed in enumerate(self.seeds, 1):
            outcome = self.run(seed)
            if any(check == self.check for check, _ in outcome.findings):
                return Caught(self, seed, runs, outcome)
        return None


MUTANTS = {}
"""By name; the modules named above enter theirs."""


def enter(mutant):
    MUTANTS[mutant.name] = mutant


def plants(name, workload, *places, also=(), **options):
    """Enter the function as a bug: it takes the place of each (owner, attribute), its docstring says what that breaks.

    Further patches are in ``also``; the rest is of :class:`Mutant`.
    """

    def planted(replacement):
        patches = tuple((owner, attribute, replacement) for owner, attribute in places)
        breaks = replacement.__doc__.rstrip(".")
        enter(Mutant(name, breaks[0].lower() + breaks[1:], workload, (*patches, *also), **options))
        return replacement

    return planted


class Caught(NamedTuple):
    """How a bug was found."""

    mutant: Mutant
    seed: int
    runs: int
    outcome: Any

    @property
    def verdict(self):
        """The check that said so."""
        return self.mutant.check

    @property
    def text(self):
        """What it said."""
        return next(text for check, text in self.outcome.findings if check == self.verdict)

    @property
    def also(self):
        """The other checks that saw something in the same run."""
        return sorted({check for check, _ in self.outcome.findings} - {self.verdict})
