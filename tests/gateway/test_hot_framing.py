"""What the hot path reads of a request, aiohttp's parser reads as well and the same; it reads nothing ambiguous."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncegate.gateway.http.hot import framing

USUAL = [
    b"Host: localhost", b"host:h", b"Content-Length: 5", b"content-length:0", b"Content-Length: 5 ", b"X: a\tb", b"X:",
    b"Content-Length:\t7", b"Content-Length: 00005", b"Connection: keep-alive", b"Connection: Keep-Alive", b"X-1: ~ |",
    b"Content-Type: application/json", b"Content-Encoding: gzip",
]  # fmt: skip
ODD = [
    b"Content-Length: +5", b"Content-Length: 0x5", b"Content-Length: 5, 5", b"Content-Length: ", b"Content-Length: 5 5",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Connection: close", b"Connection: upgrade",
    b"Connection: keep-alive, close", b"Upgrade: websocket", b"TE: trailers", b"Expect: 100-continue", b"X: \x01",
    b"X: \xff", b"X: \x7f", b" X: folded", b"X : y", b"X", b": y", b"X\x00: y", b"(X): y", b"X: a\rb", b"Trailer: X",
    b"HTTP2-Settings: AAMAAABk", b"Sec-WebSocket-Key1: 1", b"Proxy-Connection: keep-alive",
    b"Content-Length: 0000000000000005",
]  # fmt: skip
USUAL_STARTS = [b"POST /v1/operations HTTP/1.1", b"GET / HTTP/1.1", b"PATCH /?q=1&r=%20 HTTP/1.1", b"POST // HTTP/1.1"]
ODD_STARTS = [
    b"POST /v1/operations HTTP/1.0", b"POST  / HTTP/1.1", b"POST /a b HTTP/1.1", b"POST /\xff HTTP/1.1",
    b"post / HTTP/1.1", b"POST http://h/ HTTP/1.1", b"POST * HTTP/1.1", b"CONNECT h:1 HTTP/1.1", b"POST / HTTP/1.1 ",
    b"POST / HTTP/11.1", b"POST / http/1.1", b" GET / HTTP/1.1", b"\r\nGET / HTTP/1.1", b"POST / HTTP/1.1\n",
]  # fmt: skip
line = st.sampled_from(USUAL) | st.sampled_from(ODD) | st.binary(max_size=12)
start = st.sampled_from(USUAL_STARTS) | st.sampled_from(ODD_STARTS)
heads = st.builds(
    lambda first, lines, ends: b"".join(a + b for a, b in zip([first, *lines], ends, strict=False)),
    start,
    st.lists(line, max_size=6).map(lambda drawn: [b"Host: a", *drawn]) | st.lists(line, max_size=6),
    st.lists(st.sampled_from([b"\r\n"] * 30 + [b"\n", b"\r", b"\r\r\n"]), min_size=8, max_size=8),
).map(lambda head: head + b"\r\n")


def by_aiohttp(head: bytes) -> tuple[str, str, dict[str, str], int] | None:
    """Return what aiohttp's parser reads, None if it refuses it, or means to upgrade, close or decode."""
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16, auto_decompress=False)
        try:
            messages, upgraded, rest = parser.feed_data(head)
        except HttpProcessingError:
            return None
    finally:
        loop.close()
    ((message, payload),) = messages
    assert not any((message.should_close, message.chunked, message.upgrade, upgraded, rest)), head
    length = int(message.headers.get("Content-Length", "0"))
    assert payload.is_eof() is (length == 0)
    return message.method, message.path, {k.lower(): v for k, v in message.headers.items()}, length


@given(heads)
@example(b"POST /v1/operations HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
@settings(max_examples=800, deadline=None)
def test_what_is_read_here_aiohttp_reads_the_same(head: bytes) -> None:
    found = framing.read(head)
    if found is not None:
        assert by_aiohttp(head) == tuple(found)


def test_usual_requests_are_read() -> None:
    for first in USUAL_STARTS:
        for lines in ([b"Host: a"], *([b"h: v", b"Host: a:1", one] for one in USUAL[2:])):
            head = b"\r\n".join([first, *lines, b"", b""])
            found = framing.read(head)
            assert found is not None
            assert by_aiohttp(head) == tuple(found)


@pytest.mark.parametrize("odd", ODD)
def test_line_that_is_ambiguous_or_unusual_is_left_to_aiohttp(odd: bytes) -> None:
    assert framing.read(b"\r\n".join([USUAL_STARTS[0], b"Host: a", odd, b"", b""])) is None


@pytest.mark.parametrize("first", ODD_STARTS)
def test_first_line_that_is_unusual_is_left_to_aiohttp(first: bytes) -> None:
    assert framing.read(b"\r\n".join([first, b"Host: a", b"", b""])) is None


def test_header_that_comes_twice_and_lines_that_end_otherwise_are_left_to_aiohttp() -> None:
    for twice in (b"Content-Length: 5", b"Host: b", b"Accept: a"):
        assert framing.read(b"\r\n".join([USUAL_STARTS[0], b"Host: a", twice, twice, b"", b""])) is None
    usual = b"\r\n".join([USUAL_STARTS[0], b"Host: a", b"X: y", b"", b""])
    assert framing.read(usual) is not None
    for at in range(usual.count(b"\r\n")):
        lines = usual.split(b"\r\n")
        for end in (b"\n", b"\r", b"\n\r\n"):
            changed = b"\r\n".join(lines[: at + 1]) + end + b"\r\n".join(lines[at + 1 :])
            assert framing.read(changed) is None, changed


def test_no_host_and_too_many_headers_are_left_to_aiohttp() -> None:
    assert framing.read(b"GET / HTTP/1.1\r\nX: y\r\n\r\n") is None
    many = b"".join(b"X-%d: y\r\n" % number for number in range(99))
    assert framing.read(b"GET / HTTP/1.1\r\nHost: a\r\n" + many + b"\r\n") is not None
    assert framing.read(b"GET / HTTP/1.1\r\nHost: a\r\n" + many + b"Y: z\r\n\r\n") is None
