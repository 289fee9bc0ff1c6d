"""A changed module under its tests, in a process of its own: nothing is written into the tree.

The process is forked from one that has imported what takes long and is not ours. In it the module's loader compiles the
changed text instead of the file's, under whatever name the module is imported; then pytest runs, to the first failure.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from tests.mutate.changes import Change
from tests.mutate.targets import ROOT

Verdict = Literal["killed", "survived", "timeout"]
HEAVY: Final = ("aiohttp", "hypothesis", "msgspec", "numpy", "pyarrow", "pytest", "pytest_asyncio", "xxhash")
_POLL_S: Final = 0.005
_REWRITE: Final = "-Wignore::pytest.PytestAssertRewriteWarning"
"""Raised because :func:`prepare` imports what has plug-ins."""
# Neither the tests' fixtures nor the plug-in of the SDK: to import them takes longer than these tests.
_PYTEST: Final = (
    "--noconftest",
    "-p",
    "no:oncegate",
    "-x",
    "-q",
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
    "--no-header",
    "--tb=no",
    _REWRITE,
)


class Trial(NamedTuple):
    """How one change fared."""

    change: Change
    verdict: Verdict
    seconds: float


def prepare() -> None:
    """Import what every trial needs and no change touches."""
    for name in HEAVY:
        importlib.import_module(name)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp(prefix="mutate-")
    from hypothesis import Phase, settings

    # A failing example is enough; the smallest one takes seconds to find.
    settings.register_profile("mutate", phases=(Phase.explicit, Phase.generate), database=None, deadline=None)
    settings.load_profile("mutate")


def unchanged(path: str, code: str, tests: Sequence[str], *, seconds_max: float = 300.0) -> Trial:
    """Run the tests of a module as it is: they have to pass, and tell how long they take."""
    change = Change(path, "", "", 0, 0, code)
    (trial,) = run([change], tests, jobs=1, seconds_max=seconds_max)
    return trial


def run(changes: Iterable[Change], tests: Sequence[str], *, jobs: int, seconds_max: float) -> Iterator[Trial]:
    """Try each change, ``jobs`` at a time; yield them as they end.

    Args:
        changes: of one module.
        tests: paths that pytest takes.
        jobs: processes at a time.
        seconds_max: after it the change counts as noticed: it loops.
    """
    waiting, running = iter(changes), dict[int, tuple[Change, float]]()
    try:
        while True:
            while len(running) < jobs and (change := next(waiting, None)):
                running[_start(change, tests)] = change, time.monotonic()
            if not running:
                return
            for pid, (change, began) in list(running.items()):
                took = time.monotonic() - began
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del running[pid]
                    survived = os.waitstatus_to_exitcode(status) == 0
                    yield Trial(change, "survived" if survived else "killed", took)
                elif took > seconds_max:
                    _stop(pid)
                    del running[pid]
                    yield Trial(change, "timeout", took)
            time.sleep(_POLL_S)
    finally:
        for pid in running:
            _stop(pid)


def _stop(pid: int) -> None:
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _start(change: Change, tests: Sequence[str]) -> int:
    pid = os.fork()
    if pid:
        # Both sides set it: whichever comes first.
        os.setpgid(pid, pid)
        return pid
    code = 70  # of an error in here, which counts as noticed; the trial without a change would show it.
    try:
        os.setpgid(0, 0)
        silence = os.open(os.devnull, os.O_WRONLY)
        if not os.environ.get("MUTATE_OUTPUT"):
            os.dup2(silence, 1)
            os.dup2(silence, 2)
        code = _child(change, tests)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _is_ours(file: str | None) -> bool:
    return file is not None and Path(file).is_relative_to(ROOT) and ".venv" not in file


def _child(change: Change, tests: Sequence[str]) -> int:
    import pytest

    target = str((ROOT / change.path).resolve())
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        if str(Path(loader.path).resolve()) == target:
            return compile(change.code, target, "exec", dont_inherit=True)
        return original(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    ours = [name for name, module in sys.modules.items() if _is_ours(getattr(module, "__file__", None))]
    for name in ours:
        del sys.modules[name]
    os.chdir(ROOT)
    sys.argv = ["pytest"]
    return int(pytest.main([*_PYTEST, *tests]))
