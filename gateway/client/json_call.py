"""Calls that are not batches: they send JSON and return a typed struct.

Owns: their encoding. Retries and routing: :mod:`oncegate.gateway.client.courier`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from oncegate.gateway.client.courier import Call
from oncegate.gateway.wire import H_AGE_MS, H_COMMIT, JSON

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()


class JsonCall(Call[T]):
    """A call answered by one JSON document of type ``shape``; fields it does not know are ignored."""

    __slots__ = ("_shape", "age_ms", "commit")

    def __init__(
        self,
        method: str,
        path: str,
        shape: type[T],
        headers: Mapping[str, str],
        deadline: float,
        *,
        body: Any = None,
        anywhere: bool = False,
    ) -> None:
        content = None if body is None else _ENCODER.encode(body)
        headers = {**headers, "Accept": JSON} if content is None else {**headers, "Accept": JSON, "Content-Type": JSON}
        super().__init__(method, path, deadline=deadline, headers=headers, body=content, anywhere=anywhere)
        self._shape = shape
        self.commit = 0
        """The commit number that the answer reflects, or 0."""
        self.age_ms: int | None = None
        """The age that the answer of a ``stale`` read reflects."""

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> T:
        """Decode the answer.

        Raises:
            msgspec.MsgspecError: it is not of the shape.
        """
        self._note(headers)
        return msgspec.json.decode(payload, type=self._shape)

    def refused(self, headers: Mapping[str, str]) -> None:
        """Take note of the headers of a refusal."""
        self._note(headers)

    def _note(self, headers: Mapping[str, str]) -> None:
        self.commit = _number(headers.get(H_COMMIT)) or self.commit
        self.age_ms = _number(headers.get(H_AGE_MS))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 16 else None


class NothingCall(Call[None]):
    """A call whose answer has no content."""

    __slots__ = ()

    def __init__(self, method: str, path: str, headers: Mapping[str, str], deadline: float) -> None:
        super().__init__(method, path, deadline=deadline, headers=headers)

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> None:
        """Ignore the body of a 2xx."""
