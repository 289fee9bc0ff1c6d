"""The history of a run as it happens: every operation's invocation and its outcome.

Owns: the run's clock, process numbers (one outstanding operation each; after an unknown outcome a process goes on
under a new number, because the old operation may still take effect) and the bound of a history. Events:
:mod:`oncegate.proof.lincheck.history`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.lincheck import Event
from oncegate.proof.lincheck.history import EventType

EVENTS_MAX: Final = 4_000_000
"""Beyond it no operation is begun; those under way are still completed."""

LANES: Final = 2 * PROCESSES_MAX
"""Process numbers are equal modulo this for one worker: the lane of a report. The upper half is for final reads."""


class HistoryRecorder:
    """Passes each event to ``write``, in the order of their times; ``clock``: nanoseconds, monotonic."""

    def __init__(
        self, write: Callable[[Event], None], clock: Callable[[], int] = time.monotonic_ns, events_max: int = EVENTS_MAX
    ) -> None:
        self._write = write
        self._clock = clock
        self._began = clock()
        self._events_left = events_max
        self._numbers: dict[int, int] = {}
        self._busy: set[int] = set()

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
        """Record an invocation by a worker, 0..LANES-1; call before the first byte leaves.

        Raises ValueError if the worker's operation before has not been completed.
        """
        if process in self._busy or not 0 <= process < LANES:
            raise ValueError(f"process {process} has an operation under way, or is none")
        self._busy.add(process)
        number = self._numbers.setdefault(process, process)
        begun = Event(number, "invoke", f, key, value, self.now_ns(), node, request)
        self._emit(begun)
        return OpenOperation(self, begun)

    def complete(self, event: Event) -> None:
        """Record the end of an operation; see :class:`OpenOperation`."""
        self._emit(event)
        worker = event.process % LANES
        self._busy.discard(worker)
        if event.type == "info":
            self._numbers[worker] += LANES

    def _emit(self, event: Event) -> None:
        self._events_left -= 1
        self._write(event)


class OpenOperation:
    """An operation under way; exactly one of its methods ends it.

    An operation that none of them ends, such as one that Ctrl-C met, has an unknown outcome.
    """

    def __init__(self, recorder: HistoryRecorder, begun: Event) -> None:
        self._recorder, self._begun = recorder, begun

    def ok(self, value: Any = None, node: str | None = None) -> None:
        """Record that it took effect, and its result."""
        self._end("ok", node, value=value)

    def fail(self, error: str, node: str | None = None) -> None:
        """Record that it certainly did not, and never will, take effect."""
        self._end("fail", node, error=error)

    def info(self, error: str, node: str | None = None) -> None:
        """Record that the outcome is unknown."""
        self._end("info", node, error=error)

    def no_result(self, error: str, node: str | None = None, *, failed: bool) -> None:
        """Record that there is no result: it has ``failed`` for certain, or its outcome is unknown."""
        self._end("fail" if failed else "info", node, error=error)

    def _end(self, kind: EventType, node: str | None, *, value: Any = None, error: str | None = None) -> None:
        begun, now = self._begun, self._recorder.now_ns()
        self._recorder.complete(Event(begun.process, kind, begun.f, begun.key, value, now, node, begun.request, error))
