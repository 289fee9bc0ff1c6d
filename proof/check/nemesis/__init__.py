"""Faults on real nodes, from a seed: the grammar (:data:`FAULTS`), plans (:func:`plan_of`), and who carries them out.

Read next: :mod:`oncegate.proof.check.nemesis.fault` for how to add one.
"""

from __future__ import annotations

from oncegate.proof.check.folder import FaultNote
from oncegate.proof.check.nemesis import backups, machines, members, network, processes
from oncegate.proof.check.nemesis.fault import FAULTS, Action, Fault, FaultChoice, Injection, PlanView, fault
from oncegate.proof.check.nemesis.nemesis import Nemesis
from oncegate.proof.check.nemesis.plan import FaultPlan, available, names_of, plan_of

__all__ = [
    "FAULTS",
    "Action",
    "Fault",
    "FaultChoice",
    "FaultNote",
    "FaultPlan",
    "Injection",
    "Nemesis",
    "PlanView",
    "available",
    "fault",
    "names_of",
    "plan_of",
]
FAMILIES = (backups, machines, members, network, processes)
"""The modules that register the faults."""
