"""What a fault is, and the registry of all of them: the grammar from which plans are made.

A fault is a row, entered with :func:`fault`; docs/check-faults.md shows a whole one.

What it draws belongs to the plan: that is pure and reproducible. ``strike`` and ``heal`` block, in a thread of their
own, at their times. They may find that another fault has killed, frozen or removed a node; then they do what is left.
:mod:`oncegate.proof.check.cluster` has what they need. Read next: :mod:`oncegate.proof.check.nemesis.plan`.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment

Random = random_module.Random
LEADER: Final = "leader"
"""As a target: the node that leads when the fault begins."""


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault of a plan."""

    fault: str
    start: float
    """Seconds after the run began."""
    seconds: float
    """From the injection to the healing."""
    targets: tuple[str, ...] = ()
    """Node ids, or :data:`LEADER`."""
    arguments: dict[str, Any] = {}
    """JSON values, the fault's own."""

    @property
    def end(self) -> float:
        """Seconds after the run began at which it is healed."""
        return self.start + self.seconds


class FaultChoice(msgspec.Struct, frozen=True):
    """What a fault picked: on whom, and how."""

    targets: tuple[str, ...] = ()
    arguments: dict[str, Any] = {}


class PlanView(msgspec.Struct, frozen=True):
    """What a plan holds already, for the fault that is picked next."""

    nodes: tuple[str, ...]
    damageable: tuple[str, ...]
    """Nodes whose data may be lost in this plan: never more than a minority."""

    @property
    def minority(self) -> int:
        """The most nodes that may be gone without harm."""
        return (len(self.nodes) - 1) // 2


Whom = Callable[[Random, PlanView], tuple[str, ...] | None]
"""Chooses targets; None: no node can be one now."""


def any_node(random: Random, view: PlanView) -> tuple[str, ...]:
    """Choose one node."""
    return (random.choice(view.nodes),)


def any_damageable(random: Random, view: PlanView) -> tuple[str, ...] | None:
    """Choose one of the nodes whose data may be lost."""
    return (random.choice(view.damageable),) if view.damageable else None


def the_leader(random: Random, view: PlanView) -> tuple[str, ...]:
    """Choose the node that leads when the fault begins."""
    return (LEADER,)


def leader_or_any(random: Random, view: PlanView) -> tuple[str, ...]:
    """Choose the leader, half the time, else any node."""
    return (LEADER,) if random.random() < 0.5 else any_node(random, view)


def all_nodes(random: Random, view: PlanView) -> tuple[str, ...]:
    """Choose all nodes."""
    return view.nodes


def all_or_one(random: Random, view: PlanView) -> tuple[str, ...]:
    """Choose all nodes, three times in ten, else the leader or any."""
    return view.nodes if random.random() < 0.3 else leader_or_any(random, view)


def shuffled(random: Random, view: PlanView) -> tuple[str, ...]:
    """Choose all nodes, in any order."""
    return tuple(random.sample(view.nodes, len(view.nodes)))


def a_minority(random: Random, view: PlanView) -> tuple[str, ...] | None:
    """Choose as many nodes as can be missed."""
    return tuple(random.sample(view.nodes, view.minority)) if view.minority else None


def shuffled_of(least: int) -> Whom:
    """Choose all nodes, in any order, if there are at least so many."""
    return lambda random, view: shuffled(random, view) if len(view.nodes) >= least else None


def all_or_any(all_share: float) -> Whom:
    """Choose all nodes, as often as the share says, else any."""
    return lambda random, view: view.nodes if random.random() < all_share else any_node(random, view)


def nobody(random: Random, view: PlanView) -> tuple[str, ...]:
    """Choose no node."""
    return ()


class Injection:
    """One fault of a run, from its injection to its healing."""

    def __init__(self, fault: Fault, action: Action) -> None:
        self.fault, self.action = fault, action
        self.targets: tuple[str, ...] = action.targets
        """Node ids once :meth:`settle` has been called."""
        self.kept: Any = None
        """What the injection keeps for the healing."""

    def settle(self, cluster: CheckCluster) -> None:
        """Replace ``leader`` by the node that leads, once."""
        if LEADER in self.targets:
            leader = cluster.leader_now() or cluster.meant[0]
            self.targets = tuple(leader if target == LEADER else target for target in self.targets)

    def inject(self, cluster: CheckCluster) -> str:
        """Do it; returns what was done, for the note."""
        return self.fault.strike(self, cluster)

    def heal(self, cluster: CheckCluster) -> str | None:
        """Undo it, if there is something to undo; returns what else the note should say."""
        return self.fault.heal(self, cluster)

    def argument(self, name: str, otherwise: Any = None) -> Any:
        """One of the action's arguments."""
        return self.action.arguments.get(name, otherwise)


def start_again(one: Injection, cluster: CheckCluster) -> None:
    """Start the targets, which are down, or maybe down."""
    cluster.start(*one.targets)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fault:
    """What the grammar knows of one fault: how it is drawn, what it does, and how that is undone."""

    name: str = field(kw_only=False)
    group: str
    strike: Callable[[Injection, CheckCluster], str]
    """Does it; returns what was done, for the note."""
    heal: Callable[[Injection, CheckCluster], str | None] = lambda one, cluster: None
    """Undoes it, if there is something to undo; returns what else the note should say."""
    whom: Whom = any_node
    how: Callable[[Random, PlanView], dict[str, Any]] = lambda random, view: {}
    """Chooses the arguments. Pure."""
    draw: Callable[[Random, PlanView], FaultChoice] | None = None
    """Chooses both at once, in place of ``whom`` and ``how``."""
    weight: float = 1.0
    """How often it is drawn, against the others of a plan."""
    seconds: tuple[float, float] = (1.0, 3.0)
    """Bounds of how long it lasts."""
    needs: frozenset[Equipment] = frozenset()
    excludes: str = ""
    """Faults with the same word here are never planned at the same time: they turn the same knob."""
    never_with: frozenset[str] = frozenset()
    """Faults that no plan has beside it: what they do to it says nothing about this build."""
    recovery_s: float = 0.0
    """How long healing takes on an idle machine; the same knob is not planned again until then."""
    persistent: bool = False
    """Data of its targets are lost or damaged until an operator has replaced them."""
    process: str = ""
    """Name of the process beside the nodes that the workload must have registered."""

    def pick(self, random: Random, view: PlanView) -> FaultChoice | None:
        """Choose targets and arguments, or None when it cannot be now. Pure."""
        if self.draw is not None:
            return self.draw(random, view)
        targets = self.whom(random, view)
        return None if targets is None else FaultChoice(targets, self.how(random, view))


FAULTS: Final[dict[str, Fault]] = {}
"""All faults by name."""


def fault(row: Fault) -> None:
    """Enter a fault; raises ValueError when its name is taken."""
    if FAULTS.setdefault(row.name, row) is not row:
        raise ValueError(f"two faults are named {row.name}")
