"""What a fault is, and the registry of all of them: the grammar from which plans are made.

A fault is a class of about fifteen lines with the decorator :func:`fault`; docs/check-faults.md has one whole.

``pick`` belongs to the plan: pure, reproducible, told what is planned already. ``inject`` and ``heal`` block, in a
thread of their own, at their times; they may find a node killed, frozen or removed by another fault, and do then what
is left to do. What they need of the cluster is in :mod:`oncegate.proof.check.cluster`.
Read next: :mod:`oncegate.proof.check.nemesis.plan`.
"""

from __future__ import annotations

import abc
import random as random_module
from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment

Random = random_module.Random
LEADER: Final = "leader"
"""As a target: whoever leads when the fault begins."""
FOLLOWER: Final = "follower"
"""As a target: the first node that does not lead then."""


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault of a plan."""

    fault: str
    start: float
    """Seconds after the run began."""
    seconds: float
    """From the injection to the healing."""
    targets: tuple[str, ...] = ()
    """Node ids, :data:`LEADER` or :data:`FOLLOWER`."""
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


class Fault(abc.ABC):
    """One action, from its injection to its healing; the class is what the grammar knows."""

    name: ClassVar[str]
    group: ClassVar[str]
    weight: ClassVar[float] = 1.0
    """How often it is drawn, against the others of a plan."""
    seconds: ClassVar[tuple[float, float]] = (1.0, 3.0)
    """Bounds of how long it lasts."""
    needs: ClassVar[frozenset[Equipment]] = frozenset()
    excludes: ClassVar[str] = ""
    """Faults with the same word here are never planned at the same time: they turn the same knob."""
    recovery_s: ClassVar[float] = 0.0
    """What its healing takes on an idle machine; so long after its end the same knob is not planned again."""
    persistent: ClassVar[bool] = False
    """Data of its targets are lost or damaged until an operator has replaced them."""
    process: ClassVar[str] = ""
    """Name of the process beside the nodes that the workload must have registered."""

    def __init__(self, action: Action) -> None:
        self.action = action
        self.targets: tuple[str, ...] = action.targets
        """On whom; node ids once :meth:`settle` has been called."""

    @classmethod
    @abc.abstractmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Choose targets and arguments, or None when it cannot be now. Pure."""

    @abc.abstractmethod
    def inject(self, cluster: CheckCluster) -> str:
        """Do it; returns what was done, for the note."""

    @abc.abstractmethod
    def heal(self, cluster: CheckCluster) -> str | None:
        """Undo it; returns what else there is to say, for the note."""

    def settle(self, cluster: CheckCluster) -> None:
        """Find out who is meant by ``leader`` and ``follower``, once."""
        if LEADER not in self.targets and FOLLOWER not in self.targets:
            return
        leader = cluster.leader_now() or cluster.meant[0]
        follower = next((node_id for node_id in cluster.meant if node_id != leader), leader)
        names = {LEADER: leader, FOLLOWER: follower}
        self.targets = tuple(names.get(target, target) for target in self.targets)

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


def one_of(random: Random, nodes: Sequence[str]) -> FaultChoice | None:
    """One node, any."""
    return FaultChoice((random.choice(list(nodes)),)) if nodes else None


def in_any_order(random: Random, view: PlanView) -> tuple[str, ...]:
    """All nodes, shuffled."""
    return tuple(random.sample(view.nodes, len(view.nodes)))


def one_or_all(random: Random, view: PlanView) -> FaultChoice:
    """All nodes, three times in ten, else the leader or any."""
    return FaultChoice(view.nodes) if random.random() < 0.3 else with_leader(random, view.nodes)


def with_leader(random: Random, nodes: Sequence[str]) -> FaultChoice:
    """The leader, half the time, else any node."""
    return FaultChoice((LEADER if random.random() < 0.5 else random.choice(list(nodes)),))
