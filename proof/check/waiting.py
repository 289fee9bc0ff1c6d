"""Waiting for conditions, each with a deadline and a name; blocking, for the threads of faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from oncegate.gateway.cli.ask import Refused, Unreachable
from oncegate.proof.check.errors import CheckError

_LOOK_S: Final = 0.02
_REPEAT_S: Final = 0.05


def persist(step: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Repeat ``step``, which may fail as long as there is no quorum, until it is true.

    Raises:
        TimeoutError: not in time; it names ``what`` and the last failure.
    """
    deadline = time.monotonic() + timeout_s
    failure: Exception | None = None
    while True:
        try:
            if step():
                return
        except (CheckError, OSError, Refused, Unreachable) as fault:
            failure = fault
        if time.monotonic() > deadline:
            reason = "" if failure is None else f": {failure}"
            raise TimeoutError(f"{what}: not within {timeout_s:g} s{reason}")
        time.sleep(_REPEAT_S)


def wait_for(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Wait until ``condition()`` is true; raises TimeoutError naming ``what``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(_LOOK_S)
