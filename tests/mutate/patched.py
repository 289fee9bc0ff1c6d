"""Which functions of a module its import calls, and which a test does: see :mod:`oncegate.proof.mutants.planting`."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from oncegate.proof.mutants.planting import file_of


def called_by_import(path: str) -> frozenset[tuple[str, int]]:
    """Import a module, which must not have been so far, and return the functions in it that this calls."""
    called = set[tuple[str, int]]()
    with profiled(path, called):
        importlib.import_module(".".join(("oncegate", *Path(path).with_suffix("").parts)))
    return frozenset(called)


@contextmanager
def profiled(path: str, called: set[tuple[str, int]]) -> Iterator[None]:
    """Add to ``called`` the functions of a module that this thread, or a new one, calls."""
    file = file_of(path)

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == file:
            called.add((frame.f_code.co_qualname, frame.f_code.co_firstlineno))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
