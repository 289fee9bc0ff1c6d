"""Verdicts on a finished run. Read next: :mod:`tests.sim_gateway.world`."""

from __future__ import annotations


def judge(world):
    """Return (check, text) of all that is wrong, the history first."""
    return list(world.findings)
