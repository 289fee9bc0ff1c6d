"""Import of Jepsen's histories: as much of EDN as they are written in.

Owns: a reader of EDN without recursion, and how Jepsen's operations become events, also those of its log. Keywords
become texts, maps dictionaries, vectors, lists and sets lists; a tag is dropped, its value stays. Operations of the
nemesis and other named processes are left out.

Source: https://github.com/edn-format/edn; Jepsen's ``history.edn``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from oncegate.proof.lincheck.history import EVENTS_MAX, Event, EventType, HistoryError, freeze

DEPTH_MAX: Final = 64
BYTES_MAX: Final = 2**30
_TOKEN: Final = re.compile(
    r"""(?P<blank>(?:[\s,]+|;[^\n]*)+)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<open>\#\{|[\[({])
    |(?P<close>[\])}])
    |(?P<discard>\#_)
    |(?P<tag>\#[A-Za-z][^\s,"()\[\]{};]*)
    |(?P<char>\\(?:newline|space|tab|return|u[0-9A-Fa-f]{4}|.))
    |(?P<atom>[^\s,"()\[\]{};\\]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "b": "\b", "f": "\f"}
_CHARS: Final = {"newline": "\n", "space": " ", "tab": "\t", "return": "\r"}
_INTEGER: Final = re.compile(r"[+-]?\d{1,300}[NM]?")
_FLOAT: Final = re.compile(r"[+-]?\d{1,300}(?:\.\d{0,300})?(?:[eE][+-]?\d{1,4})?M?")
_CLOSES: Final = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_NOTHING: Final = object()
_LOGGED: Final = re.compile(r"\bjepsen\.util(?: +-)?\s+(\S+)\s+:(invoke|ok|fail|info)\s+:(\S+)\s*(.*)", re.DOTALL)


def read_edn(text: str) -> Iterator[Any]:
    """Read all values of a text.

    Raises HistoryError: with the line at which the text is none of EDN, too deep or too long.
    """
    if len(text) > BYTES_MAX:
        raise HistoryError(1, f"longer than {BYTES_MAX} characters")
    # Values of open collections; the outermost takes whole values. A discard waits as a marker for what it drops.
    stack: list[tuple[str, list[Any], int]] = []
    skip = [0]
    place, line = 0, 1
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise HistoryError(line, f"cannot read {text[place : place + 20]!r}")
        kind, token = cast(str, match.lastgroup), match.group()
        value: Any = _NOTHING
        if kind == "open":
            if len(stack) >= DEPTH_MAX:
                raise HistoryError(line, f"nested deeper than {DEPTH_MAX}")
            stack.append((token, [], line))
            skip.append(0)
        elif kind == "close":
            if not stack or _CLOSES[stack[-1][0]] != token:
                raise HistoryError(line, f"{token} closes nothing")
            opened, items, _ = stack.pop()
            if skip.pop():
                raise HistoryError(line, "#_ drops nothing")
            value = _collection(opened, items, line)
        elif kind == "discard":
            skip[-1] += 1
        elif kind not in ("blank", "tag"):
            value = _scalar(kind, token, line)
        if value is not _NOTHING:
            if skip[-1]:
                skip[-1] -= 1
            elif stack:
                stack[-1][1].append(value)
            else:
                yield value
        line += token.count("\n")
        place = match.end()
    if stack:
        raise HistoryError(stack[-1][2], f"{stack[-1][0]} is never closed")


def _collection(opened: str, items: list[Any], line: int) -> Any:
    if opened != "{":
        return items
    if len(items) % 2:
        raise HistoryError(line, "a map has a name without a value")
    return {
        name if isinstance(name, str) else str(freeze(name)): value
        for name, value in zip(items[::2], items[1::2], strict=True)
    }


def _scalar(kind: str, token: str, line: int) -> Any:
    if kind == "text":
        return _ESCAPE.sub(lambda found: _unescaped(found.group(1)), token[1:-1])
    if kind == "char":
        name = token[1:]
        return chr(int(name[1:], 16)) if len(name) == 5 and name[0] == "u" else _CHARS.get(name, name)
    if token in ("nil", "true", "false"):
        return {"nil": None, "true": True, "false": False}[token]
    if token[0] == ":" and len(token) > 1:
        return token[1:]
    if _INTEGER.fullmatch(token):
        return int(token.rstrip("NM"))
    if _FLOAT.fullmatch(token):
        return float(token.rstrip("M"))
    if token[0] in "#:":
        raise HistoryError(line, f"cannot read {token[:20]}")
    return token


def _unescaped(name: str) -> str:
    return chr(int(name[1:], 16)) if len(name) == 5 else _ESCAPES.get(name, name)


def jepsen_events(text: str, *, keyed: bool = False) -> Iterator[Event]:
    """Read a history of Jepsen: maps one after another, or one vector of them.

    Args:
        text: of ``history.edn``.
        keyed: values are ``[key value]``, as Jepsen's independent workloads write them.

    Raises HistoryError: not EDN, or not operations of Jepsen; its line is then the number of the operation.
    """
    number = 0
    for value in read_edn(text):
        for found in value if isinstance(value, list) else [value]:
            number += 1
            if number > EVENTS_MAX:
                raise HistoryError(number, f"more than {EVENTS_MAX} operations")
            event = _event(found, number, keyed=keyed)
            if event is not None:
                yield event


def jepsen_log(lines: Iterable[str], *, keyed: bool = False) -> Iterator[Event]:
    """Read the operations in a log of Jepsen, which has no times: the order of the lines is that of the events.

    Such a line ends in ``jepsen.util - PROCESS :TYPE :F VALUE [ERROR]``. Lines of other loggers are passed over.

    Args:
        lines: of ``jepsen.log``.
        keyed: values are ``[key value]``.

    Raises HistoryError: with its number, a line of ``jepsen.util`` that is none of its operations.
    """
    for number, line in enumerate(lines, 1):
        if number > EVENTS_MAX:
            raise HistoryError(number, f"more than {EVENTS_MAX} lines")
        if "jepsen.util" not in line:
            continue
        match = _LOGGED.search(line)
        if match is None:
            raise HistoryError(number, "not PROCESS :TYPE :F VALUE after jepsen.util")
        process, kind, f, rest = match.groups()
        value, error, *_ = [*_values(rest, number), None, None]
        found = {"type": kind, "f": f, "value": value, "error": error}
        # A process that is no number, such as :nemesis, is not a client.
        event = _event({**found, "process": int(process) if process.isdecimal() else process}, number, keyed=keyed)
        if event is not None:
            yield event


def _values(text: str, number: int) -> list[Any]:
    try:
        return list(read_edn(text))
    except HistoryError as error:
        raise HistoryError(number, error.detail.partition(": ")[2]) from error


def _event(found: Any, number: int, *, keyed: bool) -> Event | None:
    if not isinstance(found, dict):
        raise HistoryError(number, "an operation is a map")
    process, kind, f = found.get("process"), found.get("type"), found.get("f")
    if isinstance(process, str):
        return None
    if type(process) is not int or not isinstance(f, str):
        raise HistoryError(number, "an operation has :process and :f")
    if kind not in ("invoke", "ok", "fail", "info"):
        raise HistoryError(number, ":type is :invoke, :ok, :fail or :info")
    time = found.get("time", 0)
    if type(time) is not int or time < 0:
        raise HistoryError(number, ":time is nanoseconds")
    key, value = found.get("key"), found.get("value")
    if keyed:
        if not isinstance(value, list) or len(value) != 2:
            raise HistoryError(number, ":value is [key value]")
        key, value = value
    if isinstance(key, (list, dict)):
        key = str(key)
    error = found.get("error")
    return Event(
        process=process,
        type=cast(EventType, kind),
        f=f,
        key=key,
        value=value,
        time=time,
        error=None if error is None else str(error),
    )
