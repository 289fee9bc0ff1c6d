"""Events against what the specification says of them: which are taken, how large a batch is, and the answer's status.

The reader is asked about events with one or two members at the bounds of their types; the route gets the verdicts from
a node that draws them.
"""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from multidict import CIMultiDict

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import cloudevents as ce
from oncegate.gateway.http import negotiation, request_bodies
from oncegate.gateway.http.identity import Identity
from oncegate.gateway.http.routes import events
from oncegate.rifl.errors import REGISTRY, Code, OncegateError

EVENT: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
TEXTS = ("id", "source", "type", "subject", "datacontenttype", "dataschema")
NUMBERS = [sign * 2**bits + more for sign in (1, -1) for bits in (0, 31, 32) for more in (-1, 0, 1)]
VALUES: list[Any] = [*NUMBERS, None, True, False, "", "a", "AA==", "AAA", "A A=", "urn:x", 0.0, [], {}]
MEMBERS = [(name, value) for name in (*TEXTS, "data", "data_base64", "ext", "e2", "E") for value in VALUES]


def is_base64(text: str) -> bool:
    return bool(re.fullmatch(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", text))


def fits(name: str, value: Any) -> bool:
    """Whether a member of an event may have the value, by the specification of CloudEvents."""
    if name == "data":
        return True
    if name == "data_base64":
        return isinstance(value, str) and is_base64(value)
    if name in TEXTS:
        if not isinstance(value, str) or not value:
            return False
        return (name != "dataschema" or ":" in value) and (name != "source" or " " not in value)
    if name == "E":
        return False
    if isinstance(value, bool):
        return True
    return isinstance(value, str) or (isinstance(value, int) and -(2**31) <= value < 2**31)


def test_event_is_taken_if_each_member_may_have_its_value_and_data_comes_once() -> None:
    dice = random.Random(1)
    pairs = [dict(dice.sample(MEMBERS, 2)) for _ in range(2_000)]
    data = [{"data": one, "data_base64": other} for one in VALUES for other in VALUES]
    for changed in [*({name: value} for name, value in MEMBERS), *pairs, *data]:
        event_is_taken_if_it_may_be(changed)


def event_is_taken_if_it_may_be(changed: dict[str, Any]) -> None:
    sent = {**EVENT, **changed}
    kept = {name: value for name, value in sent.items() if value is not None or name == "data"}
    expected = all(fits(name, value) for name, value in kept.items() if name not in ("specversion", "source"))
    expected &= "source" in kept and fits("source", kept["source"]) and {"id", "type"} <= kept.keys()
    expected &= not {"data", "data_base64"} <= kept.keys()
    body = msgspec.json.encode(sent)
    if not expected:
        with pytest.raises(OncegateError) as caught:
            ce.read("t", ce.STRUCTURED, [], body)
        assert caught.value.code is Code.BAD_REQUEST, sent
        return
    [event] = ce.read("t", ce.STRUCTURED, [], body)
    assert event.op.value is not None
    assert msgspec.json.decode(event.op.value) == kept
    assert (event.source, event.id) == (kept["source"], kept["id"])


@pytest.mark.parametrize("seed", range(8))
def test_batch_is_as_large_as_its_keys_and_values_together_and_is_taken_up_to_the_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    sent = [
        {**EVENT, "id": f"{at}" * dice.randint(1, 90), "data": "d" * dice.choice((0, 1, 500))}
        for at in range(dice.randint(2, 20))
    ]
    body = msgspec.json.encode(sent)
    events = ce.read("t", ce.BATCH, [], body)
    size = sum(len(event.op.key) + len(event.op.value or b"") for event in events)
    monkeypatch.setattr(request_bodies, "OPERATIONS_BYTES_MAX", size)
    assert ce.read("t", ce.BATCH, [], body) == events
    monkeypatch.setattr(request_bodies, "OPERATIONS_BYTES_MAX", size - 1)
    with pytest.raises(OncegateError) as caught:
        ce.read("t", ce.BATCH, [], body)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


TRACE = f"00-{7:032x}-{9:016x}-01"


class Request(dict[Any, Any]):
    """A request that the gate has admitted, with a body that came with its head; what is charged for it."""

    def __init__(self, kind: str, body: bytes, machine: Any) -> None:
        super().__init__()
        self.headers, self.content_type = CIMultiDict({"Content-Type": kind, "traceparent": TRACE}), kind
        self.content_length, self.match_info, self.query = len(body), {"table": "t"}, dict[str, str]()
        self.content = SimpleNamespace(is_eof=lambda: True)
        self.app = {negotiation.NODE: SimpleNamespace(machine=machine, leader_http=None, settings=machine.settings)}
        self.charged = list[int]()
        self[negotiation.IDENTITY] = Identity("n", "ann", frozenset())
        self[negotiation.USAGE] = SimpleNamespace(charge=self.charged.append)
        self[negotiation.BODY_BYTES_MAX] = 2**20
        self.body = body

    async def read(self) -> bytes:
        return self.body


REJECTED = [*Code, *[Code.QUOTA] * 3]


def verdict(dice: random.Random, at: int) -> wire.OperationResult:
    if dice.random() < 0.6:
        status = dice.choice(("applied", "applied", "refused"))
        return wire.OperationResult(sequence=at + 5, status=status, commit=at + 70, replayed=dice.random() < 0.5)
    code = dice.choice(REJECTED)
    traits = REGISTRY[code]
    return wire.OperationResult(
        sequence=0, status="rejected", code=code.value, outcome=traits.outcome.value, retryable=traits.retryable,
        detail=f"d{at}",
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
async def test_answer_to_events_says_success_only_if_all_were_taken_and_may_be_sent_again_if_that_helps(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory that the events' keys are sure of is told in either case: a sender counts on it when it sends again.

    A rejection that passes by itself decides before one that stays, wherever in the batch they are.
    """
    dice = random.Random(seed)
    for _ in range(40):
        await answer_says_what_became_of_the_events(dice, monkeypatch)


async def answer_says_what_became_of_the_events(dice: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = dice.choice((ce.STRUCTURED, ce.BATCH, ce.BATCH))
    sent = [{**EVENT, "id": f"i{at}"} for at in range(1 if kind == ce.STRUCTURED else dice.randint(1, 6))]
    results = [verdict(dice, at) for at in range(len(sent))]
    keys = SimpleNamespace(is_full=dice.random() < 0.5, room_in_ms={5: dice.choice((1, 7_000))}.__getitem__)
    lasting = SimpleNamespace(idempotency_key_ms=60_000)
    machine = SimpleNamespace(commit=99, time_ms=5, settings=lasting, keys=keys)

    async def attempted(node: Any, command: Any, size: int) -> Answer:
        assert [one.op.key for one in command.ops] == [f"/s i{at}" for at in range(len(sent))]
        assert len({one.key for one in command.ops}) == len(sent)
        assert (command.tenant, command.lifetime_ms, command.traceparent) == ("ann", 60_000, TRACE)
        return Answer(wire.OperationsResponse(results, 4_321), 77, memory_ms=4_321)

    monkeypatch.setattr(events, "attempted", attempted)
    request = Request(kind, msgspec.json.encode(sent[0] if kind == ce.STRUCTURED else sent), machine)
    response = cast("Any", await events.post(cast("Any", request)))
    assert request.charged == [len(sent)]
    assert response.headers[wire.H_MEMORY_MS] == "4321"
    body = msgspec.json.decode(response.body)
    assert [(one["id"], one["status"], one.get("commit"), one.get("code")) for one in body["results"]] == [
        (f"i{at}", one.status, one.commit or None, one.code or None) for at, one in enumerate(results)
    ]
    rejected = [one for one in results if one.status == "rejected"]
    single = kind == ce.STRUCTURED and not rejected
    assert (wire.H_REQUEST in response.headers) == single
    assert (response.headers.get(wire.H_REPLAYED) == "true") == (single and results[0].replayed)
    if not rejected:
        assert (response.status, body["memory_ms"]) == (200, 4_321)
        return
    [*passing] = [one for one in rejected if one.retryable]
    worst = (passing or rejected)[0]
    ends = {str(one.outcome) if one.status == "rejected" else "applied" for one in results}
    assert (body["code"], body["retryable"]) == (worst.code, bool(passing))
    assert body["outcome"] == (ends.pop() if len(ends) == 1 else "unknown")
    assert response.status == REGISTRY[Code(str(worst.code))].status
    assert str(worst.detail) in body["detail"]
    # A full table of keys has room again at a time that is known; a sender that comes before is sent away again.
    if worst.code == Code.QUOTA.value and keys.is_full:
        assert body["retry_after_ms"] == max(1_000, keys.room_in_ms(5))
