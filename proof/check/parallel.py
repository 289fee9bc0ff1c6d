"""Keys checked side by side in processes, with a model by name or a user's own out of a file.

Owns: how keys are dealt out to worker processes, and what becomes of those whose worker ends early or takes too long:
their verdict is unknown, all others have theirs. At most ``jobs`` processes run at a time, each with its share of the
limits. As in :mod:`oncegate.proof.lincheck.check`, every key gets a short try before any gets a longer one, and no
harder key is tried after the first invalid one.
"""

from __future__ import annotations

import heapq
import importlib.util
import multiprocessing
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import msgspec

from oncegate.proof.lincheck import MODELS, Limits, Model, ModelError, Operation, Result, check
from oncegate.proof.lincheck.check import not_decided, split, states_of_try
from oncegate.proof.lincheck.search import checked
from oncegate.proof.lincheck.verdict import FAILURES_MAX, worst

GRACE_S: Final = 10.0
"""How long after its time a worker may take to start, explain a failure and answer; then it is killed."""
_NUMBER_BYTES: Final = 4
_Task = tuple[int, int, bytes]
"""The number of a key, how many states it may visit, and its operations."""

_operations: Final = msgspec.json.Decoder(list[Operation])
_result: Final = msgspec.json.Decoder(Result)


class WorkerFailed(RuntimeError):
    """A worker met a bug, in the checker or in a user's model; its traceback is on standard error."""


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    answers: Connection
    tasks: deque[_Task]


def load_model(spec: str) -> Model:
    """Return the model that ``spec`` names: one of :data:`oncegate.proof.lincheck.MODELS`, or ``FILE.py:Class``.

    The file is run, as any script that its user names.

    Raises ModelError if there is no such model, file or class, or it is no model.
    """
    if spec in MODELS:
        return MODELS[spec]
    name, colon, cls = spec.rpartition(":")
    if not colon or not name.endswith(".py"):
        raise ModelError(f"no model {spec!r}; there are {', '.join(sorted(MODELS))}, or FILE.py:Class")
    path = Path(name)
    if not path.is_file():
        raise ModelError(f"there is no file {name}")
    module_spec = importlib.util.spec_from_file_location(f"oncegate_model_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise ModelError(f"{name} is no Python file")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    found = getattr(module, cls, None)
    if not isinstance(found, type):
        raise ModelError(f"{name} has no class {cls}")
    model: Model = found()
    missing = [part for part in ("name", "partitioned", "initial", "step") if not hasattr(model, part)]
    if missing:
        raise ModelError(f"{cls} has no {', '.join(missing)}")
    return model


def check_keys(operations: Iterable[Operation], model: str, limits: Limits, jobs: int) -> Result:
    """Decide whether a history is linearizable, several keys at a time.

    Args:
        operations: of the whole history.
        model: as :func:`load_model` takes it.
        limits: for all keys together; its clock is not used in the workers.
        jobs: processes at a time, at least 1.

    Returns and raises as :func:`oncegate.proof.lincheck.check.check`; a key whose worker was killed or took too long is
    unknown.

    Raises WorkerFailed if a worker raised.
    """
    loaded = load_model(model)
    parts = [part for _, part in split(checked(loaded, operations), loaded)]
    encoded = [msgspec.json.encode(part) for part in parts]
    ends = time.monotonic() + limits.seconds
    results: dict[int, Result] = {}
    undecided, tries, invalid = list(range(len(parts))), 0, False
    while undecided and not invalid:
        share = _Share(model, limits, max(0.0, ends - time.monotonic()), len(undecided), jobs)
        states = {
            number: share.states_max
            if len(parts) == 1
            else min(share.states_max, states_of_try(len(parts[number]), tries))
            for number in undecided
        }
        tasks = [(number, states[number], encoded[number]) for number in undecided]
        tried = _ParallelRun(share, jobs, stop_at_invalid=tries > 0).run(_groups(tasks, jobs))
        results |= tried
        invalid = any(result.verdict == "invalid" for result in tried.values())
        undecided = [
            number
            for number in undecided
            if number not in tried
            or (
                tried[number].verdict == "unknown"
                and states[number] < min(share.states_max, tried[number].states_visited)
            )
        ]
        tries += 1
    return _merged(f"linearizable {loaded.name}", parts, results, set(undecided))


@dataclass(frozen=True, slots=True)
class _Share:
    model: str
    limits: Limits
    seconds_in_all: float
    keys: int
    jobs: int

    @property
    def seconds(self) -> float:
        """Seconds of one key, if all take theirs."""
        return self.seconds_in_all * self.jobs / max(self.keys, self.jobs)

    @property
    def states_max(self) -> int:
        return max(1, self.limits.states_max // max(1, self.keys))

    @property
    def bytes_max(self) -> int:
        return self.limits.bytes_max // self.jobs


def _groups(tasks: Sequence[_Task], jobs: int) -> deque[deque[_Task]]:
    """Deal keys out, large ones first, to a group a job, of about the same size: a process takes long to start."""
    groups: list[tuple[int, int, deque[_Task]]] = [(0, place, deque()) for place in range(min(jobs, len(tasks)))]
    for task in sorted(tasks, key=lambda task: -len(task[2])):
        size, place, group = heapq.heappop(groups)
        group.append(task)
        heapq.heappush(groups, (size + len(task[2]), place, group))
    return deque(group for _, _, group in groups)


class _ParallelRun:
    def __init__(self, share: _Share, jobs: int, *, stop_at_invalid: bool) -> None:
        self.share = share
        self.jobs = jobs
        self.stop_at_invalid = stop_at_invalid
        self.context = multiprocessing.get_context("spawn")
        self.results: dict[int, Result] = {}
        self.workers: list[_Worker] = []

    def run(self, groups: deque[deque[_Task]]) -> dict[int, Result]:
        ends = time.monotonic() + self.share.seconds_in_all + GRACE_S
        try:
            while groups or self.workers:
                while groups and len(self.workers) < self.jobs:
                    self.workers.append(self._start(groups.popleft()))
                left = ends - time.monotonic()
                ready = set(wait([worker.answers for worker in self.workers], max(0.0, left)))
                if not ready and left <= 0:
                    for tasks in [*groups, *(worker.tasks for worker in self.workers)]:
                        self._unknown(tasks, "no time left")
                    break
                for worker in [worker for worker in self.workers if worker.answers in ready]:
                    self._receive(worker, groups)
                if self.stop_at_invalid and any(result.verdict == "invalid" for result in self.results.values()):
                    break
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()
                worker.answers.close()
        return self.results

    def _start(self, tasks: deque[_Task]) -> _Worker:
        ours, theirs = self.context.Pipe(duplex=False)
        share = self.share
        process = self.context.Process(
            target=_work, args=(theirs, share.model, share.seconds, share.bytes_max, list(tasks)), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, tasks)

    def _receive(self, worker: _Worker, groups: deque[deque[_Task]]) -> None:
        try:
            message = worker.answers.recv_bytes()
        except (EOFError, ConnectionError):
            self._ended(worker, groups)
            return
        number = int.from_bytes(message[:_NUMBER_BYTES])
        self.results[number] = _result.decode(message[_NUMBER_BYTES:])
        worker.tasks.popleft()
        if not worker.tasks:
            worker.process.join()
            worker.answers.close()
            self.workers.remove(worker)

    def _ended(self, worker: _Worker, groups: deque[deque[_Task]]) -> None:
        """Take what an ended worker had in hand as unknown, and give the rest to another."""
        worker.process.join()
        worker.answers.close()
        self.workers.remove(worker)
        if (worker.process.exitcode or 0) > 0:
            raise WorkerFailed("a worker failed; its traceback is above")
        self._unknown([worker.tasks.popleft()], "the process that checked it was killed")
        if worker.tasks:
            groups.appendleft(worker.tasks)

    def _unknown(self, tasks: Iterable[_Task], reason: str) -> None:
        for number, _, _ in tasks:
            self.results[number] = Result("", "unknown", reason=reason)


def _work(answers: Connection, model: str, seconds: float, bytes_max: int, tasks: list[_Task]) -> None:
    """Check keys one after another and send each verdict; runs in a process of its own."""
    loaded = load_model(model)
    for number, states_max, data in tasks:
        limits = Limits(states_max=states_max, seconds=seconds, clock=time.monotonic, bytes_max=bytes_max)
        result = check(_operations.decode(data), loaded, limits)
        answers.send_bytes(number.to_bytes(_NUMBER_BYTES) + msgspec.json.encode(result))
    answers.close()


def _merged(
    name: str, parts: Sequence[Sequence[Operation]], results: dict[int, Result], given_up: Collection[int]
) -> Result:
    ordered = [results.get(number, Result("", "unknown")) for number in range(len(parts))]
    reasons: list[str] = []
    for number, result in enumerate(ordered):
        if result.reason and number not in given_up:
            reasons.append(result.reason if result.name else f"key {parts[number][0].key}: {result.reason}")
    if given_up:
        reasons.append(not_decided(len(given_up), len(parts)))
    return Result(
        name=name,
        verdict=worst(result.verdict for result in ordered),
        operations=sum(map(len, parts)),
        keys=len(parts),
        failures=[failure for result in ordered for failure in result.failures][:FAILURES_MAX],
        reason="; ".join(reasons[:FAILURES_MAX]),
        states_visited=sum(result.states_visited for result in ordered),
        bytes_estimated=max((result.bytes_estimated for result in ordered), default=0),
    )
