"""Control routes: a function from what a request says to a command or an answer; all else is the same for every one.

Owns: how a request becomes the arguments of such a function, which takes those that it names, and how what it returns
becomes a response. What is wrong with an argument is refused before anything is ordered.

| argument | what it is |
|---|---|
| a part of the path | a name, a client id, a number; ``id_`` is ``id``; a session is the sender's own |
| a query parameter | as its schema says; absent: the function's default, the schema's, or None |
| ``sent`` | the body; its annotation is the route's ``body``, unless the line names another |
| ``request``, ``node``, ``identity``, ``tenant`` | the request, who serves it, who sends it |

A query parameter is one of the line's, or an annotation: ``Annotated[int, Parameter(…)]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps
from typing import Annotated, Any, Final, Literal, NamedTuple, get_origin

import msgspec
from aiohttp import web

from oncegate.flows.flow import NAME_PATTERN
from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http.exchange import check_owner
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import (
    IDENTITY,
    NODE,
    body,
    local,
    reach,
    respond,
    tenant_of,
)
from oncegate.gateway.http.request_bodies import bad, check_client_id, check_key, check_name, number
from oncegate.gateway.http.routing import LEVEL, PATH_PART, PROPOSED, READ, Handler, Parameter, Route
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ID_MAX

Function = Callable[..., Any]
Read = Callable[[web.Request], Any]
Reflects = Literal["asked", "linearizable", "stale"]
_COMMAND_BYTES: Final = 192
"""Of a command, but for the texts that it carries."""
_NAME: Final = {"type": "string", "pattern": f"^{NAME_PATTERN.pattern}$"}
_NUMBER: Final = {"type": "integer", "minimum": 1, "maximum": ID_MAX}


class Part(NamedTuple):
    """A part of paths: its JSON schema, and what makes an argument of it or refuses it."""

    schema: Mapping[str, Any]
    read: Callable[[str], Any]


PATH_PARTS: Final = {
    **{part: Part(_NAME, partial(check_name, what=part)) for part in ("table", "flow", "name")},
    "key": Part({"type": "string", "minLength": 1, "maxLength": c.KEY_BYTES_MAX}, check_key),
    "client_id": Part({"type": "string", "pattern": "^[0-9a-f]{16}$"}, check_client_id),
    "sequence": Part(_NUMBER, partial(number, what="sequence")),
    "n": Part(_NUMBER, partial(number, what="batch")),
    "id": Part({"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,31}$"}, str),
    "sha256": Part({"type": "string", "pattern": "^[0-9a-f]{64}$"}, str),
}
"""What the parts of paths are; a new part needs a line here."""
_OF_REQUEST: Final[Mapping[str, Read]] = {
    "request": lambda request: request,
    "node": lambda request: request.app[NODE],
    "identity": lambda request: request[IDENTITY],
    "tenant": tenant_of,
}


class Routes(list[Route]):
    """The routes of a group; ``@ROUTES.add("GET", path, …)`` declares the function below it as a route's.

    ``answer``: the type of a 200, or answers by status. ``given``: further fields of :class:`Route`.
    """

    def __init__(self, group: str) -> None:
        super().__init__()
        self._group = group

    def add(
        self, method: str, path: str, scope: Scope | None, answer: Any, **given: Any
    ) -> Callable[[Handler], Handler]:
        """Declare a function that answers a request by itself."""

        def declared(handler: Handler) -> Handler:
            answers = answer if isinstance(answer, Mapping) else {200: answer}
            self.append(Route(method, path, handler, self._group, scope, answers, **given))
            return handler

        return declared

    def command(
        self, method: str, path: str, scope: Scope, answer: Any, *errors: Code, **given: Any
    ) -> Callable[[Function], Handler]:
        """Declare a function that returns the command to order; ``errors`` beside those of whatever is proposed."""
        at = method, path, scope
        return lambda make: self._served(make, at, answer, None, errors=(*errors, *PROPOSED), **given)

    def told(
        self,
        method: str,
        path: str,
        scope: Scope | None,
        *errors: Code,
        answer: Any = None,
        reflects: Reflects | None = None,
        **given: Any,
    ) -> Callable[[Function], Handler]:
        """Declare a function, of the event loop or not, that returns what to tell: a value, an answer or a response.

        ``reflects``: which commits the local state has when it is called; ``asked``: those that the query asks for.
        Without ``answer`` the function's annotation names it.
        """
        given["errors"] = (*errors, *READ) if reflects else errors
        at = method, path, scope
        return lambda tell: self._served(tell, at, answer or _hints(tell).return_annotation, reflects, **given)

    def _served(
        self,
        function: Function,
        at: tuple[str, str, Scope | None],
        answer: Any,
        reflects: Reflects | None,
        **given: Any,
    ) -> Handler:
        arguments = _Arguments(function, at[1], given, reflects)

        @wraps(function)
        async def handler(request: web.Request) -> web.StreamResponse:
            found = function(**await arguments.of(request))
            if isinstance(found, Awaitable):
                found = await found
            if isinstance(found, c.Control):
                texts = (one for one in msgspec.structs.astuple(found) if isinstance(one, bytes))
                found = await request.app[NODE].submit(found, _COMMAND_BYTES + sum(map(len, texts)))
            if isinstance(found, web.StreamResponse):
                return found
            if answer is None:
                return web.Response(status=204, headers={wire.H_COMMIT: str(found.commit)})
            return respond(request, found) if isinstance(found, Answer) else local(request, found)

        return self.add(*at, {204: None} if answer is None else answer, **given)(handler)


class _Arguments:
    """What a function takes of each request; notes in ``given`` the body and the parameters that it names."""

    def __init__(self, function: Function, path: str, given: dict[str, Any], reflects: Reflects | None) -> None:
        taken = dict(_hints(function).parameters)
        self._body: Any = taken.pop("sent").annotation if "sent" in taken else None
        if self._body is not None:
            given.setdefault("body", self._body)
        self._optional = not given.get("body_required", True)
        self._reflects = reflects
        named = [one.annotation.__metadata__[0] for one in taken.values() if get_origin(one.annotation) is Annotated]
        given["parameters"] = (*named, *given.get("parameters", ()), *(LEVEL if reflects == "asked" else ()))
        known: dict[str, Read] = {one.name: _query(one, taken.get(one.name)) for one in given["parameters"]}
        known |= {part: _part(part) for part in PATH_PART.findall(path)}
        known |= _OF_REQUEST  # the request itself, and not the query parameter of /v1/explain that is called so
        self._reads = {name: known[name.removesuffix("_")] for name in taken}

    async def of(self, request: web.Request) -> dict[str, Any]:
        """Return the arguments by name; raises what is wrong with one of them, and what the wait for a state does."""
        found = {name: read(request) for name, read in self._reads.items()}
        if self._body is not None:
            found["sent"] = await body(request, self._body, self._body() if self._optional else None)
        if self._reflects == "asked":
            await reach(request)
        elif self._reflects is not None:
            await request.app[NODE].reads.reach(self._reflects, 0)
        if "client_id" in found:
            check_owner(tenant_of(request), request.app[NODE].machine, found["client_id"])
        return found


def _hints(function: Function) -> inspect.Signature:
    return inspect.signature(function, eval_str=True)


def _part(part: str) -> Read:
    read = PATH_PARTS[part].read
    return lambda request: read(request.match_info[part])


def _query(one: Parameter, taken: inspect.Parameter | None) -> Read:
    """Return what reads a query parameter; raises BAD_REQUEST."""
    absent = one.schema.get("default") if taken is None or taken.default is taken.empty else taken.default
    is_flag = one.schema["type"] == "boolean"

    def read(request: web.Request) -> Any:
        text = request.query.get(one.name, "" if one.required else None)
        if text is None:
            return absent
        if one.schema["type"] == "integer":
            return min(number(text, one.name, least=one.schema["minimum"]), one.most)
        words = ["true", "false"] if is_flag else one.schema.get("enum", [text])
        if text not in words:
            raise bad(f"{one.name} is {' or '.join(words)}")
        return text == "true" if is_flag else text

    return read
