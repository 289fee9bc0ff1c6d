"""Each route is one line above its handler: method, path, scope, answers and body.

Owns: the shape of that line. Everything that needs the routes reads the same lines: the application (paths and
handlers), the gate (scope and media types, :mod:`oncegate.gateway.http.admission.gate`) and the description that
clients get (:mod:`oncegate.gateway.http.openapi`). A route without such a line is not served.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.http.exchange import MakeOrdering
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.request_bodies import CONTROL_BYTES_MAX
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ID_MAX

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON_LINES: Final = "application/x-ndjson"
UNNAMED: Final = "application/octet-stream"
"""What aiohttp calls a body whose sender named no type."""
FORM: Final = "application/x-www-form-urlencoded"
"""What ``curl -d`` calls any body."""
PATH_PART: Final = re.compile(r"\{(\w+)(?::(?:[^{}]|\{[^{}]*\})*)?\}")
ANYTHING: Final = "*/*"
"""A body of any type, where a header that no page on the web may send says how to read it."""
EVENT_STREAM: Final = "text/event-stream"
OBJECTS: Final = (wire.JSON, wire.MSGPACK)
"""Media types of a body that is one object."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A body or answer that is no object of :mod:`oncegate.gateway.wire`: its media types and its content."""

    media: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or header: JSON schema and meaning."""

    name: str
    schema: Mapping[str, Any]
    text: str
    where: str = "query"
    required: bool = False
    most: int = ID_MAX
    """A greater number counts as this one."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route.

    Attributes:
        method: the HTTP method; GET includes HEAD unless ``head`` says otherwise.
        path: as aiohttp writes it.
        handler: what answers; no two routes share one. Its docstring is the route's description.
        group: what it belongs to; with the handler's name it identifies the route in the description.
        scope: what a token must allow; None: open to everyone.
        answers: by status, what a success carries: a type of :mod:`oncegate.gateway.wire`, ``Raw``, or None for
            nothing.
        body: what the request carries: a type (JSON or msgpack), ``Raw``, or None for nothing.
        body_required: whether the request may come without it.
        body_bytes_max: bound of the body; None: the setting of that name.
        parameters: query parameters and headers; those of the path are known from it.
        errors: refusals beside those that every route has.
        refusals: by status, problems that are results: recorded, and replayed.
        needs_state: a node whose state is damaged does not answer.
        act: what the audit log calls it; empty: it is not written down there.
        ordering: what the handler orders; the route is served on the hot path too.
    """

    method: str
    path: str
    handler: Handler
    group: str
    scope: Scope | None
    answers: Mapping[int, Any]
    body: Any = None
    body_required: bool = True
    body_bytes_max: int | None = CONTROL_BYTES_MAX
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[Code, ...] = ()
    refusals: Mapping[int, type] = field(default_factory=dict)
    head: bool = True
    needs_state: bool = True
    act: str = ""
    ordering: MakeOrdering | None = None
    media: frozenset[str] = field(init=False)
    takes_query: bool = field(init=False)

    def __post_init__(self) -> None:
        media = self.body.media if isinstance(self.body, Raw) else OBJECTS if self.body is not None else ()
        object.__setattr__(self, "media", frozenset(media))
        object.__setattr__(self, "takes_query", any(one.where == "query" for one in self.parameters))

    @property
    def endless(self) -> bool:
        """Whether its answer lasts as long as its client wants."""
        return any(isinstance(answer, Raw) and EVENT_STREAM in answer.media for answer in self.answers.values())


PROPOSED: Final = (
    Code.NOT_FOUND,
    Code.PAYLOAD_TOO_LARGE,
    Code.OVERLOADED,
    Code.NOT_LEADER,
    Code.NOT_READY,
    Code.NO_LEADER,
    Code.TIMEOUT,
)
"""Refusals of whatever goes through the log."""
READ: Final = (Code.NOT_READY, Code.NO_LEADER, Code.TIMEOUT)
"""Refusals of whatever is read."""
LEVEL: Final = (
    Parameter(
        "consistency",
        {"type": "string", "enum": ["linearizable", "session", "stale"], "default": "linearizable"},
        "how new the answer must be",
    ),
    Parameter(
        "min_commit",
        {"type": "integer", "minimum": 0, "maximum": ID_MAX, "default": 0},
        "commit number that the answer must reflect",
    ),
)
Force = Annotated[bool, Parameter("force", {"type": "boolean", "default": False}, "although it has rows, or consumers")]
IF_NONE_MATCH: Final = Parameter("If-None-Match", {"type": "string"}, "ETags that the caller holds", "header")


def limit(most: int) -> Parameter:
    """Return the parameter that bounds a page, which has never more than ``most``."""
    return Parameter("limit", {"type": "integer", "minimum": 1, "default": 100}, f"at most {most} come", most=most)
