"""What a fault is, and the registry of all of them: the grammar from which plans are made.

A fault is a class of about ten lines with the decorator :func:`fault`; docs/check-faults.md shows a whole one.

``pick`` belongs to the plan: it is pure and reproducible. ``inject`` and ``heal`` block, in a thread of their own, at
their times. They may find that another fault has killed, frozen or removed a node; then they do what is left to do.
:mod:`oncegate.proof.check.cluster` has what they need. Read next: :mod:`oncegate.proof.check.nemesis.plan`.
"""

from __future__ import annotations

import abc
import random as random_module
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

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


class Fault(abc.ABC):
    """One action, from its injection to its healing; the class is what the grammar knows."""

    name: ClassVar[str]
    group: ClassVar[str]
    whom: ClassVar[Whom] = any_node
    weight: ClassVar[float] = 1.0
    """How often it is drawn, against the others of a plan."""
    seconds: ClassVar[tuple[float, float]] = (1.0, 3.0)
    """Bounds of how long it lasts."""
    needs: ClassVar[frozenset[Equipment]] = frozenset()
    excludes: ClassVar[str] = ""
    """Faults with the same word here are never planned at the same time: they turn the same knob."""
    never_with: ClassVar[frozenset[str]] = frozenset()
    """Faults that no plan has beside it: what they do to it says nothing about this build."""
    recovery_s: ClassVar[float] = 0.0
    """How long healing takes on an idle machine; the same knob is not planned again until then."""
    persistent: ClassVar[bool] = False
    """Data of its targets are lost or damaged until an operator has replaced them."""
    process: ClassVar[str] = ""
    """Name of the process beside the nodes that the workload must have registered."""

    def __init__(self, action: Action) -> None:
        self.action = action
        self.targets: tuple[str, ...] = action.targets
        """Node ids once :meth:`settle` has been called."""

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Choose targets and arguments, or None when it cannot be now. Pure."""
        targets = cls.whom(random, view)
        return None if targets is None else FaultChoice(targets, cls.how(random, view))

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        """Choose the arguments. Pure."""
        return {}

    @abc.abstractmethod
    def inject(self, cluster: CheckCluster) -> str:
        """Do it; returns what was done, for the note."""

    def heal(self, cluster: CheckCluster) -> str | None:
        """Undo it, if there is something to undo; returns what else the note should say."""
        return None

    def settle(self, cluster: CheckCluster) -> None:
        """Replace ``leader`` by the node that leads, once."""
        if LEADER in self.targets:
            leader = cluster.leader_now() or cluster.meant[0]
            self.targets = tuple(leader if target == LEADER else target for target in self.targets)

    def argument(self, name: str, otherwise: Any = None) -> Any:
        """One of the action's arguments."""
        return self.action.arguments.get(name, otherwise)


class Down(Fault):
    """A fault that leaves its targets down, or maybe down: they are started again."""

    def heal(self, cluster: CheckCluster) -> str | None:
        """Start them."""
        cluster.start(*self.targets)
        return None


FAULTS: Final[dict[str, type[Fault]]] = {}
"""All faults by name."""
F = TypeVar("F", bound=type[Fault])


def fault(kind: F) -> F:
    """Register a fault; raises ValueError when its name is taken."""
    if FAULTS.setdefault(kind.name, kind) is not kind:
        raise ValueError(f"two faults are named {kind.name}")
    return kind
