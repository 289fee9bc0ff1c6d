"""A wait ends with the condition's first true value, or names what was waited for and how things stood."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest

from oncegate.gateway.local.waiting import until, wait_for


def blocking(condition: Callable[[], Any], *how: Any, **more: Any) -> Any:
    """The form for threads."""
    return wait_for(condition, *how, every_s=0.0, **more)


def in_a_coroutine(condition: Callable[[], Any], *how: Any, **more: Any) -> Any:
    """The form for coroutines, around a function."""
    return asyncio.run(until(condition, *how, every_s=0.0, **more))


def of_a_coroutine(condition: Callable[[], Any], *how: Any, **more: Any) -> Any:
    """The form for coroutines, around a coroutine function."""

    async def looked() -> Any:
        await asyncio.sleep(0)
        return condition()

    return in_a_coroutine(looked, *how, **more)


@pytest.fixture(params=[blocking, in_a_coroutine, of_a_coroutine])
def wait(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_first_true_value_is_returned(wait: Any) -> None:
    values = iter([None, 0, "", "found", "later"])
    assert wait(lambda: next(values), 10, "a value") == "found"


def test_message_names_the_condition_and_the_last_state(wait: Any) -> None:
    looks = []
    with pytest.raises(TimeoutError, match=r"^all rows there: not within 0 s; at last 3 of 5 rows$"):
        wait(lambda: looks.append(1), 0, "all rows there", state=lambda: "3 of 5 rows")
    assert len(looks) == 1


def test_failure_that_is_waited_out_counts_as_not_yet_and_the_last_one_is_told(wait: Any) -> None:
    answers = iter([OSError("refused"), OSError("still refused"), None, "there"])

    def look() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert wait(look, 10, "an answer", despite=(OSError,)) == "there"

    def refused() -> Any:
        raise ConnectionError("refused")

    with pytest.raises(TimeoutError, match="an answer: not within 0 s; at last ConnectionError: refused"):
        wait(refused, 0, "an answer", despite=(OSError,))


def test_any_other_failure_ends_the_wait(wait: Any) -> None:
    def ended() -> Any:
        raise RuntimeError("the process has ended")

    with pytest.raises(RuntimeError, match="the process has ended"):
        wait(ended, 10, "an answer", despite=(OSError,))


def test_condition_that_comes_true_with_the_deadline_is_seen() -> None:
    due = time.monotonic() + 0.02
    assert wait_for(lambda: time.monotonic() >= due, 0.02, "the time", every_s=60.0)


def test_wait_in_a_coroutine_lets_others_run() -> None:
    async def main() -> bool:
        come = asyncio.Event()
        asyncio.get_running_loop().call_soon(come.set)
        found = until(come.is_set, 10, "the event")
        assert inspect.isawaitable(found)
        return await found

    assert asyncio.run(main())
