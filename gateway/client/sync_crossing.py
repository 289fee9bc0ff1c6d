"""Runs calls of threads without an event loop in the asynchronous SDK.

Owns: a thread with an event loop for each client, its start and end, and how the asynchronous SDK's errors differ for
synchronous callers; the forms that coroutines and asynchronous iterations have there. The calls:
:mod:`oncegate.gateway.client.sync`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown
from oncegate.gateway.client.results import Resolution
from oncegate.rifl.errors import Code, OncegateError, Outcome

LOG = logging.getLogger("oncegate.client")
A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


class Facade(Protocol[A_co]):
    """An object without ``await``: it has one of the asynchronous SDK, and the way to its loop."""

    _crossing: Crossing

    def _opened(self) -> A_co: ...


def without_await(
    method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[A_co], P], T]:
    """Return a call of the asynchronous SDK in the form that runs it on the client's loop and waits for it."""

    @wraps(method)
    def call(self: Facade[A_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._crossing.run(method(self._opened(), *args, **kwargs))

    return call


def behind(self: Facade[A_co], /) -> tuple[A_co, Crossing]:
    """Return what a facade stands for, opened, and the way to its loop."""
    return self._opened(), self._crossing


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
    """A thread that runs an event loop until it is stopped; what comes after that is refused, and never waits."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; an interrupt of the wait cancels it."""
        try:
            self._check_outside()
            with self._lock:
                self._check()
                future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except OperationFailed:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, callback: Callable[[], None]) -> None:
        """Call a function there, soon."""
        with self._lock:
            self._check()
            self.loop.call_soon_threadsafe(callback)

    def _check_outside(self) -> None:
        if threading.current_thread() is self._thread:
            raise OperationFailed(
                Code.CONFLICT, "a callback of the client must not call it", outcome=Outcome.NOT_APPLIED
            )

    def _check(self) -> None:
        if self._stopped:
            raise OperationFailed(Code.CONFLICT, "the client is closed", outcome=Outcome.NOT_APPLIED)

    def stop(self) -> None:
        """Cancel running tasks and end the thread."""
        self._check_outside()
        with self._lock:
            # Behind all that came before it, and before nothing: what nobody runs would be waited for for ever.
            ending = asyncio.run_coroutine_threadsafe(_wind_up(), self.loop)
            self._stopped = True
        ending.result()
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
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the client's process, and no child of it."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Raise CONFLICT in a child process: the loop's thread is not there, and would be waited for for ever."""
        if not self.is_here:
            detail = f"process {os.getpid()} was forked: it needs a client of its own"
            raise OperationFailed(Code.CONFLICT, detail, outcome=Outcome.NOT_APPLIED)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asynchronous SDK on the client's loop and wait for it.

        Raises:
            Doubt: an :class:`OutcomeUnknown`; a subclass of the original error's class.
            OperationFailed: CONFLICT after :meth:`close`, in a child process, or on the loop's own thread.
        """
        try:
            thread = self.thread()
        except BaseException:
            work.close()
            raise
        return self._run(thread, work)

    def _run(self, thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
        try:
            return thread.run(work)
        except OutcomeUnknown as doubt:
            crossed(doubt, self)
            raise

    def steps(self, source: AsyncIterable[T]) -> Generator[T]:
        """Yield what an asynchronous iteration yields, one step on the client's loop for each."""
        steps = cast("AsyncGenerator[T, None]", aiter(source))

        async def step() -> T:
            return await anext(steps)

        try:
            while True:
                try:
                    found = self.run(step())
                except StopAsyncIteration:
                    return
                yield found
        finally:
            with suppress(OperationFailed):  # the client was closed first
                self.run(steps.aclose())

    def thread(self) -> LoopThread:
        """Return the loop's thread; the first call starts it and connects."""
        self.check()  # before the lock, which another thread of the parent may have held
        with self._lock:
            if self._closed:
                raise OperationFailed(Code.CONFLICT, "the client is closed", outcome=Outcome.NOT_APPLIED)
            if self._thread is None:
                started = LoopThread("oncegate-client")
                try:
                    self._run(started, self._client.__aenter__())
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
        """Leave the client, because of an error or without one, and end the thread; idempotent.

        In a child process it does nothing: client and sessions are the parent's.
        """
        if not self.is_here:
            return
        with self._lock:
            thread, self._thread = self._thread, None
            self._closed = True
        if thread is None:
            return
        try:
            self._run(thread, self._client.__aexit__(kind, error, trace))
        finally:
            thread.stop()


async def _wind_up() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    with suppress(RuntimeError):  # as the interpreter ends no thread is started, nor are those of an executor left
        await asyncio.get_running_loop().shutdown_default_executor()


def _close_if_alive(reference: weakref.ref[Crossing]) -> None:
    crossing = reference()
    if crossing is None:
        return
    try:
        crossing.close()
    except OncegateError as failure:  # whoever wanted to hear of it would have closed the client
        LOG.warning("client not closed as the interpreter ended: %s", failure)
