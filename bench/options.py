"""What command lines of benches share: numbers in bounds, folders that are there, an end that leaves nothing behind.

Owns: that a value out of bounds is misuse (exit status 2) and not a run of nothing, which a page would be drawn from.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the type of a whole number that has a lower bound, and perhaps an upper one."""

    def number(text: str) -> int:
        found = int(text)
        if found < least:
            raise argparse.ArgumentTypeError(f"at least {least}")
        if most is not None and found > most:
            raise argparse.ArgumentTypeError(f"at most {most}")
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
    """Return a folder that is there and takes files."""
    found = Path(text)
    if not found.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    try:
        with tempfile.TemporaryDirectory(dir=found):
            return found
    except OSError as refused:
        raise argparse.ArgumentTypeError(f"{text} takes no files: {refused.strerror}") from refused


def command_of() -> str | None:
    """Return how this process is called again, ``python -m …``; None where it is no module."""
    about = getattr(sys.modules["__main__"], "__spec__", None)
    return None if about is None else f"python -m {about.name.removesuffix('.__main__')}"


def end_in_order() -> None:
    """Let SIGTERM, and the end of the terminal, unwind this process: what it started is killed, its data deleted.

    Ctrl-C does so by itself; it is told in a word. Under ``nohup`` the end of the terminal stays ignored.
    """
    sys.excepthook = _told
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stop)


def _told(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("stopped", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _stop(_number: int, _frame: types.FrameType | None) -> None:
    raise SystemExit("stopped")
