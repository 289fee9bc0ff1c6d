"""A head that is read by comparing it with the one before is read as any other, and is admitted as any other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncegate.gateway.http.admission.desk import Desk
from oncegate.gateway.http.admission.hosts import AllowedHosts
from oncegate.gateway.http.hot import framing
from oncegate.gateway.http.hot.framing import KnownHead
from oncegate.gateway.http.hot.request import Form, HotRoutes
from oncegate.gateway.http.server import ROUTES
from oncegate.rifl.errors import Code, OncegateError

NAMES = [
    *(b"Content-Length", b"content-length", b"Idempotency-Key", b"Oncegate-Request", b"Oncegate-First-Incomplete"),
    *(b"Oncegate-First-Sequence", b"traceparent", b"X-Request-Id", b"Accept", b"Origin", b"Connection", b"X"),
    *(b"Content-Type", b"Content-Encoding", b"Transfer-Encoding", b"Expect", b"Oncegate-Epoch", b"Authorization"),
]
USUAL = [b"5", b"7", b"0", b"", b" 5", b"5 ", b"a b", b'"a-1"', b'"b-2"', b"application/json", b"0000000000000001/1"]
ODD = [
    *(b"005", b"9" * 15, b"9" * 16, b"+5", b"\t5\t", b"5 5", b"5,5", b"a\xff", b"\x01", b"5\r", b"5\r\nX: y"),
    *(b"5\r\n\r\n", b"chunked", b"keep-alive", b"close", b"application/vnd.oncegate+msgpack", b"gzip", b"http://h"),
]
STARTS = [
    *(b"POST /v1/operations", b"POST /v1/operations?a=b", b"PUT /v1/tables/rows/rows/a", b"PUT /v1/tables/rows/rows/b"),
    *(b"PUT /v1/tables/t/rows/%41", b"DELETE /v1/tables/rows/rows/a", b"POST /v1/tables/rows/rows/a/increment"),
    *(b"POST /v1/tables/rows/rows/a/append", b"GET /v1/tables/rows/rows/a?consistency=stale", b"GET /v1/cluster"),
    *(b"POST /v1/tables/events/ranges", b"POST v1/operations", b"POST / x", b"OPTIONS /v1/operations"),
]
start = st.sampled_from(STARTS)
value = st.sampled_from(USUAL) | st.sampled_from(ODD)
NUMBERS = [b"5", b"7", b"12", b"5 ", b"0"]


def _line(name: bytes) -> st.SearchStrategy[tuple[bytes, bytes, bytes]]:
    sound = st.sampled_from(NUMBERS if name.lower() == b"content-length" else USUAL)
    return st.tuples(st.just(name), st.sampled_from([b": ", b":", b":\t "]), sound)


lines_of = st.lists(st.sampled_from(NAMES), max_size=5, unique_by=bytes.lower).flatmap(
    lambda names: st.tuples(*map(_line, names))
)
host = st.tuples(st.just(b"Host"), st.just(b": "), st.sampled_from([b"localhost", b"localhost", b"a.example"]))


def written(first: bytes, lines: list[tuple[bytes, bytes, bytes]]) -> bytes:
    return b"%b HTTP/1.1\r\n%b\r\n" % (first, b"".join(b"%b%b%b\r\n" % one for one in lines))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A head, and another one that differs from it in some values, in its target, or in any byte."""
    first, lines = draw(start), [draw(host), *draw(lines_of)]
    before = written(first, lines)
    how = draw(st.sampled_from(["values", "values", "values", "target", "bytes", "nothing"]))
    if how == "values":
        lines = [(name, colon, draw(st.just(old) | value)) for name, colon, old in lines]
    elif how == "target":
        first = draw(start)
    after = written(first, lines)
    if how == "bytes":
        at = draw(st.integers(0, len(after) - 1))
        after = after[:at] + draw(st.binary(max_size=3)) + after[at + draw(st.integers(0, 2)) :]
    return before, after + draw(st.sampled_from([b"", b"body", b"\r\n\r\n", after]))


def plainly(unread: bytes) -> tuple[framing.Head, int] | None:
    """Read the head that bytes begin with."""
    end = unread.find(framing.END, 0, framing.HEAD_BYTES_MAX)
    size = end + len(framing.END)
    head = None if end < 0 else framing.read(unread[:size])
    return None if head is None else (head, size)


@given(pairs())
@example((written(b"POST /", [(b"Host", b": ", b"h")]), written(b"POST /", [(b"Host", b": ", b"h")])[:-1]))
@settings(max_examples=400, deadline=None)
def test_head_like_the_one_before_is_read_as_any_other(pair: tuple[bytes, bytes]) -> None:
    before, unread = pair
    head = framing.read(before)
    if head is None:
        return
    for sent in (unread, bytearray(unread)):
        found = KnownHead(before, head).read(sent)
        if found is not None:
            assert found == plainly(unread)


OPERATIONS = b"POST /v1/operations HTTP/1.1\r\nHost: h\r\nContent-Length: %b\r\nAccept: */*\r\n\r\n"
KEYED = b'PUT /v1/tables/t/rows/%b HTTP/1.1\r\nHost: h\r\nIdempotency-Key: "%b"\r\nContent-Length: %b\r\n\r\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OPERATIONS % b"7", OPERATIONS % b"7"),
        (OPERATIONS % b"7", OPERATIONS % b"123"),
        (KEYED % (b"a", b"x-1", b"5"), KEYED % (b"bc", b"x-2", b"17")),
    ],
)
def test_usual_requests_that_follow_each_other_are_alike(before: bytes, after: bytes) -> None:
    head = framing.read(before)
    assert head is not None
    assert KnownHead(before, head).read(after + b"body") == plainly(after) != None  # noqa: E711


def test_head_beyond_the_bound_is_not_read() -> None:
    before, after = KEYED % (b"a", b"k", b"5"), KEYED % (b"a" * framing.HEAD_BYTES_MAX, b"k", b"5")
    head = framing.read(before)
    assert head is not None
    assert KnownHead(before, head).read(after) is None


DESK = Desk(ROUTES, requests_max=9, operations_per_s=0, body_bytes_max=2**20, hosts=AllowedHosts(["localhost"]))
HOT = HotRoutes(ROUTES, DESK, None, set())  # type: ignore[arg-type]  # no request is admitted


def formed(routes: HotRoutes, head: framing.Head, known: Form | None) -> Any:
    """Return all that the form of a head says, or why it is refused; None for one that is not hot."""
    found = routes.find(head)
    if found is None:
        return None
    try:
        form = routes.form(head, found, known)
    except OncegateError as refusal:
        return refusal.code, refusal.detail
    if form is None:
        return None
    asked = form.asked
    kept = {name: asked.header(name) for name in ("Host", "Origin", "Authorization", "Content-Encoding", "Accept")}
    return form, asked._replace(header=None), kept  # type: ignore[arg-type]


ROW = b"GET /v1/tables/rows/rows/a%b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %b\r\n\r\n"
ARROWS = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/vnd.apache.arrow.stream\r\n\r\n"


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        pytest.param(ROW % (b"", b"0"), ROW % (b"?no=1", b"0"), Code.BAD_REQUEST, id="a parameter that nobody knows"),
        pytest.param(ROW % (b"", b"0"), ROW % (b"", b"5"), Code.BAD_REQUEST, id="a body that is not taken"),
        pytest.param(
            *(ARROWS % b"/v1/tables/events/ranges", ARROWS % b"/v1/operations", Code.UNSUPPORTED_MEDIA_TYPE),
            id="a type that another route takes",
        ),
    ],
)
def test_what_may_differ_in_a_head_like_the_one_before_is_checked_again(
    before: bytes, after: bytes, code: Code
) -> None:
    head = framing.read(before)
    assert head is not None
    found = HOT.find(head)
    assert found is not None
    known, read = HOT.form(head, found), KnownHead(before, head).read(after)
    assert known is not None
    assert read is not None, "it is like the one before"
    again = HOT.find(read[0])
    assert again is not None
    with pytest.raises(OncegateError) as refused:
        HOT.form(read[0], again, known)
    assert refused.value.code is code


@given(pairs())
@settings(max_examples=300, deadline=None)
def test_form_of_a_head_like_the_one_before_is_that_of_any_other(pair: tuple[bytes, bytes]) -> None:
    desk = Desk(ROUTES, requests_max=9, operations_per_s=0, body_bytes_max=2**20, hosts=AllowedHosts(["localhost"]))
    routes = HotRoutes(ROUTES, desk, None, set())  # type: ignore[arg-type]  # no request is admitted
    before, unread = pair
    head = framing.read(before)
    found = None if head is None else routes.find(head)
    if head is None or found is None:
        return
    try:
        known = routes.form(head, found)
    except OncegateError:
        return
    read = KnownHead(before, head).read(unread)
    if known is None or read is None:
        return
    now, plain = formed(routes, read[0], known), formed(routes, read[0], None)
    assert (now and now[1:]) == (plain and plain[1:])
    if plain is not None and isinstance(plain[0], Form):
        assert now[0][1:] == plain[0][1:]
