"""A change of a module's text put into its functions, which may be imported already: their code objects are exchanged.

That is possible where only the inside of functions changes. Constants, defaults, decorators and class bodies have been
evaluated already: such a change needs a module that is imported afresh.
"""

from __future__ import annotations

import gc
import importlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import oncegate

_FUNCTION = 0x02  # CO_NEWLOCALS: set for functions, not for the bodies of modules and classes.
Key = tuple[str, int]
"""A function's qualified name and first line, in the text as it is."""


class Change(NamedTuple):
    """One place of a module's text: ``was`` stands there once, ``now`` is planted; ``path`` is below ``oncegate/``."""

    path: str
    was: str
    now: str


class PlaceChangedError(Exception):
    """The text that a change is to replace does not stand there exactly once, or is not the inside of a function."""


@contextmanager
def planted(changes: Iterable[Change]) -> Iterator[None]:
    """Exchange the functions that the changes touch, until the block ends.

    Raises:
        PlaceChangedError: nothing has been planted.
    """
    exchanged: list[tuple[FunctionType, CodeType]] = []
    for path, code in changed_texts(changes).items():
        found = exchanges(path, code)
        if not found:
            raise PlaceChangedError(f"{path}: more than the inside of functions would change")
        importlib.import_module(".".join(("oncegate", *Path(path).with_suffix("").parts)))
        live = functions(path)
        exchanged += [(function, code) for key, code in found.items() for function in live.get(key, ())]
    before = [(function, function.__code__) for function, _ in exchanged]
    try:
        for function, code in exchanged:
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def changed_texts(changes: Iterable[Change]) -> dict[str, str]:
    """Return the changed text of each module; raises PlaceChangedError."""
    texts: dict[str, str] = {}
    for path, was, now in changes:
        text = texts.get(path) or text_of(path)
        if text.count(was) != 1:
            raise PlaceChangedError(f"{path}: {text.count(was)} places like this:\n{was}")
        texts[path] = text.replace(was, now)
    return texts


def exchanges(path: str, code: str) -> dict[Key, CodeType] | None:
    """Return the functions that differ in a changed text; None if not only those change."""
    found: dict[Key, CodeType] = {}
    try:
        now = _compiled(path, code)
    except SyntaxError:
        return None
    return found if _only_functions(_original(path), now, found) else None


def functions(path: str) -> dict[Key, list[FunctionType]]:
    """Return the functions of a module that exist now."""
    file, found = file_of(path), defaultdict[Key, list[FunctionType]](list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == file:
            found[each.__code__.co_qualname, each.__code__.co_firstlineno].append(each)
    return dict(found)


@cache
def file_of(path: str) -> str:
    """Return the name under which the module is imported: in a checkout, through the link in ``oncegate/``."""
    return str(Path(oncegate.__file__).parent / path)


@cache
def text_of(path: str) -> str:
    """Return the module's text as it is."""
    return Path(file_of(path)).read_text(encoding="utf-8")


def _only_functions(was: CodeType, now: CodeType, found: dict[Key, CodeType]) -> bool:
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
    return _compiled(path, text_of(path))


def _compiled(path: str, code: str) -> CodeType:
    return compile(code, file_of(path), "exec", dont_inherit=True)
