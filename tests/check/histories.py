"""Histories in one line an operation, for tests of what workloads find."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.check.recorder import LANES
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.lincheck import Event

FINAL = PROCESSES_MAX
"""The process of final reads."""


def verdicts_follow(
    workload: str, check: str, made: Callable[[int], list[Event]], verdict: Callable[[list[Event]], str], seeds: int
) -> None:
    """See that the check whose name begins so says of made-up histories what ``verdict`` says; both come often."""
    said = Counter[str]()
    for seed in range(seeds):
        events = made(seed)
        (found,) = [one for one in workload_of(workload).check(events) if one.name.startswith(check)]
        assert found.verdict == verdict(events), (seed, events)
        said[found.verdict] += 1
    assert min(said["invalid"], said["valid"]) > 15


class Book:
    """Writes a history; every operation takes one unit of time after the one before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now = 0

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def did(
        self,
        f: str,
        key: Any,
        argument: Any = None,
        result: Any = None,
        *,
        process: int = 0,
        end: str = "ok",
        request: str | None = None,
        error: str | None = None,
        node: str | None = None,
    ) -> Book:
        """Add an operation that begins and ends before the next one begins."""
        self.events.append(Event(process, "invoke", f, key, argument, self._tick(), node, request))
        self.events.append(Event(process, end, f, key, result, self._tick(), node, request, error))  # type: ignore[arg-type]
        return self

    def began(self, f: str, key: Any, argument: Any = None, *, process: int) -> Book:
        """Begin an operation that others overlap."""
        self.events.append(Event(process, "invoke", f, key, argument, self._tick()))
        return self

    def ended(self, f: str, key: Any, result: Any = None, *, process: int) -> Book:
        """End it."""
        self.events.append(Event(process, "ok", f, key, result, self._tick()))
        return self

    def read(self, key: Any, result: Any, f: str = "read") -> Book:
        """Add a final read."""
        return self.did(f, key, None, result, process=FINAL)


class Overlapping:
    """Writes a history of few operations at random times, which overlap and touch; each has a worker of its own."""

    def __init__(self, seed: object) -> None:
        self.dice = random.Random(f"{seed}")
        self._ended: list[tuple[int, int, Event]] = []
        self._workers = 0

    def add(
        self,
        f: str,
        key: Any,
        argument: Any = None,
        result: Any = None,
        *,
        ends: tuple[str, ...] = ("ok", "ok", "ok", "ok", "info", "fail"),
        request: str | None = None,
        error: str = "X",
        final: bool = False,
        node: str = "n1",
    ) -> None:
        """Add an operation with one of these ends."""
        dice, kind = self.dice, self.dice.choice(ends)
        self._workers += 1
        process = (FINAL if final else 0) + LANES * self._workers
        began = dice.randint(1, 9)
        ended = began + dice.randrange(4)
        begun = Event(process, "invoke", f, key, argument, began, node, request)
        told = (result, None) if kind == "ok" else (None, error)
        end = Event(process, kind, f, key, told[0], ended, node, request, told[1])  # type: ignore[arg-type]
        self._ended += [(began, 0, begun), (ended, 1, end)]

    @property
    def events(self) -> list[Event]:
        """The history in the order of its times."""
        return [event for *_, event in sorted(self._ended, key=lambda one: one[:2])]
