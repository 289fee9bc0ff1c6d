"""What a planted bug is, how it is put in place for a while, and the search for a run that shows it.

Read next: :mod:`tests.mutants.sessions`, :mod:`tests.mutants.replication`, :mod:`tests.mutants.__main__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.sim_gateway.node import GatewayNode
from tests.sim_gateway.plan import gateway_plan
from tests.sim_gateway.run import run_plan


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes:
        name: unique.
        breaks: the promise that does not hold any more.
        workload: of :mod:`tests.sim_gateway`, which shows it.
        patches: (owner, attribute, replacement), put in place while it is planted.
        parts: attributes of the node's class: another engine or journal.
        kinds: weights of faults; the workload's mix if it is None.
        fixed: fields of the plan.
        runs: within how many seeds it has to be caught.
        start: the first of them.
        watches: Raft's own rules are checked as well: a history shows this one too rarely.
    """

    name: str
    breaks: str
    workload: str
    patches: tuple = ()
    parts: Mapping[str, Any] = field(default_factory=dict)
    kinds: Mapping[str, int] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 20
    start: int = 0
    watches: bool = False

    @contextmanager
    def planted(self):
        """Give the type of a node with the bug, which is gone behind the block."""
        with ExitStack() as stack:
            for owner, name, replacement in self.patches:
                stack.enter_context(patch.object(owner, name, replacement))
            yield type("MutantNode", (GatewayNode,), dict(self.parts))

    def run(self, seed, *, planted=True):
        """Run a seed of its workload, with the bug or without it."""
        plan = gateway_plan(seed, self.workload, kinds=self.kinds, **self.fixed)
        if not planted:
            return run_plan(plan, watches=self.watches)
        with self.planted() as node_type:
            return run_plan(plan, node_type=node_type, watches=self.watches)

    def hunt(self):
        """Run seeds until one shows the bug; None if none does within the bound."""
        for number in range(self.runs):
            outcome = self.run(self.start + number)
            if outcome.failed:
                return Caught(self, self.start + number, number + 1, outcome)
        return None


class Caught(NamedTuple):
    """How a bug was found."""

    mutant: Mutant
    seed: int
    runs: int
    outcome: Any

    @property
    def verdict(self):
        """The check that said so; that the harness crashed is none."""
        return self.outcome.checker

    @property
    def also(self):
        """The other checks that saw something in the same run."""
        return sorted({check for check, _ in self.outcome.findings} - {self.verdict})
