"""Asks the cluster, in the background, what became of the writes whose callers do not know.

Owns: the task that asks, how many questions are under way, and the pauses between them while the cluster does not
answer. What is in doubt: :mod:`oncegate.gateway.client.doubts`. What a question is: the ``ask`` that it is given.

While the cluster answers, up to ``ASKED_MAX`` questions are under way; after one without an answer a single one, with a
pause before it that doubles. So a thousand doubts of an outage cost a frozen cluster no more than one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import uniform
from typing import Final

from oncegate.gateway.client.doubts import Doubts, Question
from oncegate.gateway.client.failures import NeverKnown, OperationFailed
from oncegate.rifl.errors import Code

LOG = logging.getLogger("oncegate.client")

ASKED_MAX: Final = 16
ASK_S: Final = 5.0
"""Total time of one question, its retries included."""
PAUSE_FIRST_S: Final = 0.05
PAUSE_CAP_S: Final = 2.0


class Learner:
    """Learns the fates of what is in doubt; a task runs while there is something to ask.

    Args:
        doubts: what to ask about.
        ask: learns and keeps one fate; raises NeverKnown, or OperationFailed without an answer.
        needed: tells whether fates have to be learned now.
        learned: called after each round, when what is known may have changed.
    """

    def __init__(
        self,
        doubts: Doubts,
        ask: Callable[[Question], Awaitable[None]],
        needed: Callable[[], bool],
        learned: Callable[[], None],
    ) -> None:
        self._doubts = doubts
        self._ask = ask
        self._needed = needed
        self._learned = learned
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def wake(self) -> None:
        """Ask about what is in doubt, if that is needed and nothing asks already."""
        if self._task is None and not self._closed and self._needed():
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    async def asked(self) -> None:
        """Return when nothing asks any more; at once if nothing does."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def idle(self, timeout_s: float) -> None:
        """Wait until nothing is in doubt, for at most so long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._task is not None:
                    await asyncio.wait([self._task])
        except TimeoutError:
            LOG.info("the session is left with doubts: %d", len(self._doubts))

    async def close(self) -> None:
        """Ask no more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            LOG.error("fates are not asked for", exc_info=task.exception())
        elif not task.cancelled():
            self.wake()  # for what is in doubt since the last question was chosen

    async def _run(self) -> None:
        pause_s, count = PAUSE_FIRST_S, ASKED_MAX
        while self._needed() and (questions := self._doubts.ask(count)):
            answered = await asyncio.gather(*map(self._asked, questions))
            self._learned()
            if all(answered):
                pause_s, count = PAUSE_FIRST_S, ASKED_MAX
            else:
                await asyncio.sleep(pause_s * uniform(0.5, 1.0))
                pause_s, count = min(2 * pause_s, PAUSE_CAP_S), 1

    async def _asked(self, question: Question) -> bool:
        """Ask once; False if there was no answer."""
        request = question.request
        try:
            await self._ask(question)
        except NeverKnown as lost:
            LOG.warning("outcome can never be known: request=%s %s", request, lost)
            if lost.code is Code.STALE:
                self._doubts.lose(request)
            else:
                self._doubts.lose_all(request.client_id)
        except OperationFailed as failure:
            LOG.debug("outcome not known yet: request=%s %s", request, failure)
            return False
        finally:
            self._doubts.asked(request)
        return True
