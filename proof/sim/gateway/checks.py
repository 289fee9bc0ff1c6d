"""Verdicts on a finished run: the history by its model, what the workload holds against it, what was noted on the way.

Read next: :mod:`oncegate.proof.lincheck`, :mod:`oncegate.proof.sim.gateway.world`.
"""

from __future__ import annotations

from oncegate.proof.lincheck import MODELS, Limits, check, operations

STATES_MAX = 300_000


def judge(world, *, finished):
    """Return (check, text) of all that is wrong, the history first; a run that did not finish has no final state."""
    return _history(world) + (world.workload.check(world) if finished else []) + list(world.findings)


def _history(world):
    name = world.workload.model
    if not name:
        return []
    result = check(operations(world.history.events), MODELS[name], Limits(states_max=STATES_MAX))
    world.counts[f"histories {result.verdict}"] += 1
    world.counts["operations checked"] += result.operations
    if result.verdict != "invalid":
        return []
    failure = result.failures[0]
    return [("linearizability", f"{name} {failure.key}: {' '.join(failure.words)[:600]}")]
