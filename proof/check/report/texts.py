"""Values of a history as short texts.

Owns: how arguments, results and keys are written for people, and how long they may be. Pure. Nothing is escaped here;
whoever puts a text into markup does that.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from oncegate.proof.lincheck.history import Operation

TEXT_CHARS_MAX: Final = 120
"""Characters of an argument or a result; the middle of a longer one is left out."""
PROOF_CHARS_MAX: Final = 2_000
"""… where the operation is part of a proof."""

_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_LOOKS: Final = frozenset({"read", "get", "dequeue", "acquire"})


def spelled(value: Any, most: int = TEXT_CHARS_MAX) -> str:
    """Return the value as JSON, at most ``most`` characters."""
    try:
        text = msgspec.json.encode(value).decode(errors="replace")
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        text = repr(value)
    return shortened(text, most)


def shortened(text: str, most: int) -> str:
    """Return the text with its middle left out if it is longer than ``most`` characters.

    Characters that no page can hold, or that turn the order of what follows, become a replacement character.
    """
    if not text.isprintable():
        text = _UNFIT.sub("\ufffd", text)
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[len(text) - half :]}"


def key_name(key: Any) -> str:
    """Return a name that differs between different keys: a text as it is, unless it reads like another JSON value."""
    if key is None:
        return "the only object"
    if isinstance(key, str):
        try:
            msgspec.json.decode(key)
        except msgspec.DecodeError:
            return shortened(key, TEXT_CHARS_MAX)
    return spelled(key)


def argument_of(operation: Operation, most: int = TEXT_CHARS_MAX) -> str:
    """Return the argument, empty if there is none."""
    argument = operation.argument
    if argument is None:
        return ""
    if operation.f == "cas" and isinstance(argument, list) and len(argument) == 2:
        return shortened(f"{spelled(argument[0])} to {spelled(argument[1])}", most)
    if isinstance(argument, dict):
        return _conditional(argument, most)
    return spelled(argument, most)


def result_of(operation: Operation, most: int = TEXT_CHARS_MAX) -> str:
    """Return the result, empty if it says nothing."""
    result = operation.result
    if operation.status != "ok":
        return ""
    if result is None:
        return "null" if operation.f in _LOOKS else ""
    if isinstance(result, dict) and result.get("refused") is True:
        return shortened("refused" + (f", it was {spelled(result['value'])}" if "value" in result else ""), most)
    return spelled(result, most)


def _conditional(argument: dict[str, Any], most: int) -> str:
    """Return a row's argument: what is written, then under which condition."""
    rest = {name: value for name, value in argument.items() if name != "if"}
    only = next(iter(rest.values())) if len(rest) == 1 else None
    text = "" if not rest else spelled(only if len(rest) == 1 else rest, most)
    condition = argument.get("if")
    if condition:
        text += " if absent" if condition == {"absent": True} else f" if {spelled(condition, most)}"
    return shortened(text.strip(), most)
