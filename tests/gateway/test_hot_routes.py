"""What is hot, of the routes that are served: found by plain paths and queries alone, judged once for alike heads."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway import wire
from oncegate.gateway.http.admission.desk import Desk
from oncegate.gateway.http.admission.hosts import AllowedHosts
from oncegate.gateway.http.hot.framing import Head
from oncegate.gateway.http.hot.request import Fields, Form, Found, HotRoutes
from oncegate.gateway.http.identity import ANONYMOUS
from oncegate.gateway.http.routing import UNNAMED, Route
from oncegate.gateway.http.server import ROUTES
from oncegate.gateway.node.node import Node
from oncegate.rifl.errors import Code, OncegateError

BODY_BYTES_MAX = 1000
NODE = cast("Node", object())
RUNNING: set[str] = set()
PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_~:-")
WORD = PLAIN - set("~:-")


@cache
def desk() -> Desk:
    return Desk(ROUTES, requests_max=9, operations_per_s=0, body_bytes_max=BODY_BYTES_MAX, hosts=AllowedHosts(["h"]))


@cache
def hot() -> HotRoutes:
    return HotRoutes(ROUTES, desk(), NODE, RUNNING)


def _named(route: Route, path: str) -> dict[str, str] | None:
    """Return what a path gives the names of a route's path, part by part; None if it is not of the route, or odd."""
    wanted, given = route.path.split("/"), path.split("/")
    if len(wanted) != len(given):
        return None
    found = {}
    for want, part in zip(wanted, given, strict=True):
        if not want.startswith("{"):
            if part != want:
                return None
        elif not part or part[0] not in PLAIN or not set(part) <= PLAIN | {"."}:
            return None
        else:
            found[want.strip("{}").partition(":")[0]] = part
    return found


def _asked(text: str) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for pair in text.split("&"):
        name, equals, value = pair.partition("=")
        if not name or not equals or not value or name in found:
            return None
        if not set(name) <= set("abcdefghijklmnopqrstuvwxyz_") or not set(value) <= WORD:
            return None
        found[name] = value
    return found


def reference(method: str, target: str) -> tuple[Route, dict[str, str], dict[str, str]] | None:
    """Return what serves a target, as the module says it in words."""
    path, asks, text = target.partition("?")
    for route in ROUTES:
        if route.ordering is None or route.method != method or (names := _named(route, path)) is None:
            continue
        query: dict[str, str] | None = {}
        if asks:
            takes = any(one.where == "query" for one in route.parameters)
            query = _asked(text) if takes and names else None
        return None if query is None else (route, names, query)
    return None


part = st.sampled_from(["rows", "t", "a.b", ".a", "..", "a~b:c-d_9", "%41", "é", "a b", "increment", "", "A"])
paths = st.one_of(
    st.sampled_from(["/v1/operations", "/v1/tables", "/v1/cluster", "/", "/v1/operations/"]),
    st.builds("/v1/tables/{}/ranges".format, part),
    st.builds("/v1/tables/{}/rows/{}{}".format, part, part, st.sampled_from(["", "", "/increment", "/append", "/x"])),
)
pair = st.builds(
    "{}={}".format,
    st.sampled_from(["consistency", "min_commit", "a", "", "A", "é", "a9"]),
    st.sampled_from(["stale", "5", "a_B", "", "a.b", "é", "%41", "a=b"]),
)
asks = st.one_of(
    st.just(""),
    st.sampled_from(["?", "?a", "?a=b&", "?consistency=stale&min_commit=5", "?a=1&a=2"]),
    st.lists(pair, min_size=1, max_size=3).map(lambda pairs: "?" + "&".join(pairs)),
)
methods = st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH"])


@given(methods, paths, asks)
def test_hot_is_a_plain_path_of_a_route_with_an_ordering_and_a_plain_query_where_one_is_taken(
    method: str, path: str, query: str
) -> None:
    found = hot().find(Head(method, path + query, {"host": "h"}, 0))
    wanted = reference(method, path + query)
    assert (found and (found.route, found.names, found.query)) == wanted
    if found is not None:
        assert found.make is found.route.ordering
        own = found.route.body_bytes_max
        assert found.body_bytes_max == (BODY_BYTES_MAX if own is None else min(own, BODY_BYTES_MAX))


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("consistency=stale", {"consistency": "stale"}),
        ("min_commit=5&consistency=stale", {"min_commit": "5", "consistency": "stale"}),
        *(
            (odd, None)
            for odd in ("", "a", "a=", "=a", "a=1&", "&a=1", "a=1&a=2", "a=b=c", "a=%41", "a=é", "A=1", "a;b=1")
        ),
    ],
)
def test_query_is_read_whose_parameters_are_plain_words_that_stand_once(
    query: str, read: dict[str, str] | None
) -> None:
    found = hot().find(Head("GET", f"/v1/tables/t/rows/a?{query}", {"host": "h"}, 0))
    assert (found and found.query) == read
    assert hot().find(Head("PUT", f"/v1/tables/t/rows/a?{query}", {"host": "h"}, 0)) is None, "it takes none"


HOT_ROUTES = [route for route in ROUTES if route.ordering is not None]


@pytest.mark.parametrize("route", HOT_ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_with_an_ordering_is_found_up_to_the_bound_of_its_body(route: Route) -> None:
    path = "/".join("n" if part.startswith("{") else part for part in route.path.split("/"))
    most = desk().body_bytes_max(route)
    found = hot().find(Head(route.method, path, {"host": "h"}, most))
    assert found is not None
    assert found.route is route
    assert hot().find(Head(route.method, path, {"host": "h"}, most + 1)) is None


OPERATIONS, ROW = "/v1/operations", "/v1/tables/t/rows/a"


def _formed(head: Head, known: Form | None = None) -> Form | None:
    found = hot().find(head)
    assert found is not None
    return hot().form(head, found, known)


@pytest.mark.parametrize(
    ("kind", "media"),
    [
        (None, UNNAMED),
        (wire.JSON, wire.JSON),
        (f"{wire.JSON};charset=utf-8", wire.JSON),
        (f"{wire.JSON}; charset=utf-8", wire.JSON),
        (wire.MSGPACK, wire.MSGPACK),
        (f"{wire.JSON}; charset=latin-1", None),
        (f"{wire.JSON};  charset=utf-8", None),
        ("Application/JSON", None),
        ("json", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("accept", [None, "*/*", wire.JSON, wire.MSGPACK])
def test_body_is_of_the_type_that_its_header_names_and_is_left_to_others_where_that_is_unusual(
    kind: str | None, media: str | None, accept: str | None
) -> None:
    headers = {"host": "h", "x": "y", **({} if kind is None else {"content-type": kind})}
    head = Head("POST", OPERATIONS, headers if accept is None else {**headers, "accept": accept}, 5)
    form = _formed(head)
    if media is None:
        assert form is None
        return
    assert form is not None
    assert (form.media, form.packed) == (media, wire.MSGPACK in ((accept or "*/*").replace("*/*", media)))
    asked = form.asked
    route = next(route for route in HOT_ROUTES if route.path == OPERATIONS)
    assert asked._replace(header=dict.get) == ("POST", OPERATIONS, route, {}, (), dict.get, media, True)
    assert [asked.header(name) for name in ("Host", "HOST", "X", "None")] == ["h", "h", "y", None]


def test_form_tells_the_desk_path_query_and_whether_there_is_a_body() -> None:
    form = _formed(Head("GET", f"{ROW}?min_commit=5&consistency=stale", {"host": "h"}, 0))
    assert form is not None
    asked = form.asked
    assert (asked.method, asked.target) == ("GET", f"{ROW}?min_commit=5&consistency=stale")
    assert (asked.names, asked.query) == ({"table": "t", "key": "a"}, ("min_commit", "consistency"))
    assert not asked.has_body
    for length, has_body in ((0, False), (1, True), (2, True)):
        sent = _formed(Head("POST", OPERATIONS, {"host": "h"}, length))
        assert sent is not None
        assert sent.asked.has_body is has_body


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (Head("PUT", ROW, {"host": "evil"}, 0), Code.FORBIDDEN),
        (Head("PUT", ROW, {"host": "h", "origin": "http://evil"}, 0), Code.FORBIDDEN),
        (Head("GET", f"{ROW}?other=1", {"host": "h"}, 0), Code.BAD_REQUEST),
        (Head("GET", ROW, {"host": "h"}, 1), Code.BAD_REQUEST),
        (Head("PUT", ROW, {"host": "h", "content-type": "text/plain"}, 1), Code.UNSUPPORTED_MEDIA_TYPE),
        (Head("PUT", ROW, {"host": "h", "content-encoding": "gzip"}, 1), Code.UNSUPPORTED_MEDIA_TYPE),
    ],
)
def test_form_is_refused_as_the_desk_refuses_it(head: Head, code: Code) -> None:
    with pytest.raises(OncegateError) as refused:
        _formed(head)
    assert refused.value.code is code


def test_head_like_the_one_before_is_not_looked_at_again() -> None:
    headers = {"host": "h", "content-type": wire.MSGPACK}
    known = _formed(Head("PUT", ROW, headers, 5))
    assert known is not None
    assert _formed(Head("PUT", ROW, headers, 7), known) is known
    other = _formed(Head("PUT", f"{ROW}b", headers, 7), known)
    assert other is not None
    assert other.asked.header is known.asked.header, "what follows from its headers is the same"
    plain = _formed(Head("PUT", f"{ROW}b", headers, 7))
    assert plain is not None
    assert other == plain._replace(asked=plain.asked._replace(header=known.asked.header))
    assert other.asked.names == {"table": "t", "key": "ab"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("PUT", ROW, 5), ("PUT", ROW, 0)),
        (("PUT", ROW, 0), ("PUT", ROW, 1)),
        (("DELETE", ROW, 0), ("PUT", ROW, 0)),
        (("GET", ROW, 0), ("GET", f"{ROW}?min_commit=5", 0)),
        (("GET", f"{ROW}?min_commit=5", 0), ("GET", ROW, 0)),
        (("GET", f"{ROW}?min_commit=5", 0), ("GET", f"{ROW}?min_commit=6", 0)),
    ],
)
def test_head_that_differs_in_what_the_desk_asks_is_looked_at_again(
    before: tuple[str, str, int], after: tuple[str, str, int]
) -> None:
    known, head = _formed(Head(*before[:2], {"host": "h"}, before[2])), Head(*after[:2], {"host": "h"}, after[2])
    now, plain = _formed(head, known), _formed(head)
    assert known is not None
    assert now is not None
    assert plain is not None
    assert now is not known
    assert now.asked.header is not known.asked.header
    assert now == plain._replace(asked=plain.asked._replace(header=now.asked.header))


def test_admitted_request_carries_its_sender_its_usage_and_what_its_head_said() -> None:
    head = Head("GET", f"{ROW}?min_commit=5", {"host": "h", "if-none-match": '"1"', "accept": wire.MSGPACK}, 0)
    found, form = hot().find(head), _formed(head)
    assert found is not None
    assert form is not None
    assert found.make is found.route.ordering
    exchange = hot().admit(head, found, form)
    assert exchange is not None
    usage = desk().usage_of(ANONYMOUS)
    assert usage is not None
    assert exchange.usage is usage
    assert (exchange.node, exchange.identity) == (NODE, ANONYMOUS)
    assert exchange.running is RUNNING
    assert hot().node is NODE
    assert (exchange.media, exchange.packed, exchange.query) == (UNNAMED, True, {"min_commit": "5"})
    assert [exchange.headers(name) for name in ("If-None-Match", "IF-NONE-MATCH", "Other")] == [['"1"'], ['"1"'], []]
    assert usage.requests == 1
    usage.requests -= 1


def test_request_that_no_route_serves_is_not_counted() -> None:
    head = Head("GET", ROW, {"host": "h"}, 0)
    found, form = hot().find(head), _formed(head)
    assert found is not None
    assert form is not None
    before = desk().usage_of(ANONYMOUS)
    assert hot().admit(head, found, form._replace(asked=form.asked._replace(route=None))) is None
    assert desk().usage_of(ANONYMOUS) is before
    assert before is None or before.requests == 0


@pytest.mark.parametrize(("target", "names"), [(OPERATIONS, {}), (ROW, {"table": "t", "key": "a"})])
def test_found_without_a_query_has_none(target: str, names: dict[str, str]) -> None:
    found: Any = hot().find(Head("POST" if target == OPERATIONS else "GET", target, {"host": "h"}, 0))
    assert isinstance(found, Found)
    assert (found.names, found.query) == (names, {})


def test_fields_have_the_names_in_small_letters() -> None:
    fields = Fields({"a": "1", "b-c": ""})
    assert [fields(name) for name in ("A", "a", "B-C", "d")] == [["1"], ["1"], [""], []]
    assert fields.have_none(frozenset({"d", "A"}))
    assert fields.have_none(frozenset())
    assert not fields.have_none(frozenset({"d", "b-c"}))
