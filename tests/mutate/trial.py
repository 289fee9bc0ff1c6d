"""A changed module under its tests, in a process of its own: nothing is written into the tree.

A host process imports what is needed and lets pytest collect the tests, once. Each change of the inside of a function
is tried in a child forked from there; the tests that call the changed function come first, the quickest of them first
of all: most changes are noticed by the first test. A change of anything else (a constant, a default, a class body, a
function that the import calls) is tried in a child that imports the module's changed text afresh.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pytest
from _pytest.main import pytest_runtestloop

from oncegate.proof.mutants import planting
from tests.mutate import patched
from tests.mutate.changes import Change
from tests.mutate.targets import ROOT

Verdict = Literal["killed", "survived", "timeout"]
HEAVY: Final = ("aiohttp", "hypothesis", "msgspec", "numpy", "pyarrow", "pytest", "pytest_asyncio", "xxhash")
_LOOPS_S: Final = 5.0
_LOOPS_FACTOR: Final = 5.0
_CODE_UNUSED: Final = 70
"""Exit code of an error in here: it counts as noticed, and the trial without a change shows it."""
_REWRITE: Final = "-Wignore::pytest.PytestAssertRewriteWarning"
"""Raised because :func:`prepare` imports what has plug-ins."""
# Neither the tests' fixtures nor the plug-in of the SDK: to import them takes longer than these tests.
_NO_PLUGINS: Final = ("--noconftest", "-p", "no:oncegate", "-p", "no:cacheprovider", "-n", "0")
_PYTEST: Final = (*_NO_PLUGINS, "-x", "-q", "-s", "--hypothesis-seed=0", "--no-header", "--tb=no", _REWRITE)


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
    inside: list[Change] = []
    outside: list[Change] = []
    called: dict[str, frozenset[tuple[str, int]]] = {}
    for change in changes:
        exchanged = planting.exchanges(change.path, change.code)
        if exchanged and change.path not in called:
            called[change.path] = _called_by_import(change.path)
        late = exchanged is not None and called.get(change.path, frozenset()).isdisjoint(exchanged)
        (inside if late else outside).append(change)
    yield from _hosted(inside, tests, jobs, seconds_max)
    yield from _scheduled(outside, lambda change: _imported_afresh(change, tests), jobs, seconds_max)


def _called_by_import(path: str) -> frozenset[tuple[str, int]]:
    """Ask a child, whose modules nobody else sees."""
    reading, writing = os.pipe()

    def child() -> int:
        _forget_ours()
        for name, line in patched.called_by_import(path):
            os.write(writing, f"{line} {name}\n".encode())
        return 0

    pid = _forked(child)
    os.close(writing)
    with open(reading, encoding="utf-8") as lines:
        called = [line.rstrip("\n").partition(" ") for line in lines]
    os.waitpid(pid, 0)
    return frozenset((name, int(line)) for line, _, name in called)


def _hosted(changes: list[Change], tests: Sequence[str], jobs: int, seconds_max: float) -> Iterator[Trial]:
    """Let a host collect the tests and try the changes; read from a pipe how they fared."""
    if not changes:
        return
    reading, writing = os.pipe()

    def host() -> int:
        os.close(reading)
        _forget_ours()
        return _pytest(tests, _Host(changes, jobs, seconds_max, writing))

    pid = _forked(host)
    os.close(writing)
    try:
        with open(reading, encoding="ascii") as lines:
            for line in lines:
                number, verdict, seconds = line.split()
                yield Trial(changes[int(number)], verdict, float(seconds))  # type: ignore[arg-type]
    finally:
        # It stops its children as it ends.
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


class _Host:
    """Replaces pytest's loop over the collected tests by one such loop in a child for each change."""

    def __init__(self, changes: list[Change], jobs: int, seconds_max: float, writing: int) -> None:
        self._changes, self._jobs, self._seconds_max, self._writing = changes, jobs, seconds_max, writing
        self._reach: dict[str, _Reach] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try all changes; see :func:`run`."""
        numbers = {id(change): number for number, change in enumerate(self._changes)}
        reach = self._reach = _reached(self._changes[0].path, session) if len(self._changes) > 1 else {}
        functions = planting.functions(self._changes[0].path)
        # Nothing of ours is garbage any more, and a child that looks for some would copy all pages.
        gc.collect()
        gc.freeze()

        def start(change: Change) -> int:
            return _forked(lambda: _patched(change, session, reach, functions))

        for one in _scheduled(self._changes, start, self._jobs, self._seconds_max):
            os.write(self._writing, f"{numbers[id(one.change)]} {one.verdict} {one.seconds:.3f}\n".encode())
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """End a child whose test takes much more processor time than it did: the change makes it loop."""
        if nodeid in self._reach:
            signal.setitimer(signal.ITIMER_PROF, max(_LOOPS_S, _LOOPS_FACTOR * self._reach[nodeid].seconds))


class _Reach(NamedTuple):
    """What one test calls of the module, and how long it takes."""

    called: frozenset[tuple[str, int]]
    seconds: float


def _reached(path: str, session: pytest.Session) -> dict[str, _Reach]:
    """Run each test once in a child, and let it tell by its pipe; what it did not tell stays unknown."""
    reading, writing = os.pipe()

    def child() -> int:
        for number, item in enumerate(session.items):
            began, called = time.monotonic(), set[tuple[str, int]]()
            with patched.profiled(path, called):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=_after(session, number))
            told = {"id": item.nodeid, "called": sorted(called), "seconds": time.monotonic() - began}
            os.write(writing, msgspec.json.encode(told) + b"\n")
        return 0

    pid = _forked(child)
    os.close(writing)
    with open(reading, "rb") as lines:
        told = [msgspec.json.decode(line) for line in lines]
    os.waitpid(pid, 0)
    return {one["id"]: _Reach(frozenset((name, line) for name, line in one["called"]), one["seconds"]) for one in told}


def _after(session: pytest.Session, number: int) -> pytest.Item | None:
    return session.items[number + 1] if number + 1 < len(session.items) else None


def _patched(
    change: Change,
    session: pytest.Session,
    reach: dict[str, _Reach],
    functions: dict[tuple[str, int], list[FunctionType]],
) -> int:
    changed = planting.exchanges(change.path, change.code)
    assert changed is not None
    # All of them run if none fails: what a fixture of a whole module calls is told for its first test alone.
    unknown = _Reach(frozenset(), 0.0)
    order = {id(item): reach.get(item.nodeid, unknown) for item in session.items}
    session.items.sort(key=lambda item: (order[id(item)].called.isdisjoint(changed), order[id(item)].seconds))
    if not changed.keys() <= functions.keys():
        # A function that exists only while another runs, or that nothing imports: the tests do not reach it.
        return 0
    for key, code in changed.items():
        for function in functions[key]:
            function.__code__ = code
    with suppress(session.Interrupted, session.Failed):
        pytest_runtestloop(session)
    return 1 if session.testsfailed else 0


def _scheduled(
    changes: Iterable[Change], start: Callable[[Change], int], jobs: int, seconds_max: float
) -> Iterator[Trial]:
    waiting, running = iter(changes), dict[int, tuple[Change, float, int]]()
    try:
        while True:
            while len(running) < jobs and (change := next(waiting, None)):
                pid = start(change)
                running[os.pidfd_open(pid)] = change, time.monotonic(), pid
            if not running:
                return
            first_s = min(began for _, began, _ in running.values()) + seconds_max
            ended, _, _ = select.select(running, (), (), max(0.0, first_s - time.monotonic()))
            for descriptor in ended or [
                each for each, (_, began, _) in running.items() if began + seconds_max <= first_s
            ]:
                change, began, pid = running.pop(descriptor)
                os.close(descriptor)
                code = _stop(pid)
                verdict: Verdict = "timeout" if not ended else "killed" if code else "survived"
                yield Trial(change, verdict, time.monotonic() - began)
    finally:
        for descriptor, (_, _, pid) in running.items():
            os.close(descriptor)
            _stop(pid)


def _stop(pid: int) -> int:
    """End a process and what it started; return its exit code if it had ended by itself."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _forked(run_in_child: Callable[[], int]) -> int:
    """Start a process with a group of its own that is silent and ends with what the function returns."""
    pid = os.fork()
    if pid:
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # Both sides set it: either may come first.
        return pid
    code = _CODE_UNUSED
    try:
        os.setpgid(0, 0)
        if not os.environ.get("MUTATE_OUTPUT"):
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
        code = run_in_child()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _imported_afresh(change: Change, tests: Sequence[str]) -> int:
    target = (ROOT / change.path).resolve()
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        if Path(loader.path).resolve() == target:
            return compile(change.code, loader.path, "exec", dont_inherit=True)
        return original(loader, name)

    def child() -> int:
        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
        _forget_ours()
        return _pytest(tests)

    return _forked(child)


def _forget_ours() -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(ROOT) and ".venv" not in file:
            del sys.modules[name]


def _pytest(tests: Sequence[str], *plugins: object) -> int:
    os.chdir(ROOT)
    sys.argv = ["pytest"]
    return int(pytest.main([*_PYTEST, *tests], plugins=list(plugins)))
