"""What a node does not understand is refused and never ignored: fields of bodies, query parameters.

Owns: the refusals' words, which name what was probably meant. A misspelt ``ttl_ms`` that was ignored would be a row
that never ends. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

_UNKNOWN_FIELD: Final = re.compile(
    r"Object contains unknown field `(?P<name>.*?)`(?: - at `\$(?P<path>.*)`)?", re.DOTALL
)
_STEP: Final = re.compile(r"\.(\w+)|\[")
_SHOWN_MAX: Final = 64
"""Characters of a name that a refusal repeats."""


def meant(name: str, known: Collection[str]) -> str:
    """Say which of the known names an unknown one may stand for."""
    close = difflib.get_close_matches(name[:_SHOWN_MAX], known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(sorted(known)) or 'none'}"


def explained(fault: str, shape: Any) -> str:
    """Return the text of a decoding error of ``shape``; of an unknown field it names the nearest right one."""
    found = _UNKNOWN_FIELD.fullmatch(fault)
    if found is None:
        return fault
    name, path = found["name"], found["path"] or ""
    where = f" at {path.lstrip('.')}" if path else ""
    return f"unknown field {short(name)}{where}: {meant(name, _fields_at(shape, path))}"


def _fields_at(shape: Any, path: str) -> list[str]:
    """Return the names of the fields of the object that a decoder's path leads to, none if it leads to no struct."""
    at: Any = msgspec.inspect.type_info(shape)
    for step in _STEP.findall(path):
        at = _struct_or_list(at)
        if step and isinstance(at, msgspec.inspect.StructType):
            at = next((field.type for field in at.fields if field.encode_name == step), None)
        else:
            at = getattr(at, "item_type", None)
    at = _struct_or_list(at)
    return [field.encode_name for field in at.fields] if isinstance(at, msgspec.inspect.StructType) else []


def _struct_or_list(at: Any) -> Any:
    if isinstance(at, msgspec.inspect.UnionType):
        kinds = msgspec.inspect.StructType | msgspec.inspect.ListType
        return next((one for one in at.types if isinstance(one, kinds)), None)
    return at


def short(name: str) -> str:
    """Return as much of a name as a refusal repeats."""
    return name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}…"
