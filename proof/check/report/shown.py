"""What a page shows of operations: which of them, in which lanes, and their values as short texts.

Owns: the choice (all, or up to a bound those of the failing keys and a sample of the others), the lanes, how arguments,
results and keys are written for people, and how long they may be. Pure. Nothing is escaped here: the code that puts a
text into markup does that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from oncegate.proof.lincheck import Failure, Operation

OPERATIONS_MAX: Final = 100_000
"""Operations of one page."""
TEXT_CHARS_MAX: Final = 120
"""Characters of an argument or a result; the middle of a longer one is left out."""
PROOF_CHARS_MAX: Final = 2_000
"""… where the operation is part of a proof."""

_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_LOOKS: Final = frozenset({"read", "get", "dequeue", "acquire"})


class Sample(NamedTuple):
    """``rows``: positions in the list of operations, growing; ``words``: what was left out, empty if nothing was."""

    rows: list[int]
    words: str


def sampled(operations: Sequence[Operation], failures: Sequence[Failure], most: int = OPERATIONS_MAX) -> Sample:
    """Choose at most ``most`` operations.

    First what the failures name (windows and what cannot come next), then all of each failing key in the order of the
    failures (of one that is too large itself, what lies around its window), then every n-th of the others.
    """
    if len(operations) <= most:
        return Sample(list(range(len(operations))), "")
    position = {operation.index: row for row, operation in enumerate(operations)}
    chosen: set[int] = set()
    for failure in failures:
        for index in [*failure.stuck, *failure.window]:
            if index in position and len(chosen) < most:
                chosen.add(position[index])
    by_key: dict[Any, list[int]] = {key_name(failure.key): [] for failure in failures}
    for row, operation in enumerate(operations):
        rows = by_key.get(key_name(operation.key)) if by_key else None
        if rows is not None:
            rows.append(row)
    complete: list[str] = []
    for failure in failures:
        rows, room = by_key.pop(key_name(failure.key), []), most - len(chosen)
        if len(rows) <= room:
            chosen.update(rows)
            complete.extend([key_name(failure.key)] if rows else [])
        elif room > 0 and rows:
            chosen.update(_around(rows, failure, position, room))
    room = most - len(chosen)
    others = [row for row in range(len(operations)) if row not in chosen]
    every = -(-len(others) // room) if room else 0
    if every:
        chosen.update(others[::every])
    kept = f"all of {_listed(complete)}" if complete else "what lies around the failing windows" if failures else ""
    rest = f"one of {every:,} of the others" if every else "none of the others"
    words = (
        f"{len(chosen):,} of {len(operations):,} operations are on this page: {', '.join(filter(None, [kept, rest]))}."
    )
    return Sample(sorted(chosen), f"{words} Verdicts, counts and plots are of all of them.")


def _around(rows: list[int], failure: Failure, position: Mapping[int, int], room: int) -> list[int]:
    named = [position[index] for index in [*failure.window, *failure.stuck] if index in position]
    middle = sum(row < min(named) for row in rows) if named else 0
    begin = max(0, min(middle - room // 2, len(rows) - room))
    return rows[begin : begin + room]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return ("key " if len(names) == 1 else "keys ") + (
        shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"
    )


class Lanes(NamedTuple):
    """``of``: lane of each process; ``names``: of the lanes, each process that used it, from the first to the last."""

    of: dict[int, int]
    names: list[str]


def lanes(operations: Sequence[Operation], given_up: Mapping[int, int]) -> Lanes:
    """Put processes into lanes: one that begins after another has given up goes on in its lane.

    A process whose outcome is unknown goes on under a new number; without this, a run with many unknown outcomes would
    have as many lanes.

    Args:
        operations: of the run.
        given_up: when each process that ended with an unknown outcome did, ns.
    """
    begins: dict[int, int] = {}
    for operation in operations:
        begins[operation.process] = min(operation.invoked, begins.get(operation.process, operation.invoked))
    of: dict[int, int] = {}
    members: list[list[int]] = []
    free: list[tuple[int, int]] = []
    endings = sorted((end, process) for process, end in given_up.items())
    done = 0
    for process, begin in sorted(begins.items(), key=lambda item: (item[1], item[0])):
        while done < len(endings) and endings[done][0] <= begin:
            end, ended = endings[done]
            done += 1
            if ended in of:
                free.append((end, of[ended]))
        if free:
            # The one that gave up last: most likely the same client going on.
            lane = free.pop()[1]
        else:
            lane = len(members)
            members.append([])
        of[process] = lane
        members[lane].append(process)
    order = sorted(range(len(members)), key=lambda lane: members[lane][0])
    rank = {lane: number for number, lane in enumerate(order)}
    names = [
        str(members[lane][0]) if len(members[lane]) == 1 else f"{members[lane][0]}…{members[lane][-1]}"
        for lane in order
    ]
    return Lanes({process: rank[lane] for process, lane in of.items()}, names)


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
