"""How a bug is planted in the engine for a while, and the register of all.

Read next: :mod:`oncegate.proof.sim.engine.planted`, :mod:`oncegate.proof.sim.engine.planted_members`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from oncegate.consensus.core.engine import Engine
from oncegate.proof.sim.engine.engine_node import EngineNode
from oncegate.proof.sim.engine.observed import ObservedLog


@dataclass(frozen=True)
class Planted:
    """One bug: what is wrong, and the parts that are replaced for it."""

    wrong: str
    patches: tuple = ()
    engine_type: type = Engine
    log_type: type = ObservedLog
    kinds: Mapping[str, int] | None = None
    """Faults other than the usual mix."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    seeds: int = 100

    @contextmanager
    def plant(self):
        """Give the type of a node with the bug."""
        node_type = type("PlantedNode", (EngineNode,), {"engine_type": self.engine_type, "log_type": self.log_type})
        with ExitStack() as stack:
            for target, name, replacement in self.patches:
                stack.enter_context(patch.object(target, name, replacement))
            yield node_type


PLANTED: dict[str, Planted] = {}


def plant(name: str, wrong: str, *patches, **options) -> None:
    PLANTED[name] = Planted(wrong, patches, **options)


def planted(name: str, wrong: str, *place, **options):
    """Plant what follows: an engine, a journal, or what stands at a place, given as owner and attribute."""

    def enter(bug):
        if place:
            plant(name, wrong, (*place, bug), **options)
        else:
            plant(name, wrong, **{"engine_type" if issubclass(bug, Engine) else "log_type": bug}, **options)
        return bug

    return enter
