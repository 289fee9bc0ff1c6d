"""What command lines of benches share: numbers in bounds, folders that are there, an end that leaves nothing behind.

Owns: that a value out of bounds is misuse (exit status 2) and not a run of nothing, which a page would be drawn from.
"""

from __future__ import annotations

import argparse
import math
import signal
import types
from collections.abc import Callable
from pathlib import Path


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of a whole number that has a lower bound."""

    def number(text: str) -> int:
        found = int(text)
        if found < least:
            raise argparse.ArgumentTypeError(f"at least {least}")
        return found

    return number


def above_zero(text: str) -> float:
    """Return a length of time, or a rate, that is more than nothing."""
    found = not_negative(text)
    if not found:
        raise argparse.ArgumentTypeError("more than 0")
    return found


def not_negative(text: str) -> float:
    """Return a number that is finite and at least 0."""
    found = float(text)
    if not math.isfinite(found) or found < 0:
        raise argparse.ArgumentTypeError("0 or more")
    return found


def folder(text: str) -> Path:
    """Return a folder that is there."""
    found = Path(text)
    if not found.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return found


def end_in_order() -> None:
    """Let SIGTERM, and the end of the terminal, unwind this process: what it started is killed, its data deleted.

    Under ``nohup`` the end of the terminal stays ignored.
    """
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stop)


def _stop(_number: int, _frame: types.FrameType | None) -> None:
    raise SystemExit("stopped")
