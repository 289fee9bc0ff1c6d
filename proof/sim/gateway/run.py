"""Running one plan with clients, to its verdict. Read next: :mod:`oncegate.proof.sim.gateway.__main__`."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from oncegate.proof.sim.engine.observe import Violation
from oncegate.proof.sim.engine.run import REPLACED, where_raised
from oncegate.proof.sim.gateway.checks import judge
from oncegate.proof.sim.gateway.node import GatewayNode
from oncegate.proof.sim.gateway.plan import GatewayPlan
from oncegate.proof.sim.gateway.world import GatewayWorld


@dataclass(frozen=True)
class Outcome:
    """What one run came to; ``findings`` are (check, text) pairs, the first one names the run's failure."""

    plan: GatewayPlan
    counts: Counter
    trace_hash: str
    findings: list = field(default_factory=list)
    at: float = 0.0
    history: list = field(default_factory=list)

    @property
    def failed(self):
        return bool(self.findings)

    @property
    def checker(self):
        return self.findings[0][0] if self.findings else None

    @property
    def text(self):
        return self.findings[0][1] if self.findings else ""


def run_plan(plan, *, node_type=GatewayNode, trace=None, watches=False, world_type=GatewayWorld):
    """Run one plan to its end and judge it; an error of the code under test is a finding named "crash".

    With ``watches`` the rules of Raft are checked as well, which :mod:`oncegate.proof.sim.engine` does for the same
    engine.
    """
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    replaced = [(module, name, getattr(module, name)) for module, name in REPLACED]
    world = world_type(plan, node_type=node_type, trace=trace, watches=watches)
    stopped_by = []
    try:
        world.run()
    except Violation as violation:
        stopped_by = [(violation.checker, violation.text)]
    except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a finding
        stopped_by = [("crash", where_raised(error))]
    finally:
        logging.disable(level)
        for module, name, original in replaced:
            setattr(module, name, original)
        findings = judge(world, finished=not stopped_by) + stopped_by
        for node in world.nodes.values():
            node.alive = False
            node.forget()
    return Outcome(plan, world.counts, world.trace_hash, findings, round(world.now, 3), world.history.events)
