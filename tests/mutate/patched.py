"""A change put into functions that are already imported: their code objects are exchanged, nothing is imported anew.

That is possible where only the inside of functions changes. Constants, defaults, decorators and class bodies have been
evaluated already, and so has what the import calls: such a change needs a module that is imported afresh.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType

from tests.mutate.targets import ROOT

_FUNCTION = 0x02  # CO_NEWLOCALS: set for functions, not for the bodies of modules and classes.


def exchanges(path: str, code: str) -> dict[tuple[str, int], CodeType] | None:
    """Return the changed functions by (qualified name, first line) of the original; None if not only those change."""
    found: dict[tuple[str, int], CodeType] = {}
    try:
        now = _compiled(path, code)
    except SyntaxError:
        return None
    return found if _only_functions(_original(path), now, found) else None


def called_by_import(path: str) -> frozenset[tuple[str, int]]:
    """Import a module, which must not have been so far, and return the functions in it that this calls."""
    called = set[tuple[str, int]]()
    with profiled(path, called):
        importlib.import_module(".".join(("oncegate", *Path(path).with_suffix("").parts)))
    return frozenset(called)


@contextmanager
def profiled(path: str, called: set[tuple[str, int]]) -> Iterator[None]:
    """Add to ``called`` the functions of a module that this thread, or a new one, calls."""
    file = _file(path)

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


def functions(path: str) -> dict[tuple[str, int], list[FunctionType]]:
    """Return the functions of a module that exist now, by (qualified name, first line)."""
    file, found = _file(path), defaultdict[tuple[str, int], list[FunctionType]](list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == file:
            found[each.__code__.co_qualname, each.__code__.co_firstlineno].append(each)
    return dict(found)


def _only_functions(was: CodeType, now: CodeType, found: dict[tuple[str, int], CodeType]) -> bool:
    """Compare two bodies of modules or classes, and collect the functions in them that differ."""
    inner_was, inner_now = list(_inner(was)), list(_inner(now))
    names = [code.co_qualname for code in inner_was]
    if _outside(was) != _outside(now) or names != [code.co_qualname for code in inner_now]:
        return False
    for before, after in zip(inner_was, inner_now, strict=True):
        if before == after:
            continue
        if not before.co_flags & _FUNCTION or before.co_name == "<lambda>":
            if not _only_functions(before, after, found):
                return False
        elif before.co_freevars != after.co_freevars:
            return False
        else:
            found[before.co_qualname, before.co_firstlineno] = after
    return True


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _outside(code: CodeType) -> tuple[object, ...]:
    constants = [repr(value) for value in code.co_consts if not isinstance(value, CodeType)]
    return code.co_code, code.co_names, tuple(constants), code.co_varnames, code.co_freevars


@cache
def _original(path: str) -> CodeType:
    return _compiled(path, (ROOT / path).read_text(encoding="utf-8"))


def _compiled(path: str, code: str) -> CodeType:
    return compile(code, _file(path), "exec", dont_inherit=True)


@cache
def _file(path: str) -> str:
    """Return the name under which the module is imported: through the link in ``oncegate/``."""
    return str(Path(ROOT, "oncegate", path))
