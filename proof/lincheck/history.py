"""Histories: who asked for what, when, and what came back; one event a line of JSON.

Owns: the event, its line, how invocations and ends become operations, and JSON values as states. Times are nanoseconds
of one monotonic clock. Attempts of one ``request`` are one operation: it may take effect from the first invocation on,
has taken effect when the first answer is there, and was refused only if every attempt was. In doubt its outcome is
unknown.

Read next: :mod:`oncegate.proof.lincheck.models` (what operations mean), :mod:`oncegate.proof.lincheck.check` (whether
they fit together).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from oncegate.rifl.errors import Code, OncegateError

LINE_BYTES_MAX: Final = 16 * 2**20
EVENTS_MAX: Final = 20_000_000
_PLAIN: Final = frozenset({int, str, float, type(None)})
_TRUE: Final = ("bool", True)
_FALSE: Final = ("bool", False)

EventType = Literal["invoke", "ok", "fail", "info"]
Status = Literal["ok", "unknown", "failed"]


class HistoryError(OncegateError):
    """A history that cannot be read.

    Attributes:
        line: number of the line or event, from 1.
    """

    def __init__(self, line: int, detail: str) -> None:
        super().__init__(Code.BAD_REQUEST, f"line {line}: {detail}")
        self.line = line

    def __reduce__(self) -> tuple[object, ...]:
        return (HistoryError, (self.line, self.detail.partition(": ")[2]))


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: a process invoked an operation, or its operation ended."""

    process: int
    """At most one operation at a time; after ``info`` the process goes on under a new number."""
    type: EventType
    """``fail``: certainly not applied; ``info``: unknown."""
    f: str
    key: Any = None
    """A JSON scalar; None where there is one object only."""
    value: Any = None
    """With ``invoke`` the argument, with ``ok`` the result."""
    time: int = 0
    """Nanoseconds since the run began."""
    node: str | None = None
    request: str | None = None
    """``client_id/sequence`` where there is one."""
    error: str | None = None
    """Code, with ``fail`` and ``info``."""


class Operation(msgspec.Struct, frozen=True, gc=False):
    """An invocation and its end; times are not below 0.

    Operation A precedes B if ``A.returned < B.invoked``; others are concurrent.
    """

    index: int
    """Number of the (first) invocation among all invocations, from 0."""
    process: int
    f: str
    key: Any
    argument: Any
    result: Any
    status: Status
    invoked: int
    returned: int | None
    """None if unknown or failed."""
    node: str | None = None
    request: str | None = None
    timed: bool = True
    """False where the history had no times: ``invoked`` and ``returned`` are then the numbers of its events."""


def refused(op: Operation) -> bool:
    """Tell whether the operation was answered with a refusal, ``{"refused": …}``: it had no effect."""
    return isinstance(op.result, dict) and bool(op.result.get("refused")) and op.status == "ok"


_decoder: Final = msgspec.json.Decoder(Event)
_encoder: Final = msgspec.json.Encoder()


def parse_line(line: bytes, number: int = 1) -> Event:
    """Read one event; raises HistoryError: not an event as above, with ``number`` as its line."""
    if len(line) > LINE_BYTES_MAX:
        raise HistoryError(number, f"longer than {LINE_BYTES_MAX} bytes")
    try:
        event = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HistoryError(number, str(error)) from error
    except RecursionError as error:
        raise HistoryError(number, "nested too deeply") from error
    if isinstance(event.key, (list, dict)):
        raise HistoryError(number, "a key is a text, a number, true, false or null")
    if event.time < 0:
        raise HistoryError(number, "time is below zero")
    return event


def line_of(event: Event) -> bytes:
    """Write one event, without the end of the line."""
    return _encoder.encode(event)


def read_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Read events from lines; raises HistoryError if a line is not an event, or there are more than ``EVENTS_MAX``."""
    for number, line in enumerate(lines, 1):
        if number > EVENTS_MAX:
            raise HistoryError(number, f"more than {EVENTS_MAX} events")
        yield parse_line(line, number)


class _Draft:
    """An operation while its history is read."""

    __slots__ = ("attempts", "event", "failed", "index", "invoked", "result", "returned")

    def __init__(self, index: int, event: Event, invoked: int) -> None:
        self.index = index
        self.event = event
        self.invoked = invoked
        self.returned: int | None = None
        self.result: Any = None
        self.attempts = 1
        self.failed = 0

    def done(self, *, timed: bool) -> Operation:
        event = self.event
        status: Status = "ok"
        if self.returned is None:
            status = "failed" if self.failed == self.attempts else "unknown"
        return Operation(
            index=self.index,
            process=event.process,
            f=event.f,
            key=event.key,
            argument=event.value,
            result=self.result,
            status=status,
            invoked=self.invoked,
            returned=self.returned,
            node=event.node,
            request=event.request,
            timed=timed,
        )


def operations(events: Iterable[Event]) -> list[Operation]:
    """Pair invocations with their ends.

    A history without any time is taken in the order of its lines. An invocation without an end is unknown.

    Returns:
        Operations in the order of their first invocation in the history.

    Raises:
        HistoryError: with the number of the event: an end without its invocation, two open operations of a process, an
            end that is of another operation or earlier, attempts of one request that ask for different things.
    """
    listed = list(events)
    timed = any(event.time for event in listed)
    drafts: list[_Draft] = []
    running: dict[int, tuple[_Draft, Event, int]] = {}
    requests: dict[str, _Draft] = {}
    invocations = 0
    for number, event in enumerate(listed, 1):
        time = event.time if timed else number
        if event.type == "invoke":
            if event.process in running:
                raise HistoryError(number, f"process {event.process} invokes while its operation is open")
            draft = None if event.request is None else requests.get(event.request)
            if draft is None:
                draft = _Draft(invocations, event, time)
                drafts.append(draft)
                if event.request is not None:
                    requests[event.request] = draft
            else:
                _same(draft.event, event, number)
                draft.attempts += 1
                draft.invoked = min(draft.invoked, time)
            invocations += 1
            running[event.process] = (draft, event, time)
            continue
        found = running.pop(event.process, None)
        if found is None:
            raise HistoryError(number, f"process {event.process} has no open operation")
        draft, invoked, began = found
        if event.f != invoked.f or event.key != invoked.key:
            raise HistoryError(number, f"process {event.process} ends {event.f}, and had invoked {invoked.f}")
        if time < began:
            raise HistoryError(number, "an end is earlier than its invocation")
        if event.type == "fail":
            draft.failed += 1
        elif event.type == "ok" and (draft.returned is None or time < draft.returned):
            draft.returned, draft.result = time, event.value
    return [draft.done(timed=timed) for draft in drafts]


def _same(first: Event, again: Event, number: int) -> None:
    if (first.f, first.key, first.value) != (again.f, again.key, again.value):
        raise HistoryError(number, f"request {again.request} asked for something else before")


def freeze(value: Any) -> Hashable:
    """Return a hashable stand-in for a JSON value; equal values have equal stand-ins, and only they.

    Numbers are equal as numbers (``1`` and ``1.0``); ``true`` is not ``1`` as in Python. The decoder bounds the depth.
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
