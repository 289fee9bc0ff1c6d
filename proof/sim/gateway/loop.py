"""An asyncio event loop on simulated time: the coroutines of one node's life.

Callbacks run when the node is free, in the order in which they were scheduled; nothing runs after the node has died.
Read next: :mod:`oncegate.proof.sim.gateway.node`.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SimLoop(asyncio.AbstractEventLoop):
    """What futures, tasks and timeouts ask of a loop, and no more."""

    def __init__(self, node):
        self._node = node
        self._ready = deque()
        self._scheduled = False
        self._dead = False
        self._before = []
        self._tasks = {}
        """In order of their making: a set of them would be in order of memory."""

    def __enter__(self):
        """Run code as this loop's; nodes wait for disks inside each other."""
        self._before.append(asyncio._get_running_loop())
        asyncio._set_running_loop(self)

    def __exit__(self, *how):
        asyncio._set_running_loop(self._before.pop())

    def kill(self):
        """The process is gone; coroutines end where they stand."""
        self._dead = True
        self._ready.clear()
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task._log_destroy_pending = False
            if not task.done():
                task.get_coro().close()

    # -- what asyncio calls ------------------------------------------------------------------------------

    def time(self):
        return self._node.clock.read()

    def call_soon(self, callback, *args, context=None):
        handle = asyncio.Handle(callback, args, self, context)
        if not self._dead:
            self._ready.append(handle)
            self._schedule()
        return handle

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._dead:
            self._node.world.scheduler.after(max(0.0, when - self.time()), self._fire, handle)
        return handle

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        task = asyncio.Task(coro, loop=self, name="sim")
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def get_debug(self):
        return False

    def is_running(self):
        return True

    def is_closed(self):
        return self._dead

    def call_exception_handler(self, context):
        # What a callback raises ends the run; what is said of objects that are thrown away does not matter.
        if "handle" in context and "exception" in context:
            raise context["exception"]

    def _timer_handle_cancelled(self, handle):
        pass

    # -- inside ------------------------------------------------------------------------------------------

    def _forget(self, task):
        self._tasks.pop(task, None)

    def _fire(self, handle):
        if not self._dead and not handle.cancelled():
            self._ready.append(handle)
            self._schedule()

    def _schedule(self):
        if not self._scheduled:
            self._scheduled = True
            self._node.world.scheduler.after(0.0, self._node.handle, self._run)

    def _run(self):
        self._scheduled = False
        if self._dead:
            return
        ready = self._ready
        with self:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if self._dead:
                    return
        if ready:
            self._schedule()
