"""The gate in front of all handlers, against a table of what may go wrong: each request is counted once, and no longer.

Whatever the desk says and the handler does, the caller gets one answer, what was held for the body is given back, and a
request that is refused at the desk reaches no handler.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiohttp import hdrs, web
from aiohttp.test_utils import make_mocked_request

from oncegate.consensus.errors import StorageError
from oncegate.gateway import wire
from oncegate.gateway.http import exchange
from oncegate.gateway.http.admission import gate as module
from oncegate.gateway.http.identity import Identity, Scope
from oncegate.gateway.http.negotiation import BODIES, BODY_BYTES_MAX, HELD_BYTES, IDENTITY, NODE, USAGE
from oncegate.rifl.errors import Code, OncegateError, Outcome

COMMIT = 41
DESK = (None, "site", Code.UNAUTHENTICATED, Code.UNSUPPORTED_MEDIA_TYPE, Code.QUOTA, Code.FORBIDDEN)
HANDLER = ("answers", "names a commit", "streams", Code.NOT_FOUND, "storage", "bug", "aiohttp", "leaves")


class Scene:
    """The desk, the node and the bodies."""

    def __init__(self, desk: str | None, handler: str, *, needs_state: bool, sound: bool, held: int | None) -> None:
        self.desk, self.handles, self.is_sound, self.held = desk, handler, sound, held
        self.usage: Any = SimpleNamespace(requests=3, describe=lambda headers: headers.update({"RateLimit": "r=1"}))
        self.identity: Any = SimpleNamespace(tenant="ann", within=None)
        self.route = SimpleNamespace(needs_state=needs_state)
        self.released: list[tuple[str, int]] = []
        self.handled = 0
        self.is_known = True

    def route_of(self, handler: Any) -> Any:
        return self.route

    def check_site(self, asked: Any) -> None:
        if self.desk == "site":
            raise OncegateError(Code.FORBIDDEN, "another site")

    def identify(self, asked: Any) -> Any:
        told = asked.method, asked.target, asked.route, list(asked.query)
        assert told == ("GET", "/x?a=1&b=2", self.route, ["a", "b"])
        if self.desk == Code.UNAUTHENTICATED:
            raise OncegateError(Code.UNAUTHENTICATED)
        return self.identity if self.is_known else None

    def admit(self, asked: Any, route: Any, identity: Any) -> Any:
        assert (route, identity) == (self.route, self.identity)
        if self.desk in DESK[2:]:
            raise OncegateError(Code(str(self.desk)))
        self.usage.requests += 1
        return self.usage

    def usage_of(self, identity: Any) -> Any:
        assert identity is self.identity
        return self.usage

    def body_bytes_max(self, route: Any) -> int:
        return 77

    def check_sound(self) -> None:
        if not self.is_sound:
            raise OncegateError(Code.NOT_READY, "it is damaged")

    def release(self, tenant: str, held: int) -> None:
        assert self.usage.requests == 3, "it is counted no more"
        self.released.append((tenant, held))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.handled += 1
        assert self.usage.requests == 4
        assert (request[IDENTITY], request[USAGE], request[BODY_BYTES_MAX]) == (self.identity, self.usage, 77)
        if self.held is not None:
            request[HELD_BYTES] = self.held
        match self.handles:
            case "answers":
                return web.Response(status=200)
            case "names a commit":
                return web.Response(status=200, headers={wire.H_COMMIT: "7"})
            case "streams":
                with module.uncounted(request):
                    assert self.usage.requests == 3
                    response = web.StreamResponse()
                    await response.prepare(request)
                return response
            case "storage":
                raise StorageError("damaged")
            case "bug":
                raise ZeroDivisionError
            case "aiohttp":
                raise web.HTTPRequestEntityTooLarge(1, 2)
            case "leaves":
                with module.uncounted(request):
                    raise asyncio.CancelledError
            case code:
                raise OncegateError(Code(code))


def problem(request: web.Request, refusal: OncegateError, **_: Any) -> web.Response:
    return web.Response(status=refusal.status, headers={wire.H_COMMIT: str(COMMIT), "X": refusal.code.value})


async def ask(scene: Scene) -> web.StreamResponse:
    app = web.Application()
    desk: Any = scene
    node: Any = SimpleNamespace(machine=SimpleNamespace(commit=COMMIT), check_sound=scene.check_sound)
    app[NODE], app[BODIES] = node, desk
    request = make_mocked_request("GET", "/x?a=1&b=2", app=app)
    return await module.gate(desk)(request, scene.handle)


@pytest.mark.parametrize("desk", DESK)
@pytest.mark.parametrize("needs_state", [False, True])
async def test_each_request_is_counted_while_it_is_handled_and_answered_once(
    needs_state: bool, desk: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(module, "problem", problem)
    for handler, sound, held in itertools.product(HANDLER, (True, False), (None, 0, 9)):
        scene = Scene(desk, handler, needs_state=needs_state, sound=sound, held=held)
        refused, answer = None, web.StreamResponse()
        try:
            answer = await ask(scene)
        except (web.HTTPException, asyncio.CancelledError) as fault:
            refused = fault
        case = (desk, handler, needs_state, sound)
        assert scene.usage.requests == 3, case
        reaches = desk is None and (sound or not needs_state)
        assert scene.handled == reaches, case
        assert scene.released == ([("ann", held)] if reaches and held is not None else []), case
        assert (refused is not None) == (reaches and handler in ("aiohttp", "leaves")), case
        if refused is not None:
            continue
        if desk is not None:
            assert answer.status == (403 if desk == "site" else OncegateError(Code(desk)).status)
            more = {Code.UNAUTHENTICATED: (hdrs.WWW_AUTHENTICATE, "Bearer"), Code.QUOTA: ("RateLimit", "r=1")}
            more[Code.UNSUPPORTED_MEDIA_TYPE] = (hdrs.ACCEPT_ENCODING, "identity")
            expected = {more[one] for one in more if one == desk}
            kinds = (hdrs.WWW_AUTHENTICATE, hdrs.ACCEPT_ENCODING, "RateLimit")
            assert {(kind, answer.headers[kind]) for kind in kinds if kind in answer.headers} == expected
            assert (wire.H_COMMIT in answer.headers) == (desk != "site"), "it is told nothing about this node"
            continue
        codes = {"storage": "NOT_READY", "bug": "INTERNAL", Code.NOT_FOUND: "NOT_FOUND"}
        assert answer.headers.get("X") == (codes.get(handler) if reaches else "NOT_READY")
        if reaches and handler == "streams":
            assert not {wire.H_COMMIT, "RateLimit"} & answer.headers.keys(), "its head has left"
        else:
            named = reaches and handler == "names a commit"
            assert answer.headers[wire.H_COMMIT] == ("7" if named else str(COMMIT))
            assert answer.headers["RateLimit"] == "r=1"


@pytest.mark.parametrize("who", ["nobody", "no route"])
async def test_what_has_no_route_is_a_problem_and_counts_nowhere(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "problem", problem)
    faults: list[tuple[web.HTTPException, str | None]] = [
        (web.HTTPNotFound(), "NOT_FOUND"),
        (web.HTTPMethodNotAllowed("GET", ["PUT"]), "METHOD_NOT_ALLOWED"),
        (web.HTTPBadRequest(), "BAD_REQUEST"),
        (web.HTTPFound("/elsewhere"), None),
    ]
    for fault, code in faults:
        scene = Scene(None, "answers", needs_state=True, sound=False, held=None)
        scene.is_known = who != "nobody"
        if who == "no route":
            scene.route = None  # type: ignore[assignment]

        async def handle(_: web.Request, fault: web.HTTPException = fault) -> web.StreamResponse:
            raise fault

        vars(scene)["handle"] = handle
        if code is None:
            with pytest.raises(web.HTTPFound):
                await ask(scene)
            continue
        answer = await ask(scene)
        assert answer.headers["X"] == code
        assert answer.headers.get(hdrs.ALLOW) == ("PUT" if code == "METHOD_NOT_ALLOWED" else None)
        assert scene.usage.requests == 3


def test_a_bug_is_logged_and_told_as_one_of_unknown_outcome(caplog: pytest.LogCaptureFixture) -> None:
    for fault in (ValueError("a secret"), KeyError()):
        caplog.clear()
        told = exchange.refusal_of(fault)
        assert (told.code, told.outcome) == (Code.INTERNAL, Outcome.UNKNOWN)
        assert "secret" not in told.detail
        assert len(caplog.records) == 1
    own = OncegateError(Code.QUOTA)
    assert exchange.refusal_of(own) is own


class Known(NamedTuple):
    """Tokens of which one is known, with the scopes and the tables that it has by now."""

    identity: Identity | None

    def identify(self, header: str | None) -> Identity:
        assert header == "Bearer t"
        if self.identity is None:
            raise OncegateError(Code.UNAUTHENTICATED)
        return self.identity


@pytest.mark.parametrize("name", [None, "a.t", "b.t"])
@pytest.mark.parametrize("scopes", [(), (Scope.READ,), (Scope.WRITE,), (Scope.READ, Scope.WRITE)], ids=str)
@pytest.mark.parametrize("within", [False, True])
def test_what_lasts_goes_on_as_long_as_its_token_reaches_what_it_is_about(
    name: str | None, scopes: tuple[Scope, ...], within: bool
) -> None:
    """What is about no table or flow needs the scope alone: figures of the cluster are shown to each who reads."""
    tables = dict.fromkeys(scopes, ("a.",)) if within else {}
    token = Identity("n", "ann", frozenset(scopes), within=tables)
    request = make_mocked_request("GET", "/x", {hdrs.AUTHORIZATION: "Bearer t"})
    app = web.Application()
    request._match_info = SimpleNamespace(current_app=app, apps=(app,))  # type: ignore[assignment]
    assert module.is_still_known(request, Scope.READ, name), "there are no tokens"
    for identity in (None, token):
        app[module.TOKENS] = Known(identity)  # type: ignore[misc]
        expected = identity is not None and Scope.READ in scopes and (not within or name != "b.t")
        assert module.is_still_known(request, Scope.READ, name) is expected
