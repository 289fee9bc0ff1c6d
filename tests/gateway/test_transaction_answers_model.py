"""What the answer of a transaction carries, for every verdict: status, headers and body against one table.

A retry, a client that counts commit numbers and one that looks where the leader is read the same headers of each
answer, whatever became of the transaction, under a key or in a session, in JSON or msgpack.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import negotiation
from oncegate.gateway.http.identity import ANONYMOUS
from oncegate.gateway.http.routes import transactions
from oncegate.rifl.errors import REGISTRY, Code
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT

COMMIT, TIME_MS, NEWEST, SEQUENCE = 41, 7_000, 55, 9
WRITES = [wire.TransactionWrite(40, 40, value=5), wire.TransactionWrite(COMMIT, COMMIT)]


def request_at(*, leader: str | None, packed: bool, is_full: bool) -> Any:
    keys = SimpleNamespace(is_full=is_full, room_in_ms=lambda now_ms: 90_000)
    machine = SimpleNamespace(time_ms=TIME_MS, commit=NEWEST, keys=keys)
    request = make_mocked_request("POST", "/v1/transactions", {"Accept": wire.MSGPACK if packed else wire.JSON})
    request[negotiation.IDENTITY] = ANONYMOUS
    app: Any = {negotiation.NODE: SimpleNamespace(machine=machine, leader_http=leader)}
    request._match_info = SimpleNamespace(current_app=app, apps=(app,))  # type: ignore[assignment]
    return request


def verdict(status: str, *, replayed: bool, code: str) -> wire.OperationResult:
    shown: dict[str, Any] = {"replayed": True} if replayed else {}
    if status == "applied":
        return wire.OperationResult(SEQUENCE, status, COMMIT, writes=WRITES, **shown)
    if status == "refused":
        return wire.OperationResult(
            SEQUENCE, status, COMMIT, 3, "held", failed="conditions[1]", code="CONDITION_FAILED",
            outcome="not_applied", **shown,
        )  # fmt: skip
    return wire.OperationResult(SEQUENCE, status, code=code, outcome=REGISTRY[Code(code)].outcome, detail="why")


CASES = [
    *(("applied", replayed, "") for replayed in (False, True)),
    *(("refused", replayed, "") for replayed in (False, True)),
    *(("rejected", False, str(code.value)) for code in (Code.QUOTA, Code.WINDOW_FULL, Code.STALE, Code.NOT_FOUND)),
]


@pytest.mark.parametrize(("status", "replayed", "code"), CASES)
async def test_answer_of_a_transaction_carries_what_its_verdict_says_and_what_each_answer_has(
    status: str, replayed: bool, code: str
) -> None:
    for leader, packed, is_full, client_id in itertools.product(
        (None, "http://h:1"), (False, True), (False, True), (KEYS_CLIENT, 77)
    ):
        request = request_at(leader=leader, packed=packed, is_full=is_full)
        result = verdict(status, replayed=replayed, code=code)
        answer = Answer(wire.OperationsResponse([result], 4_000), COMMIT, memory_ms=4_000)
        told = await transactions._answered(request, client_id, answer)
        said, request_id = told.headers, f"{format_client_id(client_id)}/{SEQUENCE}"
        assert said[wire.H_MEMORY_MS] == "4000"
        assert said[wire.H_TIME_MS] == str(TIME_MS)
        assert said[wire.H_COMMIT] == str(COMMIT), "later entries have been applied since"
        assert said.get(wire.H_REQUEST) == (None if status == "rejected" else request_id)
        assert said.get(wire.H_REPLAYED) == ("true" if replayed else None)
        if status != "refused":
            assert said.get(wire.H_LEADER) == leader
        body: Any = told.body  # type: ignore[attr-defined]
        if status == "applied":
            assert (told.status, said["Content-Type"]) == (200, wire.MSGPACK if packed else wire.JSON)
            read = (msgspec.msgpack if packed else msgspec.json).decode(body, type=wire.TransactionApplied)
            assert read == wire.TransactionApplied(request_id, COMMIT, WRITES)
            continue
        assert said["Content-Type"] == wire.PROBLEM
        shown = msgspec.json.decode(body)
        assert told.status == shown["status"]
        if status == "refused":
            assert (shown["request"], shown["failed"], shown["commit"]) == (request_id, "conditions[1]", COMMIT)
            assert (shown["version"], shown["value"], shown["outcome"]) == (3, "held", "not_applied")
            assert (shown["code"], shown["retryable"]) == ("CONDITION_FAILED", False)
            continue
        assert (shown["code"], shown["outcome"]) == (code, REGISTRY[Code(code)].outcome)
        waits_s = {True: 90, False: 1}[is_full] if code == "QUOTA" else None
        if waits_s is not None:
            assert said["Retry-After"] == str(waits_s)
