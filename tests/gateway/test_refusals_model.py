"""Refusals on their way: from the layers below, between nodes, to a caller's headers; and of keys that are under way.

What must never get lost is that a request may have been applied, and when it may be sent again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from oncegate.consensus import errors as ce
from oncegate.flows.errors import FlowError
from oncegate.gateway import wire
from oncegate.gateway.http.exchange import bare_refusal
from oncegate.gateway.http.request_headers import Key
from oncegate.gateway.http.routes import rows
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.refusals import packed, translated, unpacked
from oncegate.rifl.errors import REGISTRY, Code, OncegateError, Outcome
from oncegate.rifl.ids import Fingerprint, SequenceNumber
from oncegate.rifl.key_table import NO_TIME

BELOW = [kind for kind in vars(ce).values() if isinstance(kind, type) and issubclass(kind, ce.ConsensusError)]
CODES: list[tuple[type[ce.ConsensusError], Code]] = [
    (ce.CommandRefused, Code.PAYLOAD_TOO_LARGE),
    (ce.Overloaded, Code.OVERLOADED),
    (ce.ChangePending, Code.CONFLICT),
    (ce.ChangeRefused, Code.CONFLICT),
    (ce.NotReady, Code.NOT_READY),
    (ce.StorageError, Code.NOT_READY),
]


@pytest.mark.parametrize("outcome", ["as its kind", "not_applied", "unknown"])
@pytest.mark.parametrize("kind", BELOW)
def test_what_a_lower_layer_says_of_the_outcome_and_of_a_retry_is_told(
    kind: type[ce.ConsensusError], outcome: Any
) -> None:
    fault = kind.__new__(kind, "why /data/n1")
    BaseException.__init__(fault, "why /data/n1")
    if outcome != "as its kind":
        if kind not in (ce.Timeout, ce.PeerUnavailable):
            return
        fault.outcome = outcome
    told = translated(fault)
    # Damage is this node's alone: others may have applied what it cannot read.
    assert told.outcome.value == ("unknown" if isinstance(fault, ce.StorageError) else fault.outcome)
    assert told.retry_after_ms is not None or not fault.retryable, "who may try again is told when"
    other = Code.NO_LEADER if fault.outcome == "not_applied" else Code.TIMEOUT
    assert told.code is next((code for base, code in CODES if isinstance(fault, base)), other)
    assert ("/data" in told.detail) != isinstance(fault, ce.StorageError)


def test_what_has_a_code_keeps_it_and_a_bug_says_no_more_than_its_name(caplog: pytest.LogCaptureFixture) -> None:
    refusal = OncegateError(Code.FENCED, "d", outcome=Outcome.NOT_APPLIED)
    assert translated(refusal) is refusal
    for kind in FlowError.__subclasses__():
        if kind.__module__ == FlowError.__module__ and kind.code in Code.__members__:
            fault = kind.__new__(kind, "why")
            BaseException.__init__(fault, "why")
            assert (translated(fault).code, translated(fault).detail) == (kind.code, str(fault))
    assert not caplog.records
    told = translated(KeyError("secret"))
    assert (told.code, told.detail, told.outcome) == (Code.INTERNAL, "KeyError", Outcome.UNKNOWN)
    assert len(caplog.records) == 1


WAITS = (None, 0, 1, 999, 1_000, 1_001, 59_999)


def test_refusal_of_another_node_is_told_as_that_node_would_tell_it() -> None:
    for code, outcome, wait_ms in itertools.product(Code, (None, *Outcome), WAITS):
        sent = OncegateError(code, f"why {code}", retry_after_ms=wait_ms, outcome=outcome)
        came = unpacked(msgspec.msgpack.decode(msgspec.msgpack.encode(packed(sent))))
        for name in ("code", "detail", "outcome", "retryable", "retry_after_ms", "status", "title"):
            assert getattr(came, name) == getattr(sent, name)
        assert sent.outcome is (REGISTRY[code].outcome if outcome is None else outcome)


def test_caller_is_told_in_whole_seconds_not_to_come_too_early_and_always_if_it_shall_come_again() -> None:
    for code, outcome, wait_ms in itertools.product(Code, Outcome, WAITS):
        reply = bare_refusal(OncegateError(code, "why", retry_after_ms=wait_ms, outcome=outcome), more=[1])
        said = msgspec.json.decode(reply.body)
        shown_ms = said.get("retry_after_ms")
        if wait_ms is None:
            assert (shown_ms is None) == (REGISTRY[code].status not in (429, 503))
        else:
            assert shown_ms == wait_ms
        assert ("Retry-After" in reply.headers) == (shown_ms is not None)
        if shown_ms is not None:
            assert 0 <= int(reply.headers["Retry-After"]) * 1_000 - shown_ms < 1_000
        assert (said["code"], said["outcome"], said["retryable"]) == (code, outcome, REGISTRY[code].retryable)
        assert (said["status"], reply.status, said["more"]) == (REGISTRY[code].status, REGISTRY[code].status, [1])
        assert reply.headers["Content-Type"] == wire.PROBLEM


@pytest.mark.parametrize("seed", range(4))
def test_key_is_in_progress_from_its_order_to_its_end_for_its_tenant_alone(seed: int) -> None:
    """Also if its caller has gone; one that was not ordered is not in progress."""
    dice = random.Random(seed)
    running, ordered = set[str](), list[tuple[tuple[str, str], Callable[[], None]]]()
    attempted = list[tuple[Any, Callable[[], None]]]()
    refusing = False

    def attempt(command: Any, size: int, waiter: Any, ended: Callable[[], None]) -> None:
        if refusing:
            raise OncegateError(Code.OVERLOADED, "too much waits")
        attempted.append((command, ended))

    node = SimpleNamespace(settings=SimpleNamespace(idempotency_key_ms=7_000), attempt=attempt)
    ways = dict.fromkeys(("ordered", "in progress", "refused"), 0)
    for _ in range(300):
        tenant, text = dice.choice(("ann", "bob", "ann1")), dice.choice(("1", "k", "11"))
        refusing = dice.random() < 0.2
        exchange = SimpleNamespace(node=node, identity=SimpleNamespace(tenant=tenant), running=running)
        op = c.Op(SequenceNumber(0), int(c.OpKind.PUT), "t", "k", Fingerprint(1), b"1")
        busy = (tenant, text) in [who for who, _ in ordered]
        before = len(attempted)
        try:
            rows.under_key(cast("Any", exchange), Key(text, NO_TIME), op, 300, "trace", cast("Any", None))
            came = "ordered"
        except OncegateError as refusal:
            came = "in progress" if refusal.code is Code.IN_PROGRESS else "refused"
        ways[came] += 1
        assert came == ("in progress" if busy else "refused" if refusing else "ordered")
        assert len(attempted) - before == (came == "ordered")
        if came == "ordered":
            command, ended = attempted[-1]
            assert (command.tenant, command.lifetime_ms, command.traceparent) == (tenant, 7_000, "trace")
            assert [(one.key, one.named_ms, one.op) for one in command.ops] == [(f"k{text}", NO_TIME, op)]
            ordered.append(((tenant, text), ended))
        while ordered and dice.random() < 0.4:
            ordered.pop(dice.randrange(len(ordered)))[1]()
        assert len(running) == len(ordered)
    assert min(ways.values()) > 10


def test_caller_waits_a_second_at_least_for_a_key_and_only_if_none_has_room() -> None:
    for code, is_full, room_in_ms in itertools.product(Code, (False, True), (0, 1, 999, 1_000, 1_001, 86_400_000)):
        keys = SimpleNamespace(is_full=is_full, room_in_ms={77: room_in_ms}.__getitem__)
        machine: Any = SimpleNamespace(keys=keys, time_ms=77)
        result = wire.OperationResult(
            sequence=0, status="rejected", code=code.value, outcome="unknown", detail="why", retryable=True
        )
        told = rows.rejection(result, machine)
        expected = max(1_000, room_in_ms) if code is Code.QUOTA and is_full else None
        assert (told.code, told.outcome, told.retry_after_ms) == (code, Outcome.UNKNOWN, expected)
