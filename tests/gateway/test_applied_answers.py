"""The usual answer, written in one step, is to the byte what the steps of any other answer make of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncegate.gateway import wire
from oncegate.gateway.answer_values import JsonText, Packed
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import exchange as exchanges
from oncegate.gateway.http.admission.desk import Usage
from oncegate.gateway.http.exchange import Exchange, Ordering, Reply, UsualAnswers, complete, encode
from oncegate.gateway.http.identity import ANONYMOUS
from oncegate.gateway.http.routes.operations import Operate, PutRange
from oncegate.gateway.http.routes.rows import Delete, Extend, Increase, Put
from oncegate.gateway.http.routing import UNNAMED

number = st.integers(1, 2**53 - 1)
values = st.just(msgspec.UNSET) | st.none() | st.integers(-9, 9) | st.text(max_size=4)
values |= st.sampled_from([JsonText(b'{"a":[1]}'), Packed(b"\x93\x01\x02\x03")])
results = st.builds(
    wire.OperationResult,
    number,
    st.sampled_from(["applied"] * 4 + ["refused", "rejected"]),
    number,
    number | st.just(msgspec.UNSET),
    values,
    replayed=st.booleans(),
    code=st.just(msgspec.UNSET) | st.just("CONDITION_FAILED"),
    outcome=st.just("not_applied"),
    detail=st.just(""),
)
answers = st.builds(
    Answer,
    st.builds(wire.OperationsResponse, st.lists(results, min_size=1, max_size=3), st.integers(0, 60_000)),
    number,
    st.just(value=False),
    st.none() | st.integers(0, 60_000),
)
nodes = st.builds(
    lambda leader, time_ms: SimpleNamespace(
        leader_http=leader, machine=SimpleNamespace(time_ms=time_ms, commit=1, keys=SimpleNamespace(is_full=False))
    ),
    st.sampled_from([None, "http://127.0.0.1:7400", "http://[fe80::1%25eth0]:7400", "http://100%d"]),
    st.integers(0, 2**53),
)
kinds = st.sampled_from([Operate, PutRange, Put, Delete, Increase, Extend])
DATES = ["Mon, 23 Nov 2026 16:00:00 GMT", "Mon, 23 Nov 2026 16:00:01 GMT"]


def _ordering(kind: type, exchange: Exchange) -> Ordering:
    ordering: Any = kind.__new__(kind)
    ordering._exchange, ordering._client_id = exchange, "0000000000000001"
    made: Ordering = ordering
    return made


@given(nodes, st.lists(st.tuples(kinds, answers, st.booleans(), st.sampled_from(DATES)), min_size=1, max_size=4))
@example(SimpleNamespace(leader_http=None, machine=SimpleNamespace(time_ms=0)), [])
@settings(max_examples=150, deadline=None)
def test_answer_written_in_one_step_is_the_one_of_many_steps(
    node: Any, many: list[tuple[type, Answer, bool, str]]
) -> None:
    usual = UsualAnswers(node)
    for kind, answer, packed, date in many:
        usage = Usage(None)
        exchange = Exchange(node, ANONYMOUS, usage, lambda name: [], UNNAMED, packed, set())  # type: ignore[arg-type]
        ordering, at_once = _ordering(kind, exchange), _ordering(kind, replace(exchange, usual=usual))
        result = answer.body.results[0]
        if result.status != "applied":
            result.code = "CONDITION_FAILED" if result.status == "refused" else "NOT_FOUND"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exchanges, "rfc822_formatted_time", lambda date=date: date)
            told, reply = at_once.reply(answer, None), ordering.reply(answer, None)
            if isinstance(told, Reply):
                assert result.status != "applied"
                assert told == reply
                continue
            assert isinstance(reply, Reply)
            complete(reply.headers, usage, node)
            assert told == exchanges.written(reply)


@given(nodes, st.sampled_from([Operate, Put, Delete, Increase, Extend]), answers)
def test_every_end_of_a_write_is_told_with_the_commit_of_its_entry(node: Any, kind: type, answer: Answer) -> None:
    """Later entries have been applied by then: the machine's commit number is another."""
    exchange = Exchange(node, ANONYMOUS, Usage(None), lambda name: [], UNNAMED, False, set())  # type: ignore[arg-type]
    answer.body.results[0].code = "CONDITION_FAILED" if answer.body.results[0].status == "refused" else "NOT_FOUND"
    told = _ordering(kind, exchange).reply(answer, None)
    assert isinstance(told, Reply)
    assert told.headers[wire.H_COMMIT] == str(answer.commit)


def test_usual_answers_are_written_in_one_step() -> None:
    node: Any = SimpleNamespace(leader_http="http://h:1", machine=SimpleNamespace(time_ms=7))
    exchange = Exchange(node, ANONYMOUS, Usage(None), lambda name: [], UNNAMED, False, set())  # type: ignore[arg-type]
    exchange.usual = UsualAnswers(node)
    done = Answer(wire.OperationsResponse([wire.OperationResult(1, "applied", 5, 5, replayed=False)], 60), 5, False, 60)
    for kind in (Operate, PutRange, Put, Delete, Increase, Extend):
        told = _ordering(kind, exchange).reply(done, None)
        assert isinstance(told, bytes)
        assert told.startswith(b"HTTP/1.1 200 OK\r\nOncegate-Commit: 5\r\nOncegate-Time-Ms: 7\r\n")


def test_leader_is_told_as_it_is_known_when_the_answer_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "rfc822_formatted_time", lambda: DATES[0])
    node: Any = SimpleNamespace(leader_http=None, machine=SimpleNamespace(time_ms=7))
    written, done = UsualAnswers(node).written, Answer(wire.OperationsResponse([], 60), 5, False, 60)
    for leader in ("http://h:1", "http://h:2", None, "http://h:1"):
        node.leader_http = leader
        head = written(done, encode(done, packed=False), packed=False).split(b"\r\n\r\n")[0].decode().split("\r\n")
        told = [line for line in head if line.startswith(wire.H_LEADER)]
        assert told == ([] if leader is None else [f"{wire.H_LEADER}: {leader}"])
