"""The history of a run as it happens: every operation's invocation and what came of it.

Owns: the run's clock, process numbers (one outstanding operation each; after an unknown outcome a process goes on
under a new number, because the old operation may still take effect) and the bound of a history. What an event is:
:mod:`oncegate.proof.lincheck.history`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal

from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.lincheck import Event

EVENTS_MAX: Final = 4_000_000
"""Beyond it no operation is begun; those under way are still completed."""

LANES: Final = 2 * PROCESSES_MAX
"""Process numbers are equal modulo this for one worker: the lane of a report. The upper half is for final reads."""


class HistoryRecorder:
    """Writes a history.

    Args:
        write: takes each event, in the order of their times.
        clock: nanoseconds, monotonic; read once for the beginning.
        events_max: operations are begun as long as fewer events were written.
    """

    def __init__(
        self,
        write: Callable[[Event], None],
        clock: Callable[[], int] = time.monotonic_ns,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self._write = write
        self._clock = clock
        self._began = clock()
        self._events_left = events_max
        self._numbers: dict[int, int] = {}
        self._busy: set[int] = set()
        self.outcomes: Counter[str] = Counter()
        """Completed operations by ``ok``, ``fail`` and ``info``."""

    @property
    def full(self) -> bool:
        """Whether no operation may be begun any more."""
        return self._events_left <= 0

    def now_ns(self) -> int:
        """Nanoseconds since the run began: the clock of history and faults."""
        return self._clock() - self._began

    def begin(
        self,
        process: int,
        f: str,
        key: Any = None,
        value: Any = None,
        *,
        node: str | None = None,
        request: str | None = None,
    ) -> OpenOperation:
        """Record an invocation; call before the first byte leaves.

        Args:
            process: which worker, 0..LANES-1; it has no other operation under way.
            f: what is done.
            key: on which object.
            value: the argument.
            node: which node is asked first.
            request: ``client_id/sequence``.

        Raises:
            ValueError: the worker's operation before has not been completed.
        """
        if process in self._busy or not 0 <= process < LANES:
            raise ValueError(f"process {process} has an operation under way, or is none")
        self._busy.add(process)
        number = self._numbers.setdefault(process, process)
        self._emit(Event(number, "invoke", f, key, value, self.now_ns(), node, request))
        return OpenOperation(self, process, f, key, request)

    def completed(
        self,
        operation: OpenOperation,
        kind: Literal["ok", "fail", "info"],
        value: Any,
        error: str | None,
        node: str | None,
    ) -> None:
        """Record what came of an operation; see :class:`OpenOperation`."""
        worker = operation.process
        number = self._numbers[worker]
        self._emit(
            Event(number, kind, operation.f, operation.key, value, self.now_ns(), node, operation.request, error)
        )
        self._busy.discard(worker)
        self.outcomes[kind] += 1
        if kind == "info":
            self._numbers[worker] = number + LANES

    def _emit(self, event: Event) -> None:
        self._events_left -= 1
        self._write(event)


class OpenOperation:
    """An operation under way; exactly one of its methods ends it.

    An operation that none of them ends, such as one that Ctrl-C met, has an unknown outcome.
    """

    __slots__ = ("_recorder", "f", "key", "process", "request")

    def __init__(self, recorder: HistoryRecorder, process: int, f: str, key: Any, request: str | None) -> None:
        self._recorder = recorder
        self.process = process
        self.f = f
        self.key = key
        self.request = request

    def ok(self, value: Any = None, node: str | None = None) -> None:
        """It took effect, and this is the result."""
        self._recorder.completed(self, "ok", value, None, node)

    def fail(self, error: str, node: str | None = None) -> None:
        """It certainly did not, and never will, take effect."""
        self._recorder.completed(self, "fail", None, error, node)

    def info(self, error: str, node: str | None = None) -> None:
        """Nobody knows."""
        self._recorder.completed(self, "info", None, error, node)

    def no_result(self, error: str, node: str | None = None, *, failed: bool) -> None:
        """There is no result: it has ``failed`` for certain, or nobody knows."""
        (self.fail if failed else self.info)(error, node)
