"""JSON values as states: hashable, and told apart as JSON tells them apart.

Owns: :func:`freeze`. In Python ``True == 1``; in a history ``true`` and ``1`` are two values.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

_PLAIN: Final = frozenset({int, str, float, type(None)})
_TRUE: Final = ("bool", True)
_FALSE: Final = ("bool", False)


def freeze(value: Any) -> Hashable:
    """Return a hashable stand-in for a JSON value; equal values have equal stand-ins, and only they.

    Numbers are equal as numbers (``1`` and ``1.0``). Depth is bounded by the decoder that made the value.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    if kind is list or kind is tuple:
        return ("list", *[freeze(item) for item in value])
    if kind is dict:
        return ("map", frozenset((str(name), freeze(item)) for name, item in value.items()))
    return (kind.__name__, str(value))


def thaw(value: Hashable) -> Any:
    """Return the JSON value that was frozen."""
    if not isinstance(value, tuple):
        return value
    if value[0] == "bool":
        return value[1]
    if value[0] == "list":
        return [thaw(item) for item in value[1:]]
    if value[0] == "map":
        return {name: thaw(item) for name, item in sorted(value[1])}
    return value[1]
