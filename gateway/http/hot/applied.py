"""The bytes of the usual answer, written in one step: status 200, and nothing in its head but what each one has.

Owns: a template of that head, made anew when the date or the leader changes. What it writes is to the byte what
:func:`oncegate.gateway.http.exchange.answered` and :func:`oncegate.gateway.http.hot.request.written` make of the same
answer in many steps (tests/gateway/test_applied_answers.py).
"""

from __future__ import annotations

from typing import Final

from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE

from oncegate.gateway import wire
from oncegate.gateway.answer_values import JSON, MSGPACK
from oncegate.gateway.answers import Answer
from oncegate.gateway.node.node import Node

_HEAD: Final = f"HTTP/1.1 200 OK\r\n{wire.H_COMMIT}: %d\r\n{wire.H_TIME_MS}: %d\r\n"
_MEMORY: Final = f"{wire.H_MEMORY_MS}: %d\r\n".encode()
_REST: Final = "%b%bContent-Type: {media}\r\n%bContent-Length: %d\r\nDate: {date}\r\nServer: {server}\r\n\r\n%b"


class AppliedAnswers:
    """Writes the answers of one node; on its event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._date = ""
        self._leader: str | None = None
        self._packed = self._text = b""

    def written(self, answer: Answer, *, packed: bool, etag: bytes = b"", more: bytes = b"") -> bytes:
        """Return an answer as it stands on the wire.

        Args:
            answer: its values are few: its body is encoded here.
            packed: whether its body is msgpack.
            etag: the line of its ETag, if it has one.
            more: lines behind ``Content-Type``.
        """
        node = self._node
        date, leader = rfc822_formatted_time(), node.leader_http
        if date != self._date or leader != self._leader:
            self._renew(date, leader)
        memory_ms = answer.memory_ms
        memory = b"" if memory_ms is None else _MEMORY % memory_ms
        if packed:
            template, body = self._packed, MSGPACK.encode(answer.body)
        else:
            template, body = self._text, JSON.encode(answer.body)
        return template % (answer.commit, node.machine.time_ms, memory, etag, more, len(body), body)

    def _renew(self, date: str, leader: str | None) -> None:
        self._date, self._leader = date, leader
        shown = "" if leader is None else f"{wire.H_LEADER}: {leader}\r\n".replace("%", "%%")
        server = SERVER_SOFTWARE.replace("%", "%%")
        self._packed, self._text = (
            (_HEAD + shown + _REST.format(media=media, date=date, server=server)).encode()
            for media in (wire.MSGPACK, wire.JSON)
        )
