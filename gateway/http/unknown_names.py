"""What a node does not understand is refused and never ignored: fields of bodies, query parameters, bytes of a path.

Owns: the refusals' words, which name what was probably meant, and the check of a request's target. A misspelt
``ttl_ms`` that was ignored would be a row that never ends. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from oncegate.rifl.errors import Code, OncegateError

_UNKNOWN_FIELD: Final = re.compile(
    r"Object contains unknown field `(?P<name>.*?)`(?: - at `\$(?P<path>.*)`)?", re.DOTALL
)
_STEP: Final = re.compile(r"\.(\w+)|\[")
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)
_SHOWN_MAX: Final = 64
"""Characters of a name that a refusal repeats."""


def check_target(target: str) -> None:
    """Refuse a path and query that are not percent-encoded UTF-8 (RFC 3986 §2.1): they would name something else.

    Raises:
        OncegateError: BAD_REQUEST.
    """
    try:
        unquote_to_bytes(target).decode()
    except UnicodeError:
        raise OncegateError(Code.BAD_REQUEST, "the path or the query is not UTF-8") from None
    if _NO_ESCAPE.search(target):
        raise OncegateError(Code.BAD_REQUEST, "the path or the query has a % that begins no escape: write %25")


def check_query(given: Sequence[str], known: Mapping[str, bool]) -> None:
    """Refuse query parameters that a route does not take, or that are given more often than it takes them.

    Args:
        given: the names, one for each value.
        known: those that the route takes, and whether it takes several values.

    Raises:
        OncegateError: BAD_REQUEST.
    """
    seen: set[str] = set()
    for name in given:
        if name not in known:
            raise OncegateError(Code.BAD_REQUEST, f"unknown query parameter {_short(name)}: {meant(name, known)}")
        if name in seen and not known[name]:
            raise OncegateError(Code.BAD_REQUEST, f"query parameter {name} is given more than once")
        seen.add(name)


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
    return f"unknown field {_short(name)}{where}: {meant(name, _fields_at(shape, path))}"


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


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}…"
