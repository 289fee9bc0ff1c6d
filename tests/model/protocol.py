"""The session protocol as a transition system, small enough to be searched to its end.

Two processes share one session; one of their operations is a transaction, which its condition may refuse. Or all are
plain puts, which travel alone or in runs, cut differently each time (docs/decisions/0045-runs-of-puts.md). A leader
appends what reaches it, in any order and as often as it likes; entries commit one by one, and a change of leader loses
any uncommitted suffix of the log. What an entry does is not described here: the real
:class:`oncegate.gateway.machine.machine.Machine` applies it, with the real :mod:`oncegate.rifl` inside. Only the world
around it is a model, and the checks know nothing of how the machine decides.

| step | what happens |
|---|---|
| deliver | a request that was ever sent is appended to the leader's log: delayed, reordered, duplicated |
| commit | the oldest uncommitted entry is applied, and whoever asked may be answered |
| lose | a new leader keeps a part of what was not committed |
| tick | the leader's clock goes on |
| reap | the leader finds a lease that has ended, by what is applied so far, and appends a reaping |
| restart | the state is saved, and read again |
| hear | a process gets the answer to an operation, or to its opening or take-over |
| give up | a process stops waiting for an operation, and acknowledges it without knowing its fate |

Processes send all that they may send at once: what is not delivered was lost, so nothing is gained by sending later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Final, NamedTuple

from oncegate.gateway.machine.machine import Machine
from tests.model.machines import LEASE_MS, RESTART, About, Effect, Machines, Message, Outcome, share

TICK_MS: Final = 600
FIRST, SECOND = 0, 1
"""The process that opened the session, and the one that takes it over."""


class Bounds(NamedTuple):
    """How much may happen; the search is exhaustive inside."""

    operations: int = 2
    transaction: int = 2
    window: int = 2
    entries: int = 4
    ticks: int = 2
    losses: int = 1
    given_up: int = 1
    runs: bool = False
    restarts: int = 0


class Process(NamedTuple):
    """A process: the epoch it holds (0 for none), and what it no longer waits for, as a set of bits."""

    epoch: int = 0
    done: int = 0

    @property
    def first_incomplete(self) -> int:
        """Smallest sequence number it still waits for."""
        number = 1
        while self.done >> number & 1:
            number += 1
        return number


class Ghost(NamedTuple):
    """What the checks remember of the past; nothing of it is known to the machine."""

    results: tuple[tuple[int, Outcome], ...] = ()
    """The first result of each operation, by sequence number."""
    told: tuple[tuple[int, Outcome], ...] = ()
    """What callers were told."""
    acked: int = 1
    epoch: int = 0
    ends_ms: int = -1
    gone: bool = False
    sealed: tuple[int, ...] = ()


class World(NamedTuple):
    """A state; the applied machine stands in it by its number, the bounds by what is left of them."""

    machine: int
    tail: tuple[tuple[int, Message], ...]
    processes: tuple[Process, Process]
    sent: frozenset[Message]
    clock: int
    left: Bounds
    ghost: Ghost


class Violated(Exception):
    """A promise does not hold."""


class Model:
    """The transition system.

    Args:
        bounds: how much may happen.
        make: makes the machine, so that tests can plant errors in it.
        answers_early: planted: the leader answers when it appends, not when the entry is committed.
    """

    def __init__(self, bounds: Bounds, make: Callable[[], Machine] = Machine, *, answers_early: bool = False) -> None:
        self.bounds = bounds
        self.machines = Machines(make, bounds.window, bounds.transaction, puts=bounds.runs)
        self._answers_early = answers_early

    def start(self) -> World:
        """Return the first state."""
        nobody = Process()
        return World(self.machines.start, (), (nobody, nobody), frozenset({("open",)}), 0, self.bounds, Ghost())

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield what may happen next, each with the state after.

        Raises:
            Violated: a step breaks a promise; the text begins with the step.
        """
        left = world.left
        if left.entries:
            for message in sorted(world.sent, key=repr):
                yield f"deliver {_said(message)}", self._append(world, message)
            ends = self.machines.about[world.machine].ends_ms
            if 0 <= ends < world.clock and not any(message == ("reap",) for _, message in world.tail):
                yield "reap", self._append(world, ("reap",))
        if world.tail:
            yield self._commit(world)
        if left.losses:
            for kept in range(len(world.tail)):
                yield f"lose all but {kept} uncommitted", self._lose(world, kept)
        if left.ticks:
            yield "tick", world._replace(clock=world.clock + TICK_MS, left=left._replace(ticks=left.ticks - 1))
        if left.restarts:
            number, _ = self.machines.step(world.machine, 0, RESTART)
            yield "restart", world._replace(machine=number, left=left._replace(restarts=left.restarts - 1))
        yield from self._hear(world)

    def _append(self, world: World, message: Message) -> World:
        left = world.left._replace(entries=world.left.entries - 1)
        tail = (*world.tail, (world.clock, message))
        ghost = world.ghost
        if self._answers_early:
            number, effect = world.machine, Effect()
            for stamp, each in tail:
                number, effect = self.machines.step(number, stamp, each)
            ghost = _told(ghost, message, effect)
        return world._replace(tail=tail, left=left, ghost=ghost)

    def _commit(self, world: World) -> tuple[str, World]:
        (stamp, message), *rest = world.tail
        before = self.machines.about[world.machine]
        number, effect = self.machines.step(world.machine, stamp, message)
        about = self.machines.about[number]
        said = f"commit {_said(message)} at {about.time_ms}: " + "; ".join(
            f"{each.code or each.result or each.fate or 'done'}{', replayed' if each.replayed else ''}"
            for each in effect.each or (effect,)
        )
        try:
            ghost = _check(world.ghost, message, effect, before, about, self.bounds.transaction)
            after = world._replace(machine=number, tail=tuple(rest), ghost=_told(ghost, message, effect))
        except Violated as broken:
            raise Violated(f"{said}\n  broken: {broken}") from None
        return said, after

    def _lose(self, world: World, kept: int) -> World:
        """Change the leader: its clock goes on from the newest entry it has."""
        tail = world.tail[:kept]
        clock = tail[-1][0] if tail else self.machines.about[world.machine].time_ms
        return world._replace(tail=tail, clock=clock, left=world.left._replace(losses=world.left.losses - 1))

    def _hear(self, world: World) -> Iterator[tuple[str, World]]:
        ghost = world.ghost
        if ghost.epoch >= 1 and not world.processes[FIRST].epoch:
            yield "first hears that the session is open", self._now(world, FIRST, Process(1))
        if ghost.epoch >= 2 and not world.processes[SECOND].epoch:
            # It goes on where the machine says the session stands: below is acknowledged.
            done = sum(1 << number for number in range(1, ghost.acked))
            yield "second hears that it has taken over", self._now(world, SECOND, Process(2, done))
        told = dict(ghost.told)
        for who, process in enumerate(world.processes):
            for sequence in range(1, self.bounds.operations + 1):
                if not process.epoch or process.done >> sequence & 1:
                    continue
                after = self._now(world, who, process._replace(done=process.done | 1 << sequence))
                if sequence in told:
                    yield f"{('first', 'second')[who]} hears of {sequence}", after
                elif world.left.given_up:
                    left = world.left._replace(given_up=world.left.given_up - 1)
                    yield f"{('first', 'second')[who]} gives {sequence} up", after._replace(left=left)

    def _now(self, world: World, who: int, process: Process) -> World:
        processes = (process, world.processes[1]) if who == FIRST else (world.processes[0], process)
        sent: set[Message] = {("take",), ("renew", process.epoch)}
        for sequence in range(process.first_incomplete, self.bounds.operations + 1):
            if process.done >> sequence & 1:
                continue
            sent.add(("op", process.epoch, sequence, process.first_incomplete))
            sent.add(("resolve", sequence))
            if self.bounds.runs:
                ahead = range(sequence + 1, self.bounds.operations + 1)
                for last in takewhile(lambda number: not process.done >> number & 1, ahead):
                    sent.add(("run", process.epoch, sequence, last, process.first_incomplete))
        return world._replace(processes=processes, sent=world.sent | sent)


def _check(ghost: Ghost, message: Message, effect: Effect, before: About, after: About, transaction: int) -> Ghost:
    """Hold a committed entry against the promises; returns what is to be remembered."""
    now, counted = after.time_ms, (after.here, after.there)
    alive = not ghost.gone and ghost.ends_ms >= now
    requested = _requested(message, effect)
    executed = [sequence for sequence, each in requested if each.code is None and not each.replayed]
    if after.commits - before.commits < len(executed) or (
        not executed and (counted, after.commits) != ((before.here, before.there), before.commits)
    ):
        raise Violated("something changed without being executed")
    match message:
        case ("open",) | ("take",) if (
            effect.code is None and effect.epoch and (message[0] == "take" or not ghost.epoch)
        ):
            if message[0] == "take" and not alive:
                raise Violated("a session was taken over whose lease had ended")
            ghost = ghost._replace(epoch=max(ghost.epoch, effect.epoch), ends_ms=max(ghost.ends_ms, now + LEASE_MS))
        case ("open",) if alive and effect.code is None:
            ghost = ghost._replace(ends_ms=max(ghost.ends_ms, now + LEASE_MS))
        case ("renew", epoch) if effect.code is None:
            if not alive or epoch != ghost.epoch:
                raise Violated("a lease was renewed that had ended or belongs to another epoch")
            ghost = ghost._replace(ends_ms=max(ghost.ends_ms, now + LEASE_MS))
        case ("reap",):
            if before.ends_ms >= 0 and after.ends_ms < 0:
                if alive:
                    raise Violated("a session was reaped while its lease lives")
                ghost = ghost._replace(gone=True)
        case ("op", epoch, *_, first_incomplete) | ("run", epoch, *_, first_incomplete):
            for sequence, each in requested:
                ghost = _check_operation(ghost, epoch, sequence, first_incomplete, each, now, alive=alive)
            new = effect.result if transaction in executed else None
            if new is not None and new.applied != (before.here > 0):
                raise Violated(f"the transaction found {before.here}, which is not what it was decided by")
            applied = [number for number, outcome in ghost.results if outcome.applied]
            if counted != (sum(map(share, applied)), share(transaction) * (transaction in applied)):
                raise Violated(f"the counters say {counted}: not what was executed as a whole")
        case ("resolve", sequence) if effect.fate == "sealed":
            if sequence in dict(ghost.results):
                raise Violated(f"{sequence} was sealed as never executed, but it was executed")
            ghost = ghost._replace(sealed=tuple(sorted({*ghost.sealed, sequence})))
    return ghost


def _requested(message: Message, effect: Effect) -> list[tuple[int, Effect]]:
    """Return the operations of a request, each with what became of it."""
    match message:
        case ("op", _, sequence, _):
            return [(sequence, effect)]
        case ("run", _, first, last, _):
            # Without a session there is one refusal an operation, too.
            return list(zip(range(first, last + 1), effect.each, strict=True))
    return []


def _check_operation(
    ghost: Ghost, epoch: int, sequence: int, first_incomplete: int, effect: Effect, now: int, *, alive: bool
) -> Ghost:
    results = dict(ghost.results)
    if effect.code is not None:
        remembered = sequence in results and sequence >= max(ghost.acked, first_incomplete)
        if remembered and not ghost.gone and epoch == ghost.epoch:
            raise Violated(f"{sequence} was applied and is not acknowledged, but is refused: its result is lost")
        return ghost
    if epoch != ghost.epoch:
        raise Violated(f"epoch {epoch} was served although {ghost.epoch} is the session's")
    if effect.replayed:
        if results.get(sequence) != effect.result:
            raise Violated(f"the result of {sequence} has changed from {results.get(sequence)}")
    else:
        if sequence in results:
            raise Violated(f"{sequence} was executed twice")
        if not alive:
            raise Violated(f"{sequence} was executed after the lease had ended")
        if sequence < ghost.acked:
            raise Violated(f"{sequence} was executed after it had been acknowledged")
        if sequence in ghost.sealed:
            raise Violated(f"{sequence} was executed after it had been sealed")
        assert effect.result is not None
        results[sequence] = effect.result
    ends = max(ghost.ends_ms, now + LEASE_MS) if alive else ghost.ends_ms
    return ghost._replace(
        results=tuple(sorted(results.items())), acked=max(ghost.acked, first_incomplete), ends_ms=ends
    )


def _told(ghost: Ghost, message: Message, effect: Effect) -> Ghost:
    """Note what callers were told of operations; another result later is a broken promise."""
    told = dict(ghost.told)
    for sequence, each in _requested(message, effect):
        if each.code is None and each.result is not None and told.setdefault(sequence, each.result) != each.result:
            raise Violated(f"of {sequence} {told[sequence]} was told before")
    return ghost._replace(told=tuple(sorted(told.items())))


def _said(message: Message) -> str:
    return " ".join(str(part) for part in message)


class Found(NamedTuple):
    """What a search saw: how many states, how deep, and the shortest way to a broken promise, if there is one."""

    states: int
    depth: int
    transitions: int
    trace: list[str] | None


def search(model: Model, states_max: int = 10_000_000) -> Found:
    """Visit every state breadth first; the first broken promise is one of the shortest.

    Raises:
        MemoryError: more than ``states_max`` states: the bounds are too wide for this.
    """
    start = model.start()
    parents: dict[World, tuple[World, str] | None] = {start: None}
    level = deque([start])
    depth = transitions = 0
    while level:
        following: deque[World] = deque()
        for world in level:
            try:
                for said, after in model.steps(world):
                    transitions += 1
                    if after not in parents:
                        parents[after] = world, said
                        following.append(after)
            except Violated as broken:
                return Found(len(parents), depth + 1, transitions, [*_way(parents, world), str(broken)])
        if len(parents) > states_max:
            raise MemoryError(f"more than {states_max} states")
        level, depth = following, depth + bool(following)
    return Found(len(parents), depth, transitions, None)


def _way(parents: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    way: list[str] = []
    at: tuple[World, str] | None = parents[world]
    while at is not None:
        way.append(at[1])
        at = parents[at[0]]
    return way[::-1]
