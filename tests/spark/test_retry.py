"""Retries under one deadline, on a clock that the test moves."""

from __future__ import annotations

import pytest

from oncegate.spark_sink.errors import SinkError, code_in
from oncegate.stores.errors import StoreCode
from oncegate.stores.retry import Retry


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []

    def sleep(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        # Waiting costs at least this, or a jitter of nothing would never end a test.
        self.now_s += max(wait_s, 0.01)


def test_retries_until_it_works() -> None:
    clock, failures = Clock(), [OSError(), OSError()]

    def action() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert Retry(10, sleep=clock.sleep, clock=lambda: clock.now_s).run(action, lambda _: True) == "done"
    assert len(clock.waits_s) == 2


def test_raises_the_last_error_at_the_deadline_and_never_waits_beyond_it() -> None:
    clock = Clock()

    def action() -> None:
        raise OSError(f"at {clock.now_s}")

    with pytest.raises(OSError, match="at 3"):
        Retry(3, wait_s_max=1, sleep=clock.sleep, clock=lambda: clock.now_s).run(action, lambda _: True)
    assert clock.now_s < 3.02
    assert all(wait_s <= 1 for wait_s in clock.waits_s)


def test_what_is_not_worth_it_is_not_retried() -> None:
    clock = Clock()

    def action() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        Retry(10, sleep=clock.sleep, clock=lambda: clock.now_s).run(action, lambda error: isinstance(error, OSError))
    assert clock.waits_s == []


def test_without_time_one_attempt_is_made() -> None:
    assert Retry(0).run(lambda: 5, lambda _: True) == 5


def test_code_survives_being_turned_into_text() -> None:
    first, last = SinkError(StoreCode.STORE_UNAVAILABLE, "x"), SinkError(StoreCode.FENCED, "y")
    text = f"Traceback …\n{first}\n…\n{last}\n at org.apache"
    assert code_in(text) is StoreCode.FENCED
    assert code_in("java.lang.Error") is None
