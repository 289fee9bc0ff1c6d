"""Headers of plain HTTP requests: the request's identity, and the condition under which it may change a row.

Owns: the headers ``Oncegate-Request`` with its companions, ``Idempotency-Key``
(:mod:`oncegate.gateway.idempotency_key`), ``If-Match`` and ``If-None-Match`` (RFC 9110 §13). Pure; its results go into
commands.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from oncegate.gateway import wire
from oncegate.gateway.http import request_bodies
from oncegate.gateway.http.exchange import Headers
from oncegate.gateway.idempotency_key import read_key
from oncegate.gateway.machine import commands as c
from oncegate.rifl.ids import ID_MAX, ClusterTimeMs, SequenceNumber, parse_request_id
from oncegate.rifl.key_table import NO_TIME

_NAMED = re.compile(r"oncegate-([0-9]{1,15})-", re.ASCII)
_STRONG = re.compile(r'"([0-9]{1,16})"', re.ASCII)

_MORE: Final = frozenset(
    name.lower() for name in (wire.H_REQUEST, "If-Match", "If-None-Match", wire.H_TTL_MS, wire.H_TRACEPARENT)
)
"""What a change under a key may say besides."""


class RequestPlace(NamedTuple):
    """A request id that its caller assigned, with its session's epoch and first incomplete."""

    client_id: int
    sequence: SequenceNumber
    epoch: int
    first_incomplete: SequenceNumber


class Key(NamedTuple):
    """An idempotency key; ``named_ms`` is the cluster time it names or ``NO_TIME``."""

    text: str
    named_ms: ClusterTimeMs

    @property
    def scoped(self) -> str:
        """The key as the replicated state stores it, distinct from the keys of events."""
        return f"k{self.text}"


def identity(headers: Headers) -> RequestPlace | Key:
    """Return the request's identity.

    Raises:
        OncegateError: BAD_REQUEST; neither or both kinds of identity are given, or one is malformed.
    """
    request, key = _single(headers, wire.H_REQUEST), _single(headers, wire.H_IDEMPOTENCY_KEY)
    if (request is None) == (key is None):
        raise request_bodies.bad(f"exactly one of {wire.H_IDEMPOTENCY_KEY} and {wire.H_REQUEST} is required")
    if request is not None:
        return _place(request, headers)
    return _key(key or "")


def _place(text: str, headers: Headers) -> RequestPlace:
    try:
        client_id, sequence = parse_request_id(text)
    except ValueError as fault:
        raise request_bodies.bad(f"{wire.H_REQUEST}: {fault}") from None
    first_incomplete = _single(headers, wire.H_FIRST_INCOMPLETE)
    if first_incomplete is None:
        raise request_bodies.bad(f"{wire.H_REQUEST} needs {wire.H_FIRST_INCOMPLETE}")
    epoch = _single(headers, wire.H_EPOCH)
    return RequestPlace(
        client_id,
        sequence,
        1 if epoch is None else request_bodies.check_number(request_bodies.digits(epoch, wire.H_EPOCH), wire.H_EPOCH),
        request_bodies.check_first_incomplete(request_bodies.digits(first_incomplete, wire.H_FIRST_INCOMPLETE)),
    )


def _key(text: str) -> Key:
    try:
        key = read_key(text)
    except ValueError as malformed:
        raise request_bodies.bad(str(malformed)) from None
    named = _NAMED.match(key) if key[:9] == "oncegate-" else None
    return Key(key, NO_TIME if named is None else ClusterTimeMs(int(named[1])))


def key_alone(headers: Headers) -> Key | None:
    """Return the key of a request whose headers say no more of its change; None: ask the other functions here.

    They say the same then: this identity, no condition, no end, no trace. Raises as :func:`identity`.
    """
    if not headers.have_none(_MORE):
        return None
    key = _single(headers, wire.H_IDEMPOTENCY_KEY)
    return None if key is None else _key(key)


def conditional(op: c.Op, headers: Headers) -> c.Op:
    """Return the operation under the condition of the headers.

    Raises:
        OncegateError: BAD_REQUEST for conditions that a row cannot test: several tags, weak tags, both headers.
    """
    match, none = _single(headers, "If-Match"), _single(headers, "If-None-Match")
    if match is None and none is None:
        return op
    if match is not None and none is not None:
        raise request_bodies.bad("If-Match and If-None-Match exclude each other")
    operand: int | None = None
    if match is None:
        if none != "*":
            raise request_bodies.bad("a change takes no If-None-Match but *")
        test = c.Test.ABSENT
    elif match == "*":
        test = c.Test.PRESENT
    else:
        version = _STRONG.fullmatch(match)
        if version is None or not 1 <= int(version[1]) <= ID_MAX:
            raise request_bodies.bad('If-Match is * or one row version in quotes, like "123"')
        test, operand = c.Test.VERSION, int(version[1])
    draft = msgspec.structs.replace(op, fingerprint=0, test=int(test), operand=operand)
    return msgspec.structs.replace(draft, fingerprint=c.fingerprint(draft))


def lasting(op: c.Op, headers: Headers) -> c.Op:
    """Return the operation with the time to live of the headers; raises BAD_REQUEST."""
    ttl_ms = _single(headers, wire.H_TTL_MS)
    if ttl_ms is None:
        return op
    return request_bodies.lasting(op, request_bodies.digits(ttl_ms, wire.H_TTL_MS), f"{wire.H_TTL_MS}: ")


def _single(headers: Headers, name: str) -> str | None:
    values = headers(name)
    if len(values) > 1:
        raise request_bodies.bad(f"{name} is given more than once")
    return values[0] if values else None
