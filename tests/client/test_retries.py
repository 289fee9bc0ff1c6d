"""Retries: the same request id, one deadline, and what the caller is told at its end."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Mapping

import msgspec
import pytest
from aiohttp import web

from oncegate import (
    Client,
    Code,
    DeadlineExceeded,
    MalformedAnswer,
    OperationFailed,
    OutcomeUnknown,
    PartialFailure,
    Session,
    Tuning,
)
from oncegate.gateway import wire
from oncegate.gateway.client.courier import Call
from oncegate.gateway.client.sync_crossing import crossed
from oncegate.rifl.errors import REGISTRY, OncegateError, Outcome
from oncegate.testing import FakeGateway, FakeNode
from tests.client.answers import OPERATIONS, cut, fails, intercept, packed, rejected, results

QUICK = Tuning(attempt_timeout_s=0.15, backoff_first_s=0.001, backoff_cap_s=0.01)


def answer_with(node: FakeNode, *answers: web.Response | OncegateError) -> None:
    """Answer the next operations with these, unapplied."""
    waiting = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse | None:
        given = waiting.pop(0) if waiting else None
        return node.problem(given) if isinstance(given, OncegateError) else given

    intercept(node, OPERATIONS, answer)


async def test_every_attempt_carries_the_same_id_and_bytes(fake: FakeGateway, session: Session) -> None:
    bodies: list[bytes] = []
    node = fake.nodes[0]

    async def refuse_twice(request: web.Request) -> web.StreamResponse | None:
        bodies.append(await request.read())
        return None if len(bodies) > 2 else node.problem(OncegateError(Code.OVERLOADED, retry_after_ms=1))

    intercept(node, OPERATIONS, refuse_twice)
    await session.put("rows", "k", 1)
    assert len(bodies) == 3
    assert len(set(bodies)) == 1


async def test_writes_rejected_for_now_are_sent_again_alone(fake: FakeGateway, session: Session) -> None:
    node = fake.nodes[0]
    seen: list[list[int]] = []

    async def reject_every_second(request: web.Request) -> web.StreamResponse | None:
        seen.append(await sequences(request))
        if len(seen) > 1:
            return None
        whole = msgspec.msgpack.decode((await node.serve(request)).body, type=wire.OperationsResponse)  # type: ignore[attr-defined]
        assert all(verdict.commit is not msgspec.UNSET for verdict in whole.results)
        return results(
            *(
                rejected(verdict.sequence, "OVERLOADED", later=True) if at % 2 else verdict
                for at, verdict in enumerate(whole.results)
            )
        )

    intercept(node, OPERATIONS, reject_every_second)
    written = await asyncio.gather(*(session.put("rows", f"k{n}", n) for n in range(6)))
    assert seen == [[1, 2, 3, 4, 5, 6], [2, 4, 6]]
    assert [result.sequence for result in written] == [1, 2, 3, 4, 5, 6]


async def sequences(request: web.Request) -> list[int]:
    body = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest)
    return [operation.sequence for operation in body.operations]


async def test_unknown_outcome_at_the_deadline_carries_the_id_and_can_be_asked_for(fake: FakeGateway) -> None:
    fake.nodes[0].lose_answers(1_000_000)
    async with Client(fake.endpoints, tuning=QUICK) as client, client.session() as session:
        with pytest.raises(OutcomeUnknown) as unknown:
            await session.put("rows", "k", 1, timeout_s=0.5)
        failure = unknown.value
        assert (failure.code, failure.outcome) == (Code.TIMEOUT, Outcome.UNKNOWN)
        assert failure.request_id is not None
        state = await client.request(*failure.request_id)
        assert state.state == "applied"
        assert state.result.commit == 1
        again = pickle.loads(pickle.dumps(failure))
        assert type(again) is OutcomeUnknown
        assert again.request_id == failure.request_id
    assert len(fake.executed) == 1


async def test_deadline_without_any_accepted_attempt_says_not_applied(fake: FakeGateway, session: Session) -> None:
    await session.put("rows", "warm", 1)
    answer_with(fake.nodes[0], *[OncegateError(Code.NO_LEADER)] * 10_000)
    with fails(outcome=Outcome.NOT_APPLIED, kind=DeadlineExceeded):
        await session.put("rows", "k", 1, timeout_s=0.1)
    fake.nodes[0].before = None
    assert (await session.put("rows", "k", 2)).sequence == 2, "the number of the write that never was is reused"


async def test_short_deadline_of_one_write_leaves_its_companions_alone(fake: FakeGateway, session: Session) -> None:
    fake.nodes[0].freeze()
    patient = session.submit("put", "rows", "a", 1)
    hasty = session.submit("put", "rows", "b", 2, timeout_s=0.25)
    with pytest.raises(OutcomeUnknown):
        await hasty
    assert not patient.done()
    fake.nodes[0].thaw()
    assert (await patient).applied


@pytest.mark.parametrize("timeout_s", [5.0, 60.0])
@pytest.mark.parametrize("wait_s", [0.0, 0.25, 30.0])
async def test_attempt_has_its_time_and_that_for_which_the_node_was_asked_to_wait_but_none_after_the_deadline(
    fake: FakeGateway, monkeypatch: pytest.MonkeyPatch, timeout_s: float, wait_s: float
) -> None:
    """Cut off before, the wait would begin anew at each node, and nobody would be told of a row that comes late."""
    allowed: list[tuple[float, float]] = []
    async with Client(fake.endpoints, tuning=Tuning(attempt_timeout_s=20), timeout_s=timeout_s) as client:
        async with client.session() as session:
            await session.put("rows", "q/1", 1)  # so that the turn is there and nothing is waited for
        courier = client._connection.courier
        directly = courier._attempt_directly

        async def attempt(call: Call[object], endpoint: str, headers: Mapping[str, str], due: float) -> object:
            allowed.append((due - call.sent_at, call.deadline - call.sent_at))
            return await directly(call, endpoint, headers, due)

        monkeypatch.setattr(courier, "_attempt_directly", attempt)
        assert await client.turns("rows", prefix="q/", wait_s=wait_s) == 1
        assert await client.get("rows", "q/1") is not None
    turns, row = allowed
    assert turns[0] == pytest.approx(min(20 + wait_s, turns[1]))
    assert row[0] == pytest.approx(min(20, row[1]))
    assert (turns[1] > 20 + wait_s) == (row[1] > 20) == (timeout_s > 20), "either is the sooner one, once"


async def test_unknown_outcomes_do_not_block_the_window(fake: FakeGateway) -> None:
    async with Client(fake.endpoints, tuning=QUICK) as client, client.session(window=4) as session:
        await session.put("rows", "k", 0)
        fake.nodes[0].lose_answers(1_000_000)
        for _ in range(3):
            with pytest.raises(OutcomeUnknown):
                await session.put("rows", "k", 1, timeout_s=0.25)
        fake.nodes[0].lose_answers(0)
        for number in range(20):
            assert (await session.put("rows", f"k{number}", 1)).applied


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(
            lambda: web.Response(body=b"\xff\xff", content_type=wire.MSGPACK), id="bytes that are no MessagePack"
        ),
        pytest.param(
            lambda: results(wire.OperationResult(99, "applied", commit=1, version=1)),
            id="the verdict of another operation",
        ),
        pytest.param(lambda: _with_value(b"\xa2\xff\xfe"), id="text that is no UTF-8"),
        pytest.param(lambda: _with_value(b"\x91" * 60_000 + b"\x01"), id="a value nested beyond reading"),
        pytest.param(lambda: web.Response(body=b'{"title":"\xff"}', status=400), id="a problem that is no UTF-8"),
    ],
)
async def test_answers_outside_the_contract_end_in_a_typed_error(
    fake: FakeGateway, session: Session, given: Callable[[], web.Response]
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse | None:
        return given()

    intercept(fake.nodes[0], OPERATIONS, answer)
    with pytest.raises(MalformedAnswer) as malformed:
        await session.put("rows", "k", 1)
    assert malformed.value.outcome is Outcome.UNKNOWN
    assert malformed.value.request_id is not None
    fake.nodes[0].before = None
    assert (await session.put("rows", "k", 2)).applied, "the session goes on"


def _with_value(packed_value: bytes) -> web.Response:
    answer = results(wire.OperationResult(1, "applied", commit=1, version=1, value="HERE"))
    assert isinstance(answer.body, bytes)
    return web.Response(body=answer.body.replace(b"\xa4HERE", packed_value), content_type=wire.MSGPACK)


async def test_write_is_in_doubt_if_the_sdk_fails_over_its_answer(
    fake: FakeGateway, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("oncegate.gateway.client.batch_call.settle_operations", fail)
    with fails(Code.INTERNAL, Outcome.UNKNOWN):
        await session.put("rows", "k", 1)
    assert len(fake.executed) == 1


async def test_unknown_fields_and_codes_of_a_newer_server_are_understood(fake: FakeGateway, session: Session) -> None:
    async def answer(_: web.Request) -> web.StreamResponse | None:
        sure = {"outcome": "not_applied", "retryable": False}
        applied = {"sequence": 1, "status": "applied", "commit": 5, "version": 5, "replayed": False, "shard": 3}
        refused = {"sequence": 2, "status": "rejected", "code": "MOON_PHASE", **sure, "detail": "waning"}
        return packed({"results": [applied, refused], "memory_ms": 9, "more": {}})

    intercept(fake.nodes[0], OPERATIONS, answer)
    first = session.submit("put", "rows", "a", 1)
    second = session.submit("put", "rows", "b", 1)
    assert (await first).commit == 5
    with pytest.raises(OncegateError, match="MOON_PHASE") as refused:
        await second
    assert refused.value.outcome is Outcome.NOT_APPLIED


async def test_gateway_errors_of_a_proxy_are_retried(fake: FakeGateway, session: Session) -> None:
    pages = [web.Response(status=status, text="<html>") for status in (502, 503, 504)]
    answer_with(fake.nodes[0], *pages)
    assert (await session.put("rows", "k", 1)).applied
    assert len(fake.executed) == 1


async def test_rejection_after_an_attempt_in_doubt_says_unknown(fake: FakeGateway, session: Session) -> None:
    node = fake.nodes[0]
    node.lose_answers(1)
    future = session.submit("put", "rows", "k", 1)
    while not fake.executed:
        await asyncio.sleep(0)
    answer_with(node, OncegateError(Code.FORBIDDEN))
    with fails(Code.FORBIDDEN, Outcome.UNKNOWN, kind=OncegateError):
        await future


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("kind", [OperationFailed, PartialFailure])
def test_error_is_an_outcome_unknown_exactly_if_its_outcome_is(kind: type[OperationFailed], code: Code) -> None:
    for outcome in (None, *Outcome):
        failure = kind(code, "why", outcome=outcome)
        for one in (failure, pickle.loads(pickle.dumps(failure))):
            assert isinstance(one, kind)
            assert isinstance(one, OutcomeUnknown) == (one.outcome is Outcome.UNKNOWN), (code, outcome)
            assert (one.code, one.detail) == (code, "why")


@pytest.mark.parametrize("outcome", [Outcome.NOT_APPLIED, Outcome.UNKNOWN])
def test_partial_failure_keeps_its_counts_through_pickling(outcome: Outcome) -> None:
    failure = PartialFailure(Code.TIMEOUT, "why", outcome=outcome, applied=3, failed=2)
    for one in (failure, crossed(copy.copy(failure), None)):  # type: ignore[arg-type]
        same = pickle.loads(pickle.dumps(one))
        assert (type(same), same.outcome, same.applied, same.failed) == (type(failure), outcome, 3, 2)


async def test_session_that_expires_behind_an_attempt_in_doubt_leaves_an_outcome_unknown(fake: FakeGateway) -> None:
    async with Client(fake.endpoints, tuning=QUICK) as client, client.session() as session:

        async def lose(request: web.Request) -> None:
            if request.path == OPERATIONS and fake.machine.sessions.get(session.client_id) is not None:
                fake.expire(session.client_id)
                cut(request)

        fake.nodes[0].before = lose
        with pytest.raises(OutcomeUnknown) as doubt:
            await session.put("rows", "k", 1)
        assert doubt.value.code is Code.SESSION_EXPIRED
        assert doubt.value.resolver is not None


IN_DOUBT = rejected(2, "TIMEOUT", "unknown", later=True)
LATER = rejected(2, "OVERLOADED", later=True)
NEVER = rejected(2, "FORBIDDEN")


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ([LATER, NEVER], Outcome.NOT_APPLIED),
        ([IN_DOUBT, NEVER], Outcome.UNKNOWN),
        ([IN_DOUBT, LATER, NEVER], Outcome.UNKNOWN),
        ([None, LATER, NEVER], Outcome.UNKNOWN),
        ([LATER, None, LATER, NEVER], Outcome.UNKNOWN),
    ],
    ids=["no doubt", "verdict", "verdict, then sure", "lost answer, then sure", "lost answer in between"],
)
async def test_doubt_about_an_attempt_outlives_a_sure_verdict_on_its_retry(
    fake: FakeGateway, told: list[wire.OperationResult | None], outcome: Outcome
) -> None:
    """A batch of two of which the first is applied: the second travels on alone. None stands for a lost answer."""
    first = wire.OperationResult(1, "applied", commit=1, version=1)
    answers, sent = iter(told), []

    async def answer(request: web.Request) -> web.StreamResponse | None:
        sent.append(await sequences(request))
        verdict = next(answers)
        if verdict is None:
            cut(request)
            return None
        return results(first, verdict) if len(sent[-1]) == 2 else results(verdict)

    intercept(fake.nodes[0], OPERATIONS, answer)
    async with Client(fake.endpoints, tuning=QUICK) as client, client.session() as session:
        applied, refused = session.submit("put", "rows", "a", 1), session.submit("put", "rows", "b", 1)
        assert (await applied).applied
        with fails(Code.FORBIDDEN, outcome, kind=OncegateError):
            await refused
    assert (sent[0], sent[-1], len(sent)) == ([1, 2], [2], len(told))


async def test_doubt_about_one_write_outlives_a_sure_verdict_on_one_behind_it(fake: FakeGateway) -> None:
    doubt, sure = rejected(1, "TIMEOUT", "unknown", later=True), rejected(2, "OVERLOADED", later=True)
    applied = wire.OperationResult(2, "applied", commit=1, version=1)
    answers = iter([results(doubt, sure), results(rejected(1, "FORBIDDEN"), applied)])

    async def answer(_: web.Request) -> web.StreamResponse | None:
        return next(answers)

    intercept(fake.nodes[0], OPERATIONS, answer)
    async with Client(fake.endpoints, tuning=QUICK) as client, client.session() as session:
        first, second = session.submit("put", "rows", "a", 1), session.submit("put", "rows", "b", 1)
        with fails(Code.FORBIDDEN, Outcome.UNKNOWN, kind=OncegateError):
            await first
        assert (await second).applied


async def test_number_refused_for_its_ack_is_not_used_for_another_write(fake: FakeGateway, session: Session) -> None:
    """BAD_ACK does not say whether the number was applied: another write under it could be a PAYLOAD_MISMATCH."""

    async def refuse_the_ack(request: web.Request) -> web.StreamResponse | None:
        await fake.nodes[0].serve(request)
        [sent] = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest).operations
        return results(rejected(sent.sequence, "BAD_ACK", REGISTRY[Code.BAD_ACK].outcome))

    intercept(fake.nodes[0], OPERATIONS, refuse_the_ack)
    with pytest.raises(OncegateError) as refused:
        await session.put("rows", "a", 1)
    fake.nodes[0].before = None
    assert (refused.value.code, refused.value.outcome) == (Code.BAD_ACK, Outcome.UNKNOWN)
    assert (await session.put("rows", "b", 2)).sequence == 2


async def test_doubt_stays_with_the_writes_when_their_batch_is_cut(fake: FakeGateway, session: Session) -> None:
    node = fake.nodes[0]
    asked = 0

    async def lose_then_refuse(request: web.Request) -> web.StreamResponse | None:
        nonlocal asked
        asked += 1
        if asked == 1:
            cut(request)
            return None
        return node.problem(OncegateError(Code.BAD_REQUEST if asked == 2 else Code.NO_LEADER, retry_after_ms=1))

    intercept(node, OPERATIONS, lose_then_refuse)
    writes = [session.submit("put", "rows", key, 1, timeout_s=0.2) for key in "ab"]
    told = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(failure) for failure in told] == [OutcomeUnknown, OutcomeUnknown]
    assert asked > 3


async def test_write_that_expires_between_attempts_leaves_its_batch(fake: FakeGateway, session: Session) -> None:
    node = fake.nodes[0]
    answer_with(node, *[OncegateError(Code.OVERLOADED, retry_after_ms=1)] * 10_000)
    patient = session.submit("put", "rows", "a", 1)
    hasty = session.submit("put", "rows", "b", 1, timeout_s=0.25)
    with pytest.raises(OncegateError) as late:
        await hasty
    node.before = None
    await patient
    # In doubt only if the deadline fell into an attempt; told "not applied", it must not have been.
    if late.value.outcome is Outcome.NOT_APPLIED:
        assert [write.key for write in fake.executed] == ["a"]


async def test_call_that_is_tried_again_when_the_client_is_closed_says_so(fake: FakeGateway) -> None:
    await fake.nodes[0].stop()
    async with Client(fake.endpoints, tuning=Tuning(backoff_first_s=0.001, backoff_cap_s=0.01)) as client:
        reading = asyncio.ensure_future(client.get("rows", "k"))
        await asyncio.sleep(0)
    with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
        await reading


MAYBE = OncegateError(Code.TIMEOUT, outcome=Outcome.UNKNOWN, retry_after_ms=1)
SURE = OncegateError(Code.FORBIDDEN)


@pytest.mark.parametrize(
    ("first", "outcome"),
    [(MAYBE, Outcome.UNKNOWN), ("proxy", Outcome.UNKNOWN), ("odd", Outcome.UNKNOWN), (SURE, Outcome.NOT_APPLIED)],
    ids=["refusal that says so", "proxy without its node", "answer in a form that is not read", "sure from the start"],
)
async def test_attempt_that_may_have_been_applied_leaves_doubt_whatever_comes_after(
    fake: FakeGateway, session: Session, first: OncegateError | str, outcome: Outcome
) -> None:
    node, asked = fake.nodes[0], 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked > 1 or first is SURE:
            return node.problem(SURE)
        if isinstance(first, OncegateError):
            return node.problem(first)
        if first == "proxy":
            return web.Response(status=502, text="no upstream")
        odd = web.StreamResponse(headers={"Content-Type": wire.MSGPACK})
        odd.enable_chunked_encoding()
        await odd.prepare(request)
        await odd.write_eof()
        return odd

    intercept(node, OPERATIONS, answer)
    with fails(Code.FORBIDDEN, outcome, kind=OncegateError):
        await session.put("rows", "k", 1)
    assert asked == (1 if first is SURE else 2)
