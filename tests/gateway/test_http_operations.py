"""``POST /v1/operations``: a verdict per operation, the same again for each retry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from tests.gateway.http_contract import MSGPACK, assert_problem, declare, put

if TYPE_CHECKING:
    from tests.conftest import Api


def _request(client_id: str, *operations: dict[str, Any], first_incomplete: int = 1) -> dict[str, Any]:
    return {"client_id": client_id, "epoch": 1, "first_incomplete": first_incomplete, "operations": list(operations)}


def _without_replayed(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in result.items() if name != "replayed"} for result in results]


ONE_OF_EACH = [
    put(1, "a", {"text": "hi", "n": [1, 2.5, None, True]}),
    put(2, "a", "taken", condition={"absent": True}),
    {"sequence": 3, "op": "increment", "table": "rows", "key": "n", "by": 5},
    {"sequence": 4, "op": "delete", "table": "rows", "key": "a"},
    {"sequence": 5, "op": "delete", "table": "rows", "key": "never-there"},
]


async def test_each_operation_has_its_own_verdict(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    results = await api.operate(client_id, *ONE_OF_EACH, put(6, "x", 1, table="nowhere"))
    assert [r["sequence"] for r in results] == [1, 2, 3, 4, 5, 6]
    assert [r["status"] for r in results] == ["applied", "refused", "applied", "applied", "applied", "rejected"]
    assert [r.get("commit") for r in results] == [1, 2, 3, 4, 5, None]
    assert results[0] == {"sequence": 1, "status": "applied", "commit": 1, "version": 1, "replayed": False}
    assert results[1]["code"] == "CONDITION_FAILED"
    assert results[1]["version"] == 1
    assert results[1]["value"] == {"text": "hi", "n": [1, 2.5, None, True]}
    assert results[2]["value"] == 5
    assert (results[5]["code"], results[5]["outcome"], results[5]["retryable"]) == ("NOT_FOUND", "not_applied", False)


async def test_json_and_msgpack_carry_the_same_shapes(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    request = _request(client_id, *ONE_OF_EACH)
    status, headers, from_json = await api.call("POST", "/v1/operations", request)
    assert status == 200
    assert headers["Content-Type"].startswith("application/json")
    packed = msgspec.msgpack.encode(request)
    sent = {"Content-Type": MSGPACK}
    status, headers, raw = await api.call("POST", "/v1/operations", data=packed, headers=sent)
    assert status == 200
    assert headers["Content-Type"] == MSGPACK
    from_msgpack = msgspec.msgpack.decode(raw)
    assert from_msgpack.keys() == from_json.keys() == {"results", "memory_ms"}
    assert _without_replayed(from_msgpack["results"]) == _without_replayed(from_json["results"])
    assert all(result["replayed"] for result in from_msgpack["results"])
    both = {"Content-Type": MSGPACK, "Accept": "application/json"}
    status, headers, crossed = await api.call("POST", "/v1/operations", data=packed, headers=both)
    assert headers["Content-Type"].startswith("application/json")
    assert crossed["results"] == from_msgpack["results"]


async def test_replays_are_byte_identical(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    await api.call("POST", "/v1/operations", _request(client_id, *ONE_OF_EACH))
    body = json.dumps(_request(client_id, *ONE_OF_EACH)).encode()
    replays = []
    for _ in range(3):
        _, _, raw = await api.call("POST", "/v1/operations", data=body, headers={"Accept": MSGPACK})
        replays.append(msgspec.msgpack.encode(msgspec.msgpack.decode(raw)["results"]))
        await api.operate(client_id, put(100 + len(replays), "a", "changed since"))
    assert len(set(replays)) == 1
    _, headers, _ = await api.call("GET", "/v1/tables/rows/rows/a")
    assert headers["Oncegate-Commit"] == "8", "a replay took a commit number"


async def test_spelling_of_a_payload_does_not_make_it_another_one(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    await api.operate(client_id, put(1, "a", {"x": 1, "y": "\u00e9"}))
    spelled = '{"operations":[{"value":{"y":"\\u00e9" , "x":1},"key":"a","table":"rows","op":"put","sequence":1}],'
    spelled += f'"first_incomplete":1,"epoch":1,"client_id":"{client_id}"}}'
    _, _, answer = await api.call("POST", "/v1/operations", data=spelled.encode())
    assert answer["results"][0]["replayed"] is True


async def test_refusal_is_recorded_and_replayed_when_it_would_no_longer_be_refused(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    await api.operate(client_id, put(1, "seat", "ann"))
    attempt = put(2, "seat", "bob", condition={"absent": True})
    (refused,) = await api.operate(client_id, attempt)
    await api.operate(client_id, {"sequence": 3, "op": "delete", "table": "rows", "key": "seat"})
    (again,) = await api.operate(client_id, attempt)
    assert again == {**refused, "replayed": True}
    assert_problem(await api.call("GET", "/v1/tables/rows/rows/seat"), "NOT_FOUND")


async def test_same_id_with_another_payload_changes_nothing(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    (first,) = await api.operate(client_id, put(1, "a", "original"))
    others = [
        put(1, "a", "other"),
        put(1, "b", "original"),
        put(1, "a", "original", condition={"absent": True}),
        {"sequence": 1, "op": "delete", "table": "rows", "key": "a"},
        {"sequence": 1, "op": "increment", "table": "rows", "key": "a"},
    ]
    for result in await api.operate(client_id, *others):
        assert (result["status"], result["code"], result["outcome"]) == ("rejected", "PAYLOAD_MISMATCH", "not_applied")
    (again,) = await api.operate(client_id, put(1, "a", "original"))
    assert again == {**first, "replayed": True}


async def test_increment_keeps_to_signed_64_bits(api: Api) -> None:
    await declare(api)
    client_id = await api.session()

    def increment(sequence: int, by: int | None, key: str = "n") -> dict[str, Any]:
        extra = {} if by is None else {"by": by}
        return {"sequence": sequence, "op": "increment", "table": "rows", "key": key, **extra}

    results = await api.operate(
        client_id,
        increment(1, None),
        increment(2, 41),
        increment(3, 2**63 - 43),
        increment(4, 1),
        increment(5, -(2**63)),
    )
    assert [r.get("value") for r in results] == [1, 42, 2**63 - 1, 2**63 - 1, -1]
    assert (results[3]["status"], results[3]["code"]) == ("refused", "OVERFLOW")
    await api.operate(client_id, put(6, "text", "one"))
    (result,) = await api.operate(client_id, increment(7, 1, "text"))
    assert (result["status"], result["code"], result["value"]) == ("refused", "NOT_AN_INTEGER", "one")
    _, _, row = await api.call("GET", "/v1/tables/rows/rows/n")
    assert (row["value"], row["version"]) == (-1, 5)


async def test_conditions_decide_on_the_row_as_it_is(api: Api) -> None:
    await declare(api)
    client_id = await api.session()

    def conditional(sequence: int, key: str, condition: dict[str, Any]) -> dict[str, Any]:
        return put(sequence, key, sequence, condition=condition)

    results = await api.operate(
        client_id,
        conditional(1, "a", {"absent": True}),
        conditional(2, "a", {"version": 1}),
        conditional(3, "a", {"version": 1}),
        conditional(4, "a", {"value": 2}),
        conditional(5, "a", {"value": 2.5}),
        conditional(6, "new", {"version": 0}),
        conditional(7, "gone", {"value": None}),
        {"sequence": 8, "op": "delete", "table": "rows", "key": "a", "if": {"version": 4}},
        {"sequence": 9, "op": "increment", "table": "rows", "key": "a", "if": {"absent": True}},
    )
    verdicts = ["applied", "applied", "refused", "applied", "refused", "applied", "refused", "applied", "applied"]
    assert [r["status"] for r in results] == verdicts
    assert (results[2]["version"], results[2]["value"]) == (2, 2)


async def test_gap_in_the_window_is_filled_later_and_each_runs_once(api: Api) -> None:
    await declare(api)
    client_id = await api.session(window=4)
    results = await api.operate(client_id, put(3, "c", 3), put(1, "a", 1), put(3, "c", 3), put(5, "e", 5))
    assert [r["status"] for r in results] == ["applied", "applied", "applied", "rejected"]
    assert results[2]["replayed"] is True
    assert (results[3]["code"], results[3]["retryable"]) == ("WINDOW_FULL", True)
    (filled, acked) = await api.operate(client_id, put(2, "b", 2), put(5, "e", 5), first_incomplete=2)
    assert filled["status"] == acked["status"] == "applied"


async def test_acknowledged_operation_is_never_run_again(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    await api.operate(client_id, put(1, "a", 1))
    await api.operate(client_id, put(2, "a", 2), first_incomplete=2)
    (stale,) = await api.operate(client_id, put(1, "a", 1))
    assert (stale["code"], stale["outcome"]) == ("STALE", "unknown")
    assert (await api.call("GET", "/v1/tables/rows/rows/a"))[2]["value"] == 2


async def test_absurd_first_incomplete_is_a_bad_ack(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    for absurd in (600, 2**53 - 1, 2**53, 2**63, 2**64 - 1):
        answer = await api.call("POST", "/v1/operations", _request(client_id, put(1, "a", 1), first_incomplete=absurd))
        if absurd >= 2**53:
            assert_problem(answer, "BAD_ACK")
        else:
            assert answer[2]["results"][0]["code"] == "BAD_ACK"
    (after,) = await api.operate(client_id, put(1, "a", 1))
    assert (after["status"], after["commit"]) == ("applied", 1)


async def test_operation_on_another_kind_of_table_is_rejected_not_recorded(api: Api) -> None:
    await declare(api)
    await declare(api, "events", "stream")
    client_id = await api.session()
    conditional = put(1, "a", 1, table="events", condition={"absent": True})
    (result,) = await api.operate(client_id, conditional)
    assert (result["status"], result["code"]) == ("rejected", "BAD_REQUEST")
    (result,) = await api.operate(client_id, put(1, "a", 1, table="events"))
    assert (result["status"], result["replayed"]) == ("applied", False)


async def test_full_table_refuses_growth_and_remembers_no_refusal(api: Api) -> None:
    await declare(api, quota_bytes=1024)
    client_id = await api.session()
    (full,) = await api.operate(client_id, put(1, "big", "x" * 2000))
    assert (full["status"], full["code"], full["retryable"]) == ("rejected", "QUOTA", True)
    await declare(api, quota_bytes=100_000)
    (fits,) = await api.operate(client_id, put(1, "big", "x" * 2000))
    assert (fits["status"], fits["replayed"]) == ("applied", False)


async def test_request_state_says_what_became_of_an_id(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    (done,) = await api.operate(client_id, put(2, "a", 1))
    _, _, state = await api.call("GET", f"/v1/requests/{client_id}/2")
    assert state == {"state": "applied", "result": {**done, "replayed": True}}
    assert (await api.call("GET", f"/v1/requests/{client_id}/3"))[2] == {"state": "never_seen"}
    assert (await api.call("GET", "/v1/requests/00000000000004d2/1"))[2] == {"state": "never_seen"}
    await api.operate(client_id, put(4, "a", 1), first_incomplete=3)
    assert (await api.call("GET", f"/v1/requests/{client_id}/2"))[2] == {"state": "acknowledged"}
    for path in ("x/1", f"{client_id}/0", f"{client_id}/x", f"{client_id}/{2**53}"):
        assert_problem(await api.call("GET", f"/v1/requests/{path}"), "BAD_REQUEST")


async def test_answers_carry_commit_memory_and_leader(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    _, headers, answer = await api.call("POST", "/v1/operations", _request(client_id, put(1, "a", 1)))
    assert headers["Oncegate-Commit"] == "1"
    assert int(headers["Oncegate-Memory-Ms"]) == answer["memory_ms"] == 60_000
    assert headers["Oncegate-Leader"].startswith("http://127.0.0.1:")


async def test_append_and_get_answer_as_the_contract_says_and_replay(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    operations = [
        {"sequence": 1, "op": "append", "table": "rows", "key": "l", "item": {"a": 1}},
        {"sequence": 2, "op": "append", "table": "rows", "key": "l", "item": None, "if": {"version": 1}},
        {"sequence": 3, "op": "get", "table": "rows", "key": "l"},
        {"sequence": 4, "op": "get", "table": "rows", "key": "absent"},
        {"sequence": 5, "op": "append", "table": "rows", "key": "l", "item": 1, "if": {"absent": True}},
    ]
    results = await api.operate(client_id, *operations)
    assert [r["status"] for r in results] == ["applied"] * 4 + ["refused"]
    assert (results[2]["value"], results[2]["version"], results[2]["commit"]) == ([{"a": 1}, None], 2, 3)
    assert (results[3]["version"], "value" in results[3]) == (0, False)
    await api.operate(client_id, put(6, "l", "gone"))
    assert await api.operate(client_id, *operations) == [{**r, "replayed": True} for r in results]
    (refused,) = await api.operate(client_id, {"sequence": 7, "op": "append", "table": "rows", "key": "l", "item": 1})
    assert (refused["status"], refused["code"], refused["value"]) == ("refused", "NOT_A_LIST", "gone")
