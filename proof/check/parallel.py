"""Keys checked side by side, in processes.

Owns: how keys are dealt out to worker processes, and what becomes of those whose worker ends early or takes too long:
their verdict is unknown, all others have theirs. At most ``jobs`` processes run at a time, each with its share of the
limits.
"""

from __future__ import annotations

import heapq
import multiprocessing
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final

import msgspec

from oncegate.proof.check.models import load_model
from oncegate.proof.lincheck import Limits, Operation, Result, check
from oncegate.proof.lincheck.check import FAILURES_MAX, split
from oncegate.proof.lincheck.search import checked
from oncegate.proof.lincheck.verdict import worst

GRACE_S: Final = 10.0
"""How long after its time a worker may take to start, explain a failure and answer; then it is killed."""
_NUMBER_BYTES: Final = 4
_Task = tuple[int, bytes]

_operations: Final = msgspec.json.Decoder(list[Operation])
_result: Final = msgspec.json.Decoder(Result)


class WorkerFailed(RuntimeError):
    """A worker met a bug, in the checker or in a user's model; its traceback is on standard error."""


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    answers: Connection
    tasks: deque[_Task]


def check_keys(operations: Iterable[Operation], model: str, limits: Limits, jobs: int) -> Result:
    """Decide whether a history is linearizable, several keys at a time.

    Args:
        operations: of the whole history.
        model: as :func:`oncegate.proof.check.models.load_model` takes it.
        limits: for all keys together; its clock is not used in the workers.
        jobs: processes at a time, at least 1.

    Returns:
        As :func:`oncegate.proof.lincheck.check.check`; a key whose worker was killed or took too long is unknown.

    Raises:
        ModelError: there is no such model, or an operation is none of it.
        WorkerFailed: a worker raised.
    """
    loaded = load_model(model)
    parts = [part for _, part in split(checked(loaded, operations), loaded)]
    encoded = [msgspec.json.encode(part) for part in parts]
    share = _Share(model, limits, len(parts), jobs)
    results = _Run(share, jobs).run(_groups(encoded, jobs))
    return _merged(f"linearizable {loaded.name}", parts, results)


@dataclass(frozen=True, slots=True)
class _Share:
    model: str
    limits: Limits
    keys: int
    jobs: int

    @property
    def seconds(self) -> float:
        """Seconds of one key, if all take theirs."""
        return self.limits.seconds * self.jobs / max(self.keys, self.jobs)

    @property
    def states_max(self) -> int:
        return max(1, self.limits.states_max // max(1, self.keys))

    @property
    def bytes_max(self) -> int:
        return self.limits.bytes_max // self.jobs


def _groups(encoded: Sequence[bytes], jobs: int) -> deque[deque[_Task]]:
    """Deal keys out, large ones first, to a group a job, of about the same size: a process takes long to start."""
    groups: list[tuple[int, int, deque[_Task]]] = [(0, place, deque()) for place in range(min(jobs, len(encoded)))]
    for number in sorted(range(len(encoded)), key=lambda number: -len(encoded[number])):
        size, place, group = heapq.heappop(groups)
        group.append((number, encoded[number]))
        heapq.heappush(groups, (size + len(encoded[number]), place, group))
    return deque(group for _, _, group in groups)


class _Run:
    def __init__(self, share: _Share, jobs: int) -> None:
        self.share = share
        self.jobs = jobs
        self.context = multiprocessing.get_context("spawn")
        self.results: dict[int, Result] = {}
        self.workers: list[_Worker] = []

    def run(self, groups: deque[deque[_Task]]) -> dict[int, Result]:
        ends = time.monotonic() + self.share.limits.seconds + GRACE_S
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
            target=_work,
            args=(theirs, share.model, share.seconds, share.states_max, share.bytes_max, list(tasks)),
            daemon=True,
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
        for number, _ in tasks:
            self.results[number] = Result("", "unknown", reason=reason)


def _work(answers: Connection, model: str, seconds: float, states_max: int, bytes_max: int, tasks: list[_Task]) -> None:
    """Check keys one after another and send each verdict; runs in a process of its own."""
    loaded = load_model(model)
    limits = Limits(states_max=states_max, seconds=seconds, clock=time.monotonic, bytes_max=bytes_max)
    for number, data in tasks:
        result = check(_operations.decode(data), loaded, limits)
        answers.send_bytes(number.to_bytes(_NUMBER_BYTES) + msgspec.json.encode(result))
    answers.close()


def _merged(name: str, parts: Sequence[Sequence[Operation]], results: dict[int, Result]) -> Result:
    ordered = [results[number] for number in range(len(parts))]
    reasons: list[str] = []
    for part, result in zip(parts, ordered, strict=True):
        if result.reason:
            reasons.append(result.reason if result.name else f"key {part[0].key}: {result.reason}")
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
