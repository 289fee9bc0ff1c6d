"""Running seeds: one, many, in parallel; what failed and how to see it again.

Read next: :mod:`oncegate.proof.sim.engine.command`, :mod:`oncegate.proof.sim.engine.__main__`.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field

import oncegate.consensus.log.identity
import oncegate.consensus.log.wal
from oncegate.proof.mutants.bugs import BUGS, ENGINE
from oncegate.proof.sim.engine.command import part_of
from oncegate.proof.sim.engine.engine_node import EngineNode
from oncegate.proof.sim.engine.faults import DEFAULT_MIX
from oncegate.proof.sim.engine.observe import Violation
from oncegate.proof.sim.engine.plan import Plan, make_plan
from oncegate.proof.sim.engine.stage import Stage
from oncegate.proof.sim.engine.world import World

REPLACED = (
    (oncegate.consensus.log.wal, "secrets"),
    (oncegate.consensus.log.identity, "uuid"),
)


@dataclass(frozen=True)
class Outcome:
    """What one run came to; ``findings`` are (check, text) pairs, the first one names the run's failure."""

    plan: Plan
    counts: Counter
    trace_hash: str
    findings: list
    at: float
    history: list = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.findings)

    @property
    def checker(self) -> str | None:
        return self.findings[0][0] if self.findings else None

    @property
    def text(self) -> str:
        return self.findings[0][1] if self.findings else ""


@contextmanager
def undisturbed():
    """Nothing is logged meanwhile, and what the nodes of a world replace by seeded ones is put back at the end."""
    level = logging.root.manager.disable
    # A run logs what its nodes would log, thousands of times.
    logging.disable(logging.CRITICAL)
    replaced = [(module, name, getattr(module, name)) for module, name in REPLACED]
    try:
        yield
    finally:
        logging.disable(level)
        for module, name, original in replaced:
            setattr(module, name, original)


def run_plan(plan: Plan, *, node_type=EngineNode, trace=None) -> Outcome:
    """Run one plan to its end or to the first violation; an error of the code under test counts as one."""
    world = World(plan, node_type=node_type, trace=trace)
    findings = stopped_by(world)
    return Outcome(plan, world.counts, world.trace_hash, findings, round(world.now, 3))


def stopped_by(world) -> list[tuple[str, str]]:
    """Run a world, and say which check stopped it, and what was wrong; empty if it came to its end."""
    with undisturbed():
        try:
            world.run()
        except Violation as violation:
            return [(violation.checker, violation.text)]
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a finding
            return [("crash", where_raised(error))]
    return []


@contextmanager
def staged(plan: Plan, *, node_type=EngineNode):
    """Give the :class:`Stage` of a plan's world, and let the world settle behind the block.

    Raises:
        Violation: a checker has found something, on the stage or at the end.
    """
    with undisturbed():
        world = World(plan, node_type=node_type)
        world.begin()
        stage = Stage(world)
        yield stage
        stage.end()
        world.settle()


def where_raised(error: Exception) -> str:
    """Say what was raised, and where."""
    where = error.__traceback__
    while where.tb_next is not None:
        where = where.tb_next
    return f"{type(error).__name__}: {error} ({where.tb_frame.f_code.co_name}:{where.tb_lineno})"


# -- what the options of the command mean ----------------------------------------------------------------------


def whole_plan(seed, options):
    kinds = None
    if options.faults is not None:
        kinds = {kind: DEFAULT_MIX.get(kind, 3) for kind in options.faults.split(",") if kind}
    elif options.also:
        kinds = {**DEFAULT_MIX, **dict.fromkeys(options.also.split(","), 3)}
    return make_plan(seed, nodes=options.nodes, kinds=kinds)


def chosen_plan(seed, options):
    return part_of(whole_plan(seed, options), options)


def run_chosen(plan, options, trace=None) -> Outcome:
    if options.planted:
        with BUGS[ENGINE + options.planted].planted():
            return run_plan(plan, trace=trace)
    return run_plan(plan, trace=trace)


class Job:
    def __init__(self, options):
        self.options = options

    def __call__(self, seed):
        outcome = run_chosen(chosen_plan(seed, self.options), self.options)
        # What travels between processes is small: a plan is made again from its seed.
        return seed, outcome.counts, outcome.failed
