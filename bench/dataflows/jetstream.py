"""A JetStream client of what the external queue needs: publish with an id, fetch, acknowledge, ask how much is left.

Owns: the text protocol of NATS as far as that goes (docs.nats.io, *NATS protocol* and *JetStream API*). One connection;
a lost one fails whatever waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

STREAM: Final = "posts"
CONSUMER: Final = "fanout"
TIMEOUT_S: Final = 30.0
ACK_WAIT_NS: Final = 60 * 10**9
ACKS_PENDING_MAX: Final = 20_000
_OWN: Final = 1
"""The subscription of the inbox of single answers."""


class QueueFailed(RuntimeError):
    """The queue refused, or its connection is gone; the text is what it said."""


class Message(NamedTuple):
    """A message as it came: ``reply`` acknowledges it, ``status`` is 0 where it has a payload."""

    reply: str
    payload: bytes
    status: int


class JetStream:
    """A connection to one server."""

    def __init__(self) -> None:
        self._inbox = f"_INBOX.{id(self):x}"
        self._numbers = itertools.count(_OWN + 1)
        self._waiting: dict[str, asyncio.Queue[Message]] = {}
        self._by_subscription: dict[str, asyncio.Queue[Message]] = {}
        self._failure: Exception | None = None

    async def connect(self, url: str) -> Self:
        """Connect to a server, ``nats://host:port``."""
        parts = urlsplit(url)
        self._reader, self._writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 22)
        greeting = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "python"}
        self._inbox = f"_INBOX.{self._writer.get_extra_info('sockname')[1]}"
        self._writer.write(f"CONNECT {json.dumps(greeting)}\r\nSUB {self._inbox}.* {_OWN}\r\n".encode())
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.cancel()
        self._writer.close()
        with contextlib.suppress(OSError):  # the server may have closed it first
            await self._writer.wait_closed()

    async def ask(self, subject: str, body: object) -> dict[str, Any]:
        """Call the JetStream API.

        Raises:
            QueueFailed: it refused, or did not answer.
        """
        return _answer((await self._request(f"$JS.API.{subject}", json.dumps(body).encode())).payload)

    async def publish(self, payload: bytes, message_id: str) -> int:
        """Publish, and return the sequence number when the message is stored; the same id is stored once.

        Raises:
            QueueFailed: as of `ask`.
        """
        found = _answer((await self._request(STREAM, payload, f"Nats-Msg-Id: {message_id}")).payload)
        return int(found["seq"])

    async def fetch(self, most: int) -> list[Message]:
        """Return the messages that wait now, at most ``most``; does not wait for any.

        A request that waits could be given messages when nobody listens any more: they would stay out for
        `ACK_WAIT_NS`.
        """
        inbox, messages = self._listen()
        # A message keeps the subject it was published under: only the subscription tells which request it answers.
        subscription = inbox.rpartition(".")[2]
        self._by_subscription[subscription] = messages
        self._writer.write(f"SUB {inbox}.fetched {subscription}\r\n".encode())
        try:
            asked = json.dumps({"batch": most, "no_wait": True}).encode()
            self._send(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}", f"{inbox}.fetched", asked)
            found: list[Message] = []
            while len(found) < most and not (message := await self._next(messages, TIMEOUT_S)).status:
                found.append(message)
            return found
        finally:
            self._writer.write(f"UNSUB {subscription}\r\n".encode())
            del self._waiting[inbox], self._by_subscription[subscription]

    def acknowledge(self, message: Message) -> None:
        """Say that a message is done, and all before it."""
        self._send(message.reply, None, b"+ACK")

    async def left(self) -> int:
        """Return how many messages nobody has acknowledged."""
        found = await self.ask(f"CONSUMER.INFO.{STREAM}.{CONSUMER}", {})
        return int(found["num_pending"]) + int(found["num_ack_pending"])

    async def leaders(self) -> tuple[str, str]:
        """Return the names of the servers that lead the stream and its consumer.

        Raises:
            QueueFailed: nobody leads now.
        """
        found = [await self.ask(of, {}) for of in (f"STREAM.INFO.{STREAM}", f"CONSUMER.INFO.{STREAM}.{CONSUMER}")]
        names = [str(one.get("cluster", {}).get("leader", "")) for one in found]
        if not all(names):
            raise QueueFailed("nobody leads")
        return names[0], names[1]

    async def make(self, replicas: int) -> None:
        """Make the stream and its one consumer; to acknowledge a message acknowledges all before it."""
        stream = {"name": STREAM, "subjects": [STREAM], "storage": "file", "num_replicas": replicas}
        await self.ask(f"STREAM.CREATE.{STREAM}", stream)
        config = {"durable_name": CONSUMER, "ack_policy": "all", "ack_wait": ACK_WAIT_NS,
                  "max_ack_pending": ACKS_PENDING_MAX}  # fmt: skip
        await self.ask(f"CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config})

    async def _request(self, subject: str, payload: bytes, header: str = "") -> Message:
        inbox, messages = self._listen()
        try:
            self._send(subject, inbox, payload, header)
            message = await self._next(messages, TIMEOUT_S)
        finally:
            del self._waiting[inbox]
        if message.status:
            raise QueueFailed(f"{subject}: status {message.status}")
        return message

    def _listen(self) -> tuple[str, asyncio.Queue[Message]]:
        inbox = f"{self._inbox}.{next(self._numbers)}"
        messages = self._waiting[inbox] = asyncio.Queue()
        return inbox, messages

    async def _next(self, messages: asyncio.Queue[Message], timeout_s: float) -> Message:
        if self._failure is not None:
            raise QueueFailed(f"the connection is gone: {self._failure}")
        try:
            message = await asyncio.wait_for(messages.get(), timeout_s)
        except TimeoutError as late:
            raise QueueFailed(f"no answer in {timeout_s:.0f} s") from late
        if message.status < 0:
            raise QueueFailed(f"the connection is gone: {self._failure}")
        return message

    def _send(self, subject: str, reply: str | None, payload: bytes, header: str = "") -> None:
        words = f"{subject} {reply}" if reply else subject
        if header:
            head = f"NATS/1.0\r\n{header}\r\n\r\n".encode()
            begin = f"HPUB {words} {len(head)} {len(head) + len(payload)}\r\n".encode()
            self._writer.write(b"".join((begin, head, payload, b"\r\n")))
        else:
            self._writer.write(b"".join((f"PUB {words} {len(payload)}\r\n".encode(), payload, b"\r\n")))

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                await self._take(line.split())
            raise ConnectionError("closed by the server")
        except (OSError, ValueError, asyncio.IncompleteReadError) as fault:
            self._failure = fault
            for messages in self._waiting.values():
                messages.put_nowait(Message("", b"", -1))

    async def _take(self, words: list[bytes]) -> None:
        match words:
            case [b"PING"]:
                self._writer.write(b"PONG\r\n")
            case [b"MSG", subject, sid, *reply, size]:
                payload = (await self._reader.readexactly(int(size) + 2))[:-2]
                self._give(subject, sid, Message(reply[0].decode() if reply else "", payload, 0))
            case [b"HMSG", subject, sid, *reply, head_size, size]:
                whole = (await self._reader.readexactly(int(size) + 2))[:-2]
                head, payload = whole[: int(head_size)], whole[int(head_size) :]
                first = head.split(b"\r\n", 1)[0].split()
                status = int(first[1]) if len(first) > 1 and not payload else 0
                self._give(subject, sid, Message(reply[0].decode() if reply else "", payload, status))
            case [b"-ERR", *said]:
                raise ConnectionError(b" ".join(said).decode())
            case _:
                return  # INFO, +OK, PONG

    def _give(self, subject: bytes, subscription: bytes, message: Message) -> None:
        waiting = self._by_subscription.get(subscription.decode()) or self._waiting.get(subject.decode())
        if waiting is not None:
            waiting.put_nowait(message)


def _answer(payload: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(payload)
    if "error" in found:
        raise QueueFailed(str(found["error"].get("description", found["error"])))
    return found
