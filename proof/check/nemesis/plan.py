"""Which fault when, on whom: made from a seed, pure, and kept as JSON so that parts can be left out and replayed.

Two rules hold for every plan. Each fault ends before the plan does. And the nodes whose data may be lost
(:attr:`Fault.persistent`) are together no more than a minority, one at a time: with more, a cluster may rightly lose
what it acknowledged, and a run would prove nothing.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from oncegate.proof.check.equipment import Equipment, missing
from oncegate.proof.check.nemesis.fault import FAULTS, Action, Fault, PlanView

ALL: Final = "all"
SECOND_SHARE: Final = 0.4
"""How often another fault begins while one is there."""
AT_ONCE_MAX: Final = 3
LEAD_SHARE: Final = 0.05
"""Of the time, before the first fault: something is to be written first."""
QUIET_S: Final = (0.2, 1.0)
INCOMPATIBLE_SHARE: Final = 0.2
"""Of the plans in which all faults may be: those with a fault that many others cannot be beside."""
TRIES: Final = 8


class FaultPlan(msgspec.Struct, frozen=True):
    """Faults in order of their beginning, and from what they were made."""

    seed: int
    seconds: float
    nodes: tuple[str, ...]
    names: tuple[str, ...]
    actions: tuple[Action, ...]

    @property
    def equipment(self) -> frozenset[Equipment]:
        """What the cluster needs to have for it."""
        return frozenset(need for action in self.actions for need in FAULTS[action.fault].needs)

    def without(self, indexes: Collection[int]) -> FaultPlan:
        """The same plan, less these actions; all others keep their times and targets."""
        kept = tuple(action for index, action in enumerate(self.actions) if index not in indexes)
        return msgspec.structs.replace(self, actions=kept)

    def to_json(self) -> bytes:
        """As JSON; :meth:`from_json` gives the same plan."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> FaultPlan:
        """Read a plan; raises ValueError if it is none, or names a fault that does not exist."""
        plan = msgspec.json.decode(data, type=cls)
        for action in plan.actions:
            if action.fault not in FAULTS:
                raise ValueError(f"there is no fault {action.fault!r}")
        return plan


def names_of(words: str | Iterable[str], processes: Collection[str] = ()) -> list[str]:
    """The faults that are meant by names and groups, joined by ``+`` or listed; ``all`` means all of them.

    Those that need a process which is not among the workload's ``processes`` come only by their own name or group.

    Raises ValueError if a word is neither a fault nor a group.
    """
    found: set[str] = set()
    for word in words.split("+") if isinstance(words, str) else words:
        meant = {
            name
            for name, kind in FAULTS.items()
            if word in (name, kind.group) or (word == ALL and (not kind.process or kind.process in processes))
        }
        if not meant and word != "none":
            groups = sorted({kind.group for kind in FAULTS.values()})
            raise ValueError(f"{word!r} is no fault; groups are {ALL}, none, {', '.join(groups)}")
        found |= meant
    return sorted(found)


def available(
    names: Iterable[str], *, processes: Collection[str] = (), lacks: dict[Equipment, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Part faults into those that this machine and this workload allow, and those that they do not, with the reason.

    ``processes`` are those that the workload will register; by default :func:`missing` says what the machine lacks.
    """
    lacking = dict(missing()) if lacks is None else lacks
    possible: list[str] = []
    left_out: dict[str, str] = {}
    for name in names:
        kind = FAULTS[name]
        reasons = [lacking[need] for need in sorted(kind.needs) if need in lacking]
        if kind.process and kind.process not in processes:
            reasons.append(f"the workload has no {kind.process}")
        if reasons:
            left_out[name] = "; ".join(reasons)
        else:
            possible.append(name)
    return possible, left_out


def plan_of(seed: int, names: Sequence[str], seconds: float, nodes: int | Sequence[str]) -> FaultPlan:
    """Make a plan: the same arguments give the same plan, on any machine.

    Args:
        seed: any integer.
        names: faults and groups (:func:`names_of`).
        seconds: how long the run lasts; all faults have ended by then.
        nodes: ids of the members, or how many (``n1``, ``n2`` and so on).
    """
    members = tuple(f"n{i + 1}" for i in range(nodes)) if isinstance(nodes, int) else tuple(nodes)
    chosen = names_of(names)
    random = random_module.Random(f"{seed} {' '.join(chosen)} {seconds:g} {' '.join(members)}")
    # Chosen once for the whole plan: what is damaged may not be replaced before the next damage comes.
    damageable = tuple(sorted(random.sample(members, (len(members) - 1) // 2)))
    view = PlanView(members, damageable)
    kinds = _compatible(random, [FAULTS[name] for name in chosen])
    return FaultPlan(seed, seconds, members, tuple(chosen), tuple(_Maker(random, view, kinds, seconds).make()))


def _compatible(random: random_module.Random, kinds: list[Fault]) -> list[Fault]:
    """Leave out some faults where not all can be in one plan."""
    for kind in kinds:
        others = [other for other in kinds if other.name not in kind.never_with]
        if kind in kinds and len(others) < len(kinds):
            stays = random.random() < INCOMPATIBLE_SHARE
            kinds = others if stays else [other for other in kinds if other is not kind]
    return kinds


class _Maker:
    """Fills the time with faults, one after the other, and sometimes another at the same time."""

    def __init__(self, random: random_module.Random, view: PlanView, kinds: list[Fault], seconds: float) -> None:
        self._random, self._view, self._kinds, self._seconds = random, view, kinds, seconds
        self._used = dict.fromkeys(kinds, 0)
        self._actions: list[Action] = []

    def make(self) -> list[Action]:
        random, at = self._random, self._seconds * LEAD_SHARE
        while self._kinds:
            at += random.uniform(*QUIET_S)
            if at >= self._seconds:
                break
            first = self._draw(at)
            if first is None:
                continue
            self._actions.append(first)
            end = first.end
            for _ in range(AT_ONCE_MAX - 1):
                if random.random() >= SECOND_SHARE:
                    break
                other = self._draw(random.uniform(first.start, first.end))
                if other is not None:
                    self._actions.append(other)
                    end = max(end, other.end)
            at = end
        return sorted(self._actions, key=lambda action: action.start)

    def _draw(self, start: float) -> Action | None:
        random = self._random
        start = round(start, 3)
        for _ in range(TRIES):
            # Those that have been drawn less come first: a short plan is not one fault many times.
            weights = [kind.weight / (1 + 2 * self._used[kind]) for kind in self._kinds]
            kind = random.choices(self._kinds, weights)[0]
            shortest, longest = kind.seconds
            room = self._seconds - start
            if room < shortest:
                continue
            seconds = random.uniform(shortest, min(longest, room))
            # Rounded down, so that the end stays inside.
            seconds = int(seconds * 1000) / 1000
            if not self._allowed(kind, start, start + seconds):
                continue
            choice = kind.pick(random, self._view)
            if choice is not None:
                self._used[kind] += 1
                return Action(kind.name, start, seconds, choice.targets, choice.arguments)
        return None

    def _allowed(self, kind: Fault, start: float, end: float) -> bool:
        for action in self._actions:
            other = FAULTS[action.fault]
            if not (kind.persistent and other.persistent) and not (kind.excludes and other.excludes == kind.excludes):
                continue
            if start <= action.end + other.recovery_s and action.start <= end + kind.recovery_s:
                return False
        return True
