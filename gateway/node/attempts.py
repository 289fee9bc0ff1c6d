"""Commands under way, and the end of each: an answer or a refusal reaches who waits for it, once.

Owns: what a waiter is, so that an answer needs no future and no turn of the event loop where somebody can take it at
once; and the note of each client's attempt that :mod:`oncegate.gateway.explain` shows. When an end comes, and which, is
the business of :mod:`oncegate.gateway.node.proposer`. Must not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from oncegate.gateway.answers import Answer
from oncegate.gateway.explain.memory import ANSWERED, GIVEN_UP, AttemptLog
from oncegate.gateway.machine import commands as c
from oncegate.gateway.sweep import NEVER
from oncegate.rifl.errors import OncegateError

log = logging.getLogger(__name__)


class Waiter(Protocol):
    """The future of an answer, or what stands in its place. It is told one end, in the turn in which it comes."""

    def done(self) -> bool:
        """Tell whether nobody waits any more."""

    def set_result(self, answer: Answer, /) -> None:
        """Take the answer; must not raise."""

    def set_exception(self, fault: BaseException, /) -> None:
        """Take the refusal; must not raise."""


class Waiting:
    """A command of roughly ``size`` bytes, and who waits for its answer."""

    __slots__ = ("command", "due_s", "size", "waiter")
    due_s: float
    """When it is ended without an answer, on the loop's clock; set when it is ordered."""

    def __init__(self, command: c.Command, size: int, waiter: Waiter) -> None:
        self.command = command
        self.size = size
        self.waiter = waiter

    def is_gone(self) -> bool:
        """Tell whether nobody waits any more; who hears that drops this."""
        return self.waiter.done()

    def answer(self, answer: Answer) -> None:
        """Hand on the answer."""
        self.waiter.set_result(answer)

    def refuse(self, fault: BaseException) -> None:
        """Hand on the refusal."""
        self.waiter.set_exception(fault)


class Attempt(Waiting):
    """A client's operations under way; ``log`` gets a note of their end, and ``then`` is called at it."""

    __slots__ = ("_came_s", "_ended", "_log", "_then")
    command: c.AnyOperate | c.Range

    def __init__(
        self,
        command: c.AnyOperate | c.Range,
        size: int,
        waiter: Waiter,
        log: AttemptLog,
        then: Callable[[], None] | None = None,
    ) -> None:
        self.command = command
        self.size = size
        self.waiter = waiter
        self._log = log
        self._then = then
        self._came_s = time.time()
        self._ended = False

    def is_gone(self) -> bool:
        """Tell whether nobody waits any more: its client has given up."""
        if not self.waiter.done():
            return False
        if not self._ended:
            self._end(GIVEN_UP, None)
        return True

    def answer(self, answer: Answer) -> None:
        """Note the answer, and hand it on."""
        self._end(ANSWERED, answer)
        self.waiter.set_result(answer)

    def refuse(self, fault: BaseException) -> None:
        """Note the refusal, and hand it on."""
        self._end(_name(fault), None)
        self.waiter.set_exception(fault)

    def refused_at_once(self, fault: OncegateError) -> None:
        """Note a refusal before it was under way, which who asked is told otherwise."""
        self._then = None
        self._end(_name(fault), None)

    def _end(self, how: str, answer: Answer | None) -> None:
        self._ended = True
        try:
            if self._then is not None:
                self._then()
            self._log.ended(self.command, self._came_s, time.time(), how, answer)
        except Exception:  # whoever waits is told all the same
            log.exception("the end of an attempt could not be noted")


def end_overdue(batch: Sequence[Waiting], now_s: float, refusal: OncegateError) -> float:
    """Tell ``refusal`` to those of a batch that are due and still waited for; return when the next one is due.

    They stay in the batch, and count until its end: what was proposed cannot be called back.
    """
    following = NEVER
    for item in batch:
        if item.due_s > now_s:
            following = min(following, item.due_s)
            continue
        try:
            if not item.is_gone():
                item.refuse(refusal)
        except Exception as unheard:  # noqa: BLE001 - one refusal that cannot be taken leaves nobody else waiting
            not_told(unheard)
    return following


def take_overdue(waiting: list[Waiting], now_s: float) -> list[Waiting]:
    """Take those that are due out of a list in the order of coming, and return them."""
    count = next((at for at, item in enumerate(waiting) if item.due_s > now_s), len(waiting))
    late = waiting[:count]
    del waiting[:count]
    return late


def not_told(fault: Exception) -> None:
    """Log the fault of a waiter that was told its end; it must not keep others from theirs."""
    log.error("a waiter could not be told its end", exc_info=fault)


def hand_on(waiting: Waiting, done: asyncio.Future[Answer]) -> None:
    """Tell the end of a command that a future stands for to who waits for it."""
    if waiting.is_gone():
        return
    fault = asyncio.CancelledError() if done.cancelled() else done.exception()
    if fault is None:
        waiting.answer(done.result())
    else:
        waiting.refuse(fault)


def _name(fault: BaseException) -> str:
    return fault.code.value if isinstance(fault, OncegateError) else type(fault).__name__
