"""Running seeds: one, many, in parallel; what failed and how to see it again.

Read next: :mod:`oncegate.proof.sim.engine.shrink`, :mod:`oncegate.proof.sim.engine.__main__`.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

import pysyncobj.syncobj

import oncegate.consensus.log.identity
import oncegate.consensus.log.wal
from oncegate.proof.sim.engine.engine_node import EngineNode
from oncegate.proof.sim.engine.observe import Violation
from oncegate.proof.sim.engine.plan import Plan
from oncegate.proof.sim.engine.world import World

REPLACED = (
    (oncegate.consensus.log.wal, "secrets"),
    (oncegate.consensus.log.identity, "uuid"),
    (pysyncobj.syncobj, "monotonicTime"),
    (pysyncobj.syncobj, "random"),
)


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    plan: Plan
    counts: Counter
    trace_hash: str
    checker: str | None = None
    text: str = ""
    at: float = 0.0

    @property
    def failed(self) -> bool:
        return self.checker is not None


def run_plan(plan: Plan, *, node_type=EngineNode, checkers=None, trace=None) -> Outcome:
    """Run one plan to its end or to the first violation; an error of the code under test counts as one."""
    level = logging.root.manager.disable
    # A run logs what its nodes would log, thousands of times.
    logging.disable(logging.CRITICAL)
    world = World(plan, node_type=node_type, checkers=checkers, trace=trace)
    # What the nodes of a world replace by seeded ones, in modules that know nothing of it.
    replaced = [(module, name, getattr(module, name)) for module, name in REPLACED]
    try:
        counts = world.run()
    except Violation as violation:
        return Outcome(
            plan, world.counts, world.trace_hash, violation.checker, violation.text, round(world.scheduler.now, 3)
        )
    except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a finding
        text = where_raised(error)
        return Outcome(plan, world.counts, world.trace_hash, "crash", text, round(world.scheduler.now, 3))
    finally:
        logging.disable(level)
        for module, name, original in replaced:
            setattr(module, name, original)
    return Outcome(plan, counts, world.trace_hash)


def where_raised(error: Exception) -> str:
    """Say what was raised, and where."""
    where = error.__traceback__
    while where.tb_next is not None:
        where = where.tb_next
    return f"{type(error).__name__}: {error} ({where.tb_frame.f_code.co_name}:{where.tb_lineno})"
