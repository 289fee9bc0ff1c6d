"""Runs calls of threads without an event loop in the asynchronous SDK.

Owns: a thread with an event loop for each client, its start and end, and how the asynchronous SDK's errors differ for
synchronous callers. The calls: :mod:`oncegate.gateway.client.sync`.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown
from oncegate.gateway.client.results import Resolution
from oncegate.rifl.errors import Code, Outcome

T = TypeVar("T")


class Doubt(OutcomeUnknown):
    """An :class:`OutcomeUnknown`, or a subclass, for synchronous callers: :meth:`resolve` needs no ``await``."""

    _crossing: Crossing

    def __reduce__(self) -> tuple[object, ...]:
        # After unpickling there may be no crossing: it becomes the error of the asynchronous SDK again.
        rebuild, values, *state = super().__reduce__()
        kind = type(self).__mro__[1 if type(self) is Doubt else 2]
        values = tuple(kind if value is type(self) else value for value in values)  # type: ignore[attr-defined]
        return rebuild, values, *state

    def resolve(self, *, timeout_s: float | None = None) -> Resolution:  # type: ignore[override]
        """End the doubt, as :meth:`OutcomeUnknown.resolve`."""
        return self._crossing.run(super().resolve(timeout_s=timeout_s))


_KINDS: dict[type[OutcomeUnknown], type[Doubt]] = {OutcomeUnknown: Doubt}


def crossed(failure: BaseException, crossing: Crossing) -> BaseException:
    """Make an error of the asynchronous SDK usable for callers without a loop; returns the same object."""
    if isinstance(failure, OutcomeUnknown) and not isinstance(failure, Doubt):
        kind = type(failure)
        failure.__class__ = _KINDS.setdefault(kind, type(kind.__name__, (Doubt, kind), {"__doc__": kind.__doc__}))
        vars(failure)["_crossing"] = crossing
    return failure


class LoopThread:
    """A thread that runs an event loop until it is stopped."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; an interrupt of the wait cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise OperationFailed(
                Code.CONFLICT, "a callback of the client must not call it", outcome=Outcome.NOT_APPLIED
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel running tasks and end the thread."""
        self.run(_wind_up())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Crossing:
    """Runs the calls of one client on its event loop; safe to use from several threads.

    Args:
        client: entered on the loop by the first call, left by :meth:`close`, or when the interpreter ends.
    """

    def __init__(self, client: AbstractAsyncContextManager[Any]) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asynchronous SDK on the client's loop and wait for it.

        Raises:
            Doubt: an :class:`OutcomeUnknown`; a subclass of the original error's class.
            OperationFailed: CONFLICT after :meth:`close`, or on the loop's own thread.
        """
        try:
            thread = self.thread()
        except BaseException:
            work.close()
            raise
        try:
            return thread.run(work)
        except OutcomeUnknown as doubt:
            crossed(doubt, self)
            raise

    def thread(self) -> LoopThread:
        """Return the loop's thread; the first call starts it and connects."""
        with self._lock:
            if self._closed:
                raise OperationFailed(Code.CONFLICT, "the client is closed", outcome=Outcome.NOT_APPLIED)
            if self._thread is None:
                started = LoopThread("oncegate-client")
                try:
                    started.run(self._client.__aenter__())
                except BaseException:
                    started.stop()
                    raise
                self._thread = started
                atexit.register(_close_if_alive, weakref.ref(self))
            return self._thread

    def close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """Leave the client, because of an error or without one, and end the thread; idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._closed = True
        if thread is None:
            return
        try:
            thread.run(self._client.__aexit__(kind, error, trace))
        finally:
            thread.stop()


async def _wind_up() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


def _close_if_alive(reference: weakref.ref[Crossing]) -> None:
    crossing = reference()
    if crossing is not None:
        crossing.close()
