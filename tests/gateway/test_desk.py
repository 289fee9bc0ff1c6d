"""The desk without a server: whose requests are admitted, and what of them is counted, against what its page says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway import wire
from oncegate.gateway.http.admission.desk import TENANTS_MAX, Asked, Desk
from oncegate.gateway.http.admission.hosts import AllowedHosts
from oncegate.gateway.http.auth import Tokens
from oncegate.gateway.http.identity import ANONYMOUS, Identity, Scope
from oncegate.gateway.http.routing import ANYTHING, FORM, JSON_LINES, UNNAMED, Parameter, Raw, Route
from oncegate.rifl.errors import Code, OncegateError


def route(method: str = "GET", scope: Scope | None = Scope.READ, path: str = "/v1/x", **given: Any) -> Route:
    async def serve(_: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    return Route(method, path, serve, "x", scope, {200: None}, **given)


def asked(route: Route | None, **given: Any) -> Asked:
    """Return a plain request of a route, but for what is given."""
    headers: Mapping[str, str] = given.pop("headers", {})
    plain = Asked("GET" if route is None else route.method, "/v1/x", route, {}, (), headers.get, UNNAMED, False)
    return plain._replace(**given)


class Known(Tokens):
    """Tokens that are known by their names, and rates that may change meanwhile."""

    def __init__(self, *identities: Identity, **rates: int) -> None:
        self.identities = {identity.name: identity for identity in identities}
        self.rates: dict[str, int | None] = {**rates}

    def identify(self, authorization: str | None, now_s: float | None = None) -> Identity:
        if authorization not in self.identities:
            raise OncegateError(Code.UNAUTHENTICATED)
        return self.identities[authorization]

    def rate_of(self, tenant: str) -> int | None:
        return self.rates.get(tenant)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def desk(*routes: Route, tokens: Tokens | None = None, clock: Clock | None = None, **given: Any) -> Desk:
    bounds: dict[str, Any] = {"requests_max": 3, "operations_per_s": 0, "body_bytes_max": 1000, **given}
    hosts = AllowedHosts(["node.example"])
    return Desk(routes, tokens=tokens, hosts=hosts, clock=clock or Clock(), **bounds)


def refused_with(code: Code, desk_does: Any, *args: Any) -> OncegateError:
    with pytest.raises(OncegateError) as refused:
        desk_does(*args)
    assert refused.value.code is code
    return refused.value


# --- sites ---------------------------------------------------------------------------------------------------------

SERVED = (None, "", "node.example", "NODE.example:7001", "localhost:1", "10.0.0.1:80")
HOSTS = (*SERVED, "evil.example", "node.example.evil")
ORIGINS = (None, "null", "http://", "http://evil.example", "http://node.example", "https://node.example:7001")


@given(st.sampled_from(HOSTS), st.sampled_from(ORIGINS), st.sampled_from(["GET", "HEAD", "OPTIONS", "PUT", "POST"]))
def test_strange_name_is_answered_nothing_and_a_page_of_another_origin_changes_nothing(
    host: str | None, origin: str | None, method: str
) -> None:
    headers = {name: value for name, value in (("Host", host), ("Origin", origin)) if value is not None}
    request = asked(None, method=method, headers=headers)
    own = origin is not None and origin.partition("://")[1:] == ("://", (host or "").lower())
    if host in SERVED and (origin is None or own or method in ("GET", "HEAD", "OPTIONS")):
        desk().check_site(request)
    else:
        refused_with(Code.FORBIDDEN, desk().check_site, request)


# --- identities ----------------------------------------------------------------------------------------------------

ANN = Identity("ann", "a", frozenset({Scope.READ, Scope.WRITE}), within={Scope.WRITE: ("orders",)})
BOB = Identity("bob", "b", frozenset({Scope.READ}))


@given(
    st.sampled_from([None, Scope.READ, Scope.WRITE, Scope.ADMIN]),
    st.sampled_from([None, "ann", "bob", "nobody"]),
    st.sampled_from(["orders-eu", "payments"]),
    st.booleans(),
)
def test_sender_is_whom_its_token_proves_and_reaches_what_its_scopes_reach(
    scope: Scope | None, token: str | None, table: str, any_tokens: bool
) -> None:
    served = route("PUT", scope, "/v1/tables/{table}/x")
    here = desk(served, tokens=Known(ANN, BOB) if any_tokens else None)
    request = asked(served, names={"table": table}, headers={} if token is None else {"Authorization": token})
    if scope is None or not any_tokens:
        assert here.identify(request) is ANONYMOUS
        return
    known = {"ann": ANN, "bob": BOB}.get(token or "")
    if known is None:
        refused_with(Code.UNAUTHENTICATED, here.identify, request)
    elif not known.may(scope, table):
        refused_with(Code.FORBIDDEN, here.identify, request)
    else:
        assert here.identify(request) is known


def test_path_that_is_no_text_is_refused_before_it_is_asked_who_sends_it_or_what_serves_it() -> None:
    served = route()
    here = desk(served, tokens=Known(ANN))
    for one in (None, served):
        refused_with(Code.BAD_REQUEST, here.identify, asked(one, target="/v1/%zz"))
    assert here.identify(asked(None)) is None


# --- forms ---------------------------------------------------------------------------------------------------------

FIELDS = (
    Parameter("one", {"type": "string"}, ""),
    Parameter("many", {"type": "array"}, ""),
    Parameter("Header", {"type": "string"}, "", "header"),
)


@given(st.lists(st.sampled_from(["one", "many", "Header", "other"]), max_size=3))
def test_query_names_parameters_of_its_route_those_of_one_value_once(names: list[str]) -> None:
    served = route(parameters=FIELDS)
    request = asked(served, query=names)
    if set(names) <= {"one", "many"} and names.count("one") < 2:
        desk(route(), served).check_form(request, served)
    else:
        refused_with(Code.BAD_REQUEST, desk(route(), served).check_form, request, served)


OBJECT = route("PUT", body=dict)
LINES = route("POST", body=Raw((JSON_LINES, wire.ARROW), ""))
ANY = route("PATCH", body=Raw((ANYTHING,), ""))
NOTHING = route("DELETE")
LOOK = route("GET")
KINDS = (wire.JSON, wire.MSGPACK, wire.ARROW, JSON_LINES, UNNAMED, FORM, "text/plain", "multipart/form-data")
TAKEN = {
    OBJECT.method: {wire.JSON, wire.MSGPACK, UNNAMED, FORM},
    LINES.method: {JSON_LINES, wire.ARROW, UNNAMED, FORM},
    NOTHING.method: {wire.JSON, wire.MSGPACK, wire.ARROW, JSON_LINES, UNNAMED, FORM},
}


@given(
    st.sampled_from([OBJECT, LINES, ANY, NOTHING, LOOK]),
    st.sampled_from(KINDS),
    st.booleans(),
    st.sampled_from([None, "identity", " Identity ", "gzip", ""]),
)
def test_body_comes_in_a_type_that_its_route_takes_uncompressed_or_not_at_all(
    served: Route, kind: str, has_body: bool, coding: str | None
) -> None:
    headers = {} if coding is None else {"Content-Encoding": coding}
    request = asked(served, media=kind, has_body=has_body, headers=headers)
    here = desk(OBJECT, LINES, ANY, NOTHING, LOOK)
    taken = TAKEN.get(served.method, set(KINDS))
    if has_body and served in (NOTHING, LOOK):
        refused_with(Code.BAD_REQUEST, here.check_form, request, served)
    elif served is LOOK or (coding in (None, "identity", " Identity ") and kind in taken):
        here.check_form(request, served)
    else:
        refused_with(Code.UNSUPPORTED_MEDIA_TYPE, here.check_form, request, served)


def test_refusal_of_a_type_tells_those_that_are_taken() -> None:
    here, kind = desk(LINES, NOTHING), {"media": "text/plain"}
    told = refused_with(Code.UNSUPPORTED_MEDIA_TYPE, here.check_form, asked(LINES, **kind), LINES).detail
    assert told.endswith(f": {', '.join(sorted([JSON_LINES, wire.ARROW]))}")
    told = refused_with(Code.UNSUPPORTED_MEDIA_TYPE, here.check_form, asked(NOTHING, **kind), NOTHING).detail
    assert told.endswith(": no body")


def test_admitted_is_whose_form_is_sound_and_nothing_is_counted_of_another() -> None:
    served = route("PUT", body=dict)
    here = desk(served)
    refused_with(Code.UNSUPPORTED_MEDIA_TYPE, here.admit, asked(served, media="text/plain"), served, ANONYMOUS)
    assert here.usage_of(ANONYMOUS) is None
    usage = here.admit(asked(served), served, ANONYMOUS)
    assert here.usage_of(ANONYMOUS) is usage
    assert usage.requests == 1


@pytest.mark.parametrize(("own", "most"), [(None, 1000), (10, 10), (1000, 1000), (5000, 1000)])
def test_body_has_the_smaller_bound_of_route_and_node(own: int | None, most: int) -> None:
    served = route(body_bytes_max=own)
    assert desk(served).body_bytes_max(served) == most


def test_route_is_found_by_its_handler_alone() -> None:
    one, other = route(), route()
    assert desk(one).route_of(one.handler) is one
    assert desk(one).route_of(other.handler) is None


# --- counts --------------------------------------------------------------------------------------------------------

SENDERS = (
    *(Identity(name, tenant, frozenset(Scope)) for name, tenant in (("x", "t"), ("y", "t"), ("z", "u"))),
    *(Identity(name, "t", frozenset(Scope), per_s) for name, per_s in (("v", 2), ("w", 3))),
    Identity("v", "u", frozenset(Scope), 1),
)
READ, OPEN, LIVE = route(), route(scope=None), route(scope=None, needs_state=False)
steps = st.one_of(
    st.tuples(st.just("count"), st.sampled_from(SENDERS), st.sampled_from([READ, OPEN, LIVE])),
    st.tuples(st.just("end"), st.sampled_from(SENDERS), st.none()),
    st.tuples(st.just("rate"), st.sampled_from(["t", "u"]), st.sampled_from([None, 0, 1, 2])),
    st.tuples(st.just("wait"), st.sampled_from([0.25, 1.0]), st.none()),
)


@given(st.lists(steps, min_size=5, max_size=40), st.sampled_from([0, 1, 3]))
def test_requests_count_for_their_tenant_or_for_their_token_if_that_has_a_rate(
    done: list[tuple[str, Any, Any]], usual_per_s: int
) -> None:
    clock, tokens = Clock(), Known()
    here = desk(READ, OPEN, LIVE, tokens=tokens, clock=clock, operations_per_s=usual_per_s)
    under_way: dict[object, int] = {}
    levels: dict[object, tuple[int, float]] = {}
    """By who is counted: the rate, and what is left of it."""
    for what, who, how in done:
        if what == "wait":
            clock.now_s += who
            levels = {key: (per_s, min(per_s, level + who * per_s)) for key, (per_s, level) in levels.items()}
        elif what == "rate":
            tokens.rates = {**tokens.rates, who: how}
        if what not in ("count", "end"):
            continue
        key = who.tenant if who.operations_per_s is None else (who.name, who.tenant)
        if what == "end" and under_way.get(key):
            found = here.usage_of(who)
            assert found is not None
            found.requests -= 1
            under_way[key] -= 1
        elif what == "count" and how is LIVE:
            assert here.count(how, who).requests == 1, "whether it lives is counted for nobody"
        elif what == "count":
            granted = tokens.rates.get(who.tenant)
            per_s = who.operations_per_s or (usual_per_s if granted is None else granted)
            known_per_s, level = levels.get(key, (0, 0.0))
            if known_per_s != per_s:
                level = float(per_s)
            levels[key] = per_s, level
            if under_way.setdefault(key, 0) >= 3:
                assert refused_with(Code.OVERLOADED, here.count, how, who).retry_after_ms == 100
            elif per_s and level <= 0 and how is READ:
                wait_ms = refused_with(Code.QUOTA, here.count, how, who).retry_after_ms
                assert wait_ms is not None
                assert 0 <= wait_ms - (1 - level) / per_s * 1000 <= 1
            else:
                usage = here.count(how, who)
                assert usage is here.usage_of(who)
                under_way[key] += 1
                if per_s and how is READ:
                    levels[key] = per_s, level - 1
                    assert usage.bucket is not None
                    assert (usage.bucket.per_s, usage.bucket.level) == levels[key]
                assert (usage.bucket is None) is not bool(per_s)
        for other in SENDERS:
            known = here.usage_of(other)
            other_key = other.tenant if other.operations_per_s is None else (other.name, other.tenant)
            assert (known and known.requests) == under_way.get(other_key)


def test_tenant_has_as_many_requests_under_way_as_it_may_and_not_one_more() -> None:
    here, sender = desk(READ), SENDERS[0]
    counted = [here.count(READ, sender) for _ in range(3)]
    assert refused_with(Code.OVERLOADED, here.count, READ, sender).detail.startswith("3 requests ")
    assert [usage.requests for usage in counted] == [3, 3, 3], "what is refused is not counted"
    counted[0].requests -= 1
    assert here.count(READ, sender) is counted[0]


def test_refusal_of_one_request_too_many_a_second_tells_how_many_there_may_be() -> None:
    here, sender = desk(READ, operations_per_s=2), SENDERS[0]
    for _ in range(2):
        here.count(READ, sender).requests -= 1
    refused = refused_with(Code.QUOTA, here.count, READ, sender)
    assert (refused.detail, refused.retry_after_ms) == ("more than 2 operations a second", 500)


def test_rate_that_was_changed_meanwhile_holds_from_the_next_request_on() -> None:
    tokens, sender, other = Known(), SENDERS[0], SENDERS[2]
    for usual in (0, 3):
        here = desk(READ, tokens=tokens, operations_per_s=usual)
        for granted in (None, 1, 2, 0, 1, None):
            tokens.rates = {sender.tenant: granted}
            for who, per_s in ((sender, usual if granted is None else granted), (other, usual)):
                bucket = here.count(OPEN, who).bucket
                assert (bucket and (bucket.per_s, bucket.burst, bucket.level)) == ((per_s,) * 3 if per_s else None)
                here.usage_of(who).requests -= 1  # type: ignore[union-attr]
    assert here.count(READ, sender).bucket is here.count(READ, sender).bucket, "one that is not changed stays"


def _tenants(here: Desk, first: int, count: int) -> list[Identity]:
    found = [Identity("n", f"t{number}", frozenset(Scope)) for number in range(first, first + count)]
    for sender in found:
        here.count(READ, sender)
    return found


def test_idle_tenant_makes_room_for_the_next_and_none_is_forgotten_that_has_something_under_way_or_owes() -> None:
    assert TENANTS_MAX == 10_000
    clock = Clock()
    here = desk(READ, clock=clock, operations_per_s=1)
    senders = _tenants(here, 0, TENANTS_MAX)
    newcomer = Identity("n", "new", frozenset(Scope))
    assert all(here.usage_of(sender) is not None for sender in senders), "there is room for so many"
    assert refused_with(Code.OVERLOADED, here.count, READ, newcomer).retry_after_ms == 1000
    busy, idle = here.usage_of(senders[0]), here.usage_of(senders[1])
    assert busy is not None
    assert idle is not None
    idle.requests -= 1
    refused_with(Code.OVERLOADED, here.count, READ, newcomer)  # its rate is not full yet
    clock.now_s += 1
    here.count(READ, newcomer)
    assert here.usage_of(senders[1]) is None
    assert here.usage_of(senders[0]) is busy
    refused_with(Code.OVERLOADED, here.count, READ, senders[1])
    here.count(READ, senders[0])
    assert busy.requests == 2, "who is known needs no room"


def test_tenant_without_a_rate_makes_room_once_nothing_of_it_is_under_way() -> None:
    here = desk(READ)
    senders = _tenants(here, 0, TENANTS_MAX)
    newcomer = Identity("n", "new", frozenset(Scope))
    refused_with(Code.OVERLOADED, here.count, READ, newcomer)
    for sender in senders[5:7]:
        usage = here.usage_of(sender)
        assert usage is not None
        usage.requests -= 1
    here.count(READ, newcomer)
    assert [here.usage_of(sender) is None for sender in senders[4:8]] == [False, True, False, False]
