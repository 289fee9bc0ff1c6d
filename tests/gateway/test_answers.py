"""Machine results as they travel."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from oncegate.gateway import wire
from oncegate.gateway.answers import ANSWERS, answer, rejected, relayed_body, request_state
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.errors import REGISTRY, Code, OncegateError
from oncegate.rifl.rule import Refusal


def asked(machine: Machine, command: c.Command, at: int = 0) -> Any:
    [result] = machine.apply(1, 1, c.encode_entry(at, [command]))
    made = answer(command, result, machine)
    # A follower relays the body as plain data: it must come back as the same shape.
    relayed = relayed_body(command, msgspec.msgpack.decode(msgspec.msgpack.encode(made.body)))
    assert msgspec.json.encode(relayed) == msgspec.json.encode(made.body)
    return made


def machine() -> Machine:
    made = Machine()
    for command in (
        c.DeclareTable("t", "resident", 1 << 20),
        c.DeclareTable("s", "stream", 1 << 20),
        c.OpenSession("n", 1_000, 8),
    ):
        asked(made, command)
    return made


def operate(made: Machine, *ops: c.Op, at: int = 0) -> list[dict[str, Any]]:
    body = asked(made, c.Operate(1, 1, 1, list(ops)), at).body
    results: list[dict[str, Any]] = msgspec.to_builtins(body)["results"]
    return results


def put(sequence: int, value: bytes = b"1", fingerprint: int = 1, **fields: Any) -> c.Op:
    return c.Op(sequence, int(c.OpKind.PUT), fields.pop("table", "t"), "k", fingerprint, value, **fields)


def test_every_command_has_its_answer_and_nothing_else_has() -> None:
    assert set(ANSWERS) == set(get_args(c.Command))


def test_each_verdict_has_the_fields_of_the_contract() -> None:
    made = machine()
    applied, refused, counted, unknown, mismatch, replayed = operate(
        made,
        put(1),
        put(2, test=int(c.Test.ABSENT)),
        c.Op(3, int(c.OpKind.INCREMENT), "t", "n", 3, by=41),
        put(4, table="no"),
        put(1, fingerprint=9),
        put(1),
    )
    assert applied == {"sequence": 1, "status": "applied", "commit": 1, "version": 1, "replayed": False}
    assert replayed == applied | {"replayed": True}
    assert refused == {
        "sequence": 2,
        "status": "refused",
        "code": "CONDITION_FAILED",
        "commit": 2,
        "version": 1,
        "value": 1,
        "replayed": False,
    }
    assert counted == {"sequence": 3, "status": "applied", "commit": 3, "version": 3, "value": 41, "replayed": False}
    assert unknown == {
        "sequence": 4,
        "status": "rejected",
        "code": "NOT_FOUND",
        "outcome": "not_applied",
        "retryable": False,
        "detail": "no such table",
    }
    assert (mismatch["code"], mismatch["outcome"]) == ("PAYLOAD_MISMATCH", "not_applied")


def test_impossible_ack_of_an_applied_operation_says_unknown() -> None:
    """The rule refuses the ack before it looks for a record, so it cannot know whether one is there."""
    made = machine()
    operate(made, put(1))
    body = asked(made, c.Operate(1, 1, 2, [put(1)])).body
    [refused] = msgspec.to_builtins(body)["results"]
    assert (refused["code"], refused["outcome"], refused["retryable"]) == ("BAD_ACK", "unknown", False)
    ranged = asked(made, c.Range(1, 1, 2, "s", 1, (1).to_bytes(8, "big"), b"")).body
    [part] = msgspec.to_builtins(ranged)["results"]
    assert (part["code"], part["outcome"]) == ("BAD_ACK", "unknown")
    assert made.trackers[1].find(1) is not None


def test_every_rejection_says_outcome_and_retryable() -> None:
    for refusal in Refusal:
        said = rejected(1, refusal)
        assert (said.outcome, said.retryable) == (refusal.outcome.value, REGISTRY[refusal.code].retryable)
        assert said.detail


def test_open_says_whether_the_session_is_new() -> None:
    made = Machine()
    first, again = (asked(made, c.OpenSession("n", 1_000, 8)) for _ in range(2))
    assert (first.created, again.created) == (True, False)
    assert first.body == again.body == wire.SessionOpened("0000000000000001", 1, 1_000, 8)


def test_session_answers() -> None:
    made = machine()
    assert asked(made, c.RenewSession(1, 1), at=400).body == wire.SessionRenewed(1_000)
    operate(made, put(3), at=400)
    assert asked(made, c.TakeOver(1, "m"), at=400).body == wire.SessionTaken(2, 1, 3)
    with pytest.raises(OncegateError) as caught:
        asked(made, c.RenewSession(1, 1))
    assert caught.value.code is Code.FENCED
    assert asked(made, c.CloseSession(1, 2)).body == wire.SessionClosed()


def test_flow_answers() -> None:
    made = machine()
    state = asked(made, c.DeclareFlow(b'{"name":"f","source":"t","consumers":["spark"]}')).body
    assert (state.flow, state.source, state.first_batch, state.last_batch) == ("f", "t", 1, 0)
    operate(made, put(1))
    asked(made, c.Seal("f", 1))
    assert asked(made, c.Attach("f", "spark", "x")).body == wire.ConsumerAttached(1, 0)
    assert asked(made, c.MoveCursor("f", "spark", 1, 1, replay=False)).body == wire.CursorMoved(1)


def test_request_state_tells_applied_never_seen_acknowledged_and_expired() -> None:
    made = machine()
    operate(made, put(1), put(2))
    asked(made, c.Operate(1, 1, 2, [put(3)]))
    states = {sequence: request_state(made, 1, sequence) for sequence in (1, 2, 4)}
    assert [states[s].state for s in (1, 2, 4)] == ["acknowledged", "applied", "never_seen"]
    assert states[2].result is not None
    assert (states[2].result.commit, states[2].result.replayed) == (2, True)
    assert request_state(made, 2, 1).state == "never_seen"
    asked(made, c.Reap([1]), at=60_000)
    assert request_state(made, 1, 2).state == "expired"


def test_range_answer_is_split_where_verdicts_differ() -> None:
    made = machine()
    prints = b"".join(s.to_bytes(8, "big") for s in (1, 2, 3))
    asked(made, c.Range(1, 1, 1, "s", 1, prints[:8], b""))
    body = asked(made, c.Range(1, 1, 1, "s", 1, prints, b"")).body
    assert msgspec.to_builtins(body)["results"] == [
        {"first": 1, "last": 1, "status": "applied", "commit": 1, "replayed": True},
        {"first": 2, "last": 3, "status": "applied", "commit": 2, "replayed": False},
    ]
    refused = asked(made, c.Range(1, 2, 1, "s", 4, prints, b"")).body.results[0]
    assert (refused.status, refused.code, refused.outcome, refused.retryable) == (
        "rejected",
        "FENCED",
        "unknown",
        False,
    )
