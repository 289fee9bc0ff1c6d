"""Machine results as they travel."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from oncegate.gateway import wire
from oncegate.gateway.answer_values import BUILT_BYTES_MAX, JSON, MSGPACK, bytes_to_build, json_of
from oncegate.gateway.answers import ANSWERS, answer, rejected, relayed_body
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.errors import REGISTRY, Code, OncegateError
from oncegate.rifl.rule import Refusal


def asked(machine: Machine, command: c.Command, at: int = 0) -> Any:
    [result] = apply(machine, 1, 1, c.encode_entry(at, [command]))
    made = answer(command, result, machine)
    # A follower relays the body as msgpack: it must come back as the same shape.
    relayed = relayed_body(command, msgspec.Raw(MSGPACK.encode(made.body)))
    assert JSON.encode(relayed) == JSON.encode(made.body)
    return made


def machine() -> Machine:
    made = Machine()
    for table, kind in (("t", "resident"), ("s", "stream")):
        asked(made, c.DeclareTable(table, kind, 1 << 20))
    asked(made, c.OpenSession("n", 1_000, 8))
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
    done = {"status": "applied", "replayed": False}
    assert applied == {**done, "sequence": 1, "commit": 1, "version": 1}
    assert replayed == applied | {"replayed": True}
    failed = {**done, "status": "refused", "code": "CONDITION_FAILED"}
    assert refused == {**failed, "sequence": 2, "commit": 2, "version": 1, "value": 1}
    assert counted == {**done, "sequence": 3, "commit": 3, "version": 3, "value": 41}
    no_table = {"code": "NOT_FOUND", "outcome": "not_applied", "retryable": False, "detail": "no table no"}
    assert unknown == {"sequence": 4, "status": "rejected", **no_table}
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


def test_commands_of_sessions_and_flows_have_their_answers() -> None:
    made = machine()
    opened = wire.SessionOpened("0000000000000001", 1, 1_000, 8)
    again = asked(made, c.OpenSession("n", 1_000, 8))
    assert (again.created, again.body) == (False, opened)
    assert asked(made, c.OpenSession("new", 1_000, 8)).created
    flow = asked(made, c.DeclareFlow(b'{"name":"f","source":"t","consumers":["spark"]}')).body
    assert (flow.flow, flow.source, flow.first_batch, flow.last_batch) == ("f", "t", 1, 0)
    operate(made, put(3), at=400)
    asked(made, c.Seal("f", 1), at=400)
    commands: list[tuple[c.Command, Any]] = [
        (c.RenewSession(1, 1), wire.SessionRenewed(1_000)),
        (c.TakeOver(1, "m"), wire.SessionTaken(2, 1, 3)),
        (c.CloseSession(1, 2), wire.SessionClosed()),
        (c.Attach("f", "spark", "x"), wire.ConsumerAttached(1, 0)),
        (c.MoveCursor("f", "spark", 1, 1, replay=False), wire.CursorMoved(1)),
    ]
    for command, body in commands:
        assert asked(made, command, at=400).body == body
    with pytest.raises(OncegateError) as caught:
        asked(made, c.RenewSession(1, 1))
    assert caught.value.code is Code.SESSION_EXPIRED


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
    fenced = (refused.status, refused.code, refused.outcome, refused.retryable)
    assert fenced == ("rejected", "FENCED", "unknown", False)


def test_results_that_are_too_many_to_build_travel_from_node_to_node_and_to_the_caller_as_they_are() -> None:
    """A leader's answer in JSON and msgpack, and the same relayed by a follower: the same values each time."""
    made = machine()
    text = msgspec.json.encode([{"n": at, "t": "\N{SNOWMAN}"} for at in range(2_000)])
    command = c.Operate(1, 1, 1, [put(1, text), *(c.Op(at, int(c.OpKind.GET), "t", "k", at) for at in range(2, 6))])
    body = asked(made, command).body
    assert bytes_to_build(body, packed=True) > 2 * len(text) > BUILT_BYTES_MAX
    relayed = relayed_body(command, msgspec.Raw(MSGPACK.encode(body)))
    assert bytes_to_build(relayed, packed=True) == bytes_to_build(body, packed=False) == 0
    assert bytes_to_build(relayed, packed=False) > 2 * len(text)
    values = [msgspec.json.decode(text)] * 4
    for answered in (body, relayed):
        for read, sent in ((msgspec.json, JSON.encode(answered)), (msgspec.msgpack, MSGPACK.encode(answered))):
            assert [one.get("value") for one in read.decode(sent)["results"]] == [None, *values]
        assert [json_of(one.value) for one in answered.results[1:]] == [text] * 4
