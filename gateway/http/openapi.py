"""``GET /openapi.json``: the API as OpenAPI 3.1, made of the table of routes and the types that travel.

Owns: the translation from :class:`oncegate.gateway.http.routing.Route` to a path item. Nothing is described twice:
paths, scopes, bodies and answers are those that are served, errors come from the registry, descriptions from the
docstrings.
"""

from __future__ import annotations

import http
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from oncegate.gateway import wire
from oncegate.gateway.http.control_routes import PATH_PARTS
from oncegate.gateway.http.routing import PATH_PART, Parameter, Raw, Route
from oncegate.rifl.errors import REGISTRY, Code

_REFERENCE: Final = "#/components/schemas/{name}"
EVERYWHERE: Final = (Code.BAD_REQUEST, Code.QUOTA, Code.OVERLOADED, Code.INTERNAL)
"""Refusals that any route can give."""
WITH_TOKEN: Final = (Code.UNAUTHENTICATED, Code.FORBIDDEN)
WITH_BODY: Final = (Code.PAYLOAD_TOO_LARGE, Code.UNSUPPORTED_MEDIA_TYPE, Code.TIMEOUT)


def document(routes: Iterable[Route], version: str) -> bytes:
    """Return the description of ``routes`` as JSON.

    Raises:
        KeyError: a path has a part that :data:`PATH_PARTS` does not know.
    """
    routes = list(routes)
    shapes = (s for route in routes for s in (route.body, *route.answers.values(), *route.refusals.values()))
    types = {shape for shape in shapes if isinstance(shape, type)}
    ordered = sorted({*types, wire.Problem}, key=lambda shape: shape.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    components["Problem"]["properties"]["code"] = {"type": "string", "enum": [code.value for code in Code]}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        item = paths.setdefault(PATH_PART.sub(r"{\1}", route.path), {})
        item[route.method.lower()] = _operation(route)
        if route.method == "GET" and route.head:
            item["head"] = _head(item["get"])
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "openapi": "3.1.0",
                "info": {
                    "title": "oncegate",
                    "version": version,
                    "description": "A replicated gateway that applies each write exactly once.",
                    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
                },
                "paths": paths,
                "components": {
                    "schemas": components,
                    "securitySchemes": {
                        "token": {"type": "http", "scheme": "bearer", "description": "where tokens are configured"}
                    },
                },
            }
        ),
        indent=1,
    )


def _operation(route: Route) -> dict[str, Any]:
    text = (route.handler.__doc__ or "").strip()
    parts = [
        Parameter(name, PATH_PARTS[name].schema, "", where="path", required=True)
        for name in PATH_PART.findall(route.path)
    ]
    found: dict[str, Any] = {
        "operationId": f"{route.group}.{route.handler.__name__}",
        "summary": text.partition("\n")[0],
        "description": text,
        "responses": {str(status): _success(status, shape) for status, shape in route.answers.items()} | _errors(route),
    }
    parameters = [_parameter(one) for one in (*parts, *route.parameters)]
    if parameters:
        found["parameters"] = parameters
    if route.scope is not None:
        # Either with a token of that scope, or without any where none are configured.
        found["security"] = [{}, {"token": [route.scope.value]}]
    if route.body is not None:
        found["requestBody"] = {"required": route.body_required, "content": _content(route.body)}
    return found


def _parameter(one: Parameter) -> dict[str, Any]:
    found = {"name": one.name, "in": one.where, "required": one.required, "schema": one.schema}
    return found | {"description": one.text} if one.text else found


def _content(shape: Any) -> dict[str, Any]:
    if isinstance(shape, Raw):
        return {media: {"schema": {"description": shape.text}} for media in shape.media}
    reference = {"schema": {"$ref": _REFERENCE.format(name=shape.__name__)}}
    return {wire.JSON: reference, wire.MSGPACK: reference}


def _success(status: int, shape: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"description": http.HTTPStatus(status).phrase}
    if shape is not None:
        found["content"] = _content(shape)
    return found


def _errors(route: Route) -> dict[str, Any]:
    codes = {*EVERYWHERE, *route.errors}
    codes.update(WITH_TOKEN if route.scope is not None else ())
    codes.update(WITH_BODY if route.body is not None else ())
    by_status: dict[int, list[Code]] = {}
    for code in Code:
        if code in codes:
            by_status.setdefault(REGISTRY[code].status, []).append(code)
    found: dict[str, Any] = {}
    for status in sorted({*by_status, *route.refusals}):
        ones = by_status.get(status, [])
        text = "; ".join(f"{code.value}: {REGISTRY[code].title}" for code in ones)
        shapes: list[type] = [wire.Problem] if ones else []
        if status in route.refusals:
            text = f"{text}; refused by the row" if text else "refused by the row"
            shapes.append(route.refusals[status])
        references = [{"$ref": _REFERENCE.format(name=shape.__name__)} for shape in shapes]
        schema = references[0] if len(references) == 1 else {"anyOf": references}
        found[str(status)] = {"description": text, "content": {wire.PROBLEM: {"schema": schema}}}
        if status in (429, 503):
            found[str(status)]["headers"] = {
                "Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "seconds"}
            }
    return found


def _head(get: Mapping[str, Any]) -> dict[str, Any]:
    """Return the HEAD of a GET: the same without bodies."""
    responses = {
        status: {name: value for name, value in answer.items() if name != "content"}
        for status, answer in get["responses"].items()
    }
    return {**get, "operationId": f"{get['operationId']}.head", "responses": responses}
