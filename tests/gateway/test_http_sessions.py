"""``/v1/sessions`` and ``/v1/requests``: who may write, until when, and what became of a request."""

from __future__ import annotations

import asyncio

from tests.conftest import Api
from tests.gateway.http_contract import JSON_LINES, assert_problem, operations, put, range_headers


async def test_retried_open_returns_the_same_session(api: Api) -> None:
    status, headers, first = await api.call("POST", "/v1/sessions", {"nonce": "n-1", "lease_ms": 5000, "window": 7})
    assert status == 201
    assert (first["epoch"], first["lease_ms"], first["window"], len(first["client_id"])) == (1, 5000, 7, 16)
    assert 0 < int(headers["Oncegate-Memory-Ms"]) <= 5000
    status, headers, again = await api.call("POST", "/v1/sessions", {"nonce": "n-1", "lease_ms": 9000})
    assert (status, again) == (200, first)
    assert 0 < int(headers["Oncegate-Memory-Ms"]) <= 5000
    status, _, other = await api.call("POST", "/v1/sessions", {"nonce": "n-2"})
    assert (status, other["lease_ms"], other["window"]) == (201, 60_000, 512)
    assert other["client_id"] != first["client_id"]


async def test_described_session_counts_what_it_remembers(api: Api, client_id: str) -> None:
    await api.operate(client_id, put(1, "a", 1), put(2, "b", 2), put(5, "c", 3))
    status, headers, state = await api.call("GET", f"/v1/sessions/{client_id}")
    assert (status, state["records"]) == (200, 3)
    assert (state["epoch"], state["first_incomplete"], state["highest_sequence"]) == (1, 1, 5)
    assert state["lease_ms_left"] == int(headers["Oncegate-Memory-Ms"]) > 0
    await api.operate(client_id, put(6, "d", 4), first_incomplete=3)
    _, _, state = await api.call("GET", f"/v1/sessions/{client_id}")
    assert (state["records"], state["first_incomplete"]) == (2, 3)


async def test_take_over_fences_the_older_owner_and_tells_where_it_stood(api: Api, client_id: str) -> None:
    await api.operate(client_id, put(1, "a", 1), put(4, "b", 2))
    path = f"/v1/sessions/{client_id}/take-over"
    status, headers, taken = await api.call("POST", path, {"nonce": "new-owner"})
    assert (status, taken) == (200, {"epoch": 2, "first_incomplete": 1, "highest_sequence": 4})
    assert int(headers["Oncegate-Memory-Ms"]) > 0
    assert (await api.call("POST", path, {"nonce": "new-owner"}))[2] == taken, "a retry raised the epoch again"
    assert_problem(await api.call("POST", f"/v1/sessions/{client_id}/renew", {"epoch": 1}), "FENCED")
    (old,) = await api.operate(client_id, put(5, "c", 3), epoch=1)
    assert (old["status"], old["code"], old["outcome"], old["retryable"]) == ("rejected", "FENCED", "unknown", False)
    (new,) = await api.operate(client_id, put(5, "c", 3), epoch=2)
    assert new["status"] == "applied"
    other = await api.session("other")
    assert_problem(await api.call("POST", f"/v1/sessions/{other}/take-over", {"nonce": "new-owner"}), "CONFLICT")


async def test_request_of_another_epoch_is_told_which_one_is_in_force(api: Api, client_id: str) -> None:
    assert (await api.call("POST", f"/v1/sessions/{client_id}/take-over", {"nonce": "owner"}))[2]["epoch"] == 2
    for epoch, told in ((1, "epoch 1 was fenced by 2"), (3, "epoch 3 was never given out, the session's is 2")):
        (operation,) = await api.operate(client_id, put(1, "a", 1), epoch=epoch)
        headers = {**range_headers(client_id, 1, JSON_LINES, epoch=epoch), "Accept": "application/json"}
        line = b'{"key":"a","value":1}'
        _, _, ranged = await api.call("POST", "/v1/tables/events/ranges", data=line, headers=headers)
        place = {"Oncegate-Request": f"{client_id}/1", "Oncegate-First-Incomplete": "1", "Oncegate-Epoch": str(epoch)}
        row = assert_problem(await api.call("PUT", "/v1/tables/rows/rows/a", 1, headers=place), "FENCED")
        owner = {"epoch": epoch, "first_incomplete": 1}
        resolve = await api.call("POST", f"/v1/requests/{client_id}/1/resolve", owner)
        answers = (operation, ranged["results"][0], row, assert_problem(resolve, "FENCED"))
        assert [(answer["code"], answer["detail"]) for answer in answers] == [("FENCED", told)] * 4


async def test_ids_of_a_closed_session_are_refused_for_ever(api: Api, client_id: str) -> None:
    (done,) = await api.operate(client_id, put(1, "a", 1))
    status, headers, body = await api.call("DELETE", f"/v1/sessions/{client_id}?epoch=1")
    assert (status, body, int(headers["Oncegate-Commit"])) == (204, b"", done["commit"])
    (retry, new) = await api.operate(client_id, put(1, "a", 1), put(2, "a", 2))
    assert retry["code"] == new["code"] == "SESSION_EXPIRED"
    assert_problem(await api.call("GET", f"/v1/sessions/{client_id}"), "SESSION_EXPIRED")
    assert_problem(await api.call("POST", f"/v1/sessions/{client_id}/renew", {"epoch": 1}), "SESSION_EXPIRED")
    assert (await api.call("DELETE", f"/v1/sessions/{client_id}?epoch=1"))[0] == 204, "closed twice is closed"
    assert (await api.call("GET", f"/v1/requests/{client_id}/1"))[2] == {"state": "expired"}
    refused = await api.call("POST", "/v1/sessions", {"nonce": "nonce-1"})
    told = refused[0], refused[2]["code"], refused[2]["outcome"]
    assert told == (410, "SESSION_EXPIRED", "not_applied"), "a late copy of its open opens nothing"
    assert await api.session("nonce-2") != client_id, "the id of a closed session was given out again"


async def test_session_whose_lease_has_ended_is_never_treated_as_new(api: Api, client_id: str) -> None:
    short = await api.session("short", lease_ms=1000)
    await api.operate(short, put(1, "a", 1))
    # Nothing is sent in its name, so only time can end it: reaping is the condition this waits for.
    while (await api.call("GET", f"/v1/sessions/{short}"))[0] == 200:
        await asyncio.sleep(0.02)
    (late,) = await api.operate(short, put(1, "a", 1))
    assert late["code"] == "SESSION_EXPIRED"
    assert (await api.call("GET", "/v1/tables/rows/rows/a"))[2]["version"] == 1


IMPOSSIBLE_TERMS: list[object] = [
    *({"nonce": nonce} for nonce in ("", "x" * 65, "a\nb", "a\0", 1)),
    *({"nonce": "n", "lease_ms": lease_ms} for lease_ms in (999, 24 * 3_600_000 + 1, 1e5, "1000")),
    *({"nonce": "n", "window": window} for window in (0, 4097, 2**70)),
    *({}, [], "nonce"),
]


async def test_session_of_impossible_terms_is_refused(api: Api) -> None:
    for body in IMPOSSIBLE_TERMS:
        assert_problem(await api.call("POST", "/v1/sessions", body), "BAD_REQUEST")
    assert "oncegate_sessions 0.0" in (await api.call("GET", "/metrics"))[2].decode()


async def test_id_or_epoch_that_is_malformed_or_was_never_given_out_closes_nothing(api: Api) -> None:
    client_id = await api.session()
    for malformed in ("1", "g" * 16, "0" * 16, "F" * 16, "f" * 16, "0020000000000000", "a%00b"):
        assert_problem(await api.call("GET", f"/v1/sessions/{malformed}"), "BAD_REQUEST")
        assert_problem(await api.call("DELETE", f"/v1/sessions/{malformed}?epoch=1"), "BAD_REQUEST")
    for never in (int(client_id, 16) + 1, 0x4D2):
        assert_problem(await api.call("GET", f"/v1/sessions/{never:016x}"), "NOT_FOUND")
    for query in ("", *(f"?epoch={epoch}" for epoch in ("", "x", "0", "-1", 2**53, "1.0", "2"))):
        assert_problem(await api.call("DELETE", f"/v1/sessions/{client_id}{query}"), "BAD_REQUEST")
    assert (await api.call("GET", f"/v1/sessions/{client_id}"))[0] == 200


async def test_resolve_returns_the_result_or_seals_and_get_says_so(api: Api, client_id: str) -> None:
    (first,) = await api.operate(client_id, {"sequence": 1, "op": "increment", "table": "rows", "key": "n"})
    status, headers, body = await api.call("POST", f"/v1/requests/{client_id}/1/resolve")
    assert (status, body) == (
        200,
        {"state": "applied", "result": {**first, "replayed": True}, "executed": True, "applied": True},
    )
    assert int(headers["Oncegate-Memory-Ms"]) > 0
    for _ in range(2):
        assert (await api.call("POST", f"/v1/requests/{client_id}/2/resolve"))[2] == {"state": "sealed"}
    assert (await api.call("GET", f"/v1/requests/{client_id}/2"))[2] == {"state": "sealed"}
    (late,) = await api.operate(client_id, put(2, "n", 9))
    of_late = (late["status"], late["code"], late["outcome"], late["retryable"])
    assert of_late == ("rejected", "STALE", "not_applied", False)
    assert (await api.call("GET", "/v1/tables/rows/rows/n"))[2]["value"] == 1


async def test_resolve_races_attempts_in_flight_and_tells_the_truth(api: Api, client_id: str) -> None:
    op = {"op": "increment", "table": "rows", "key": "n"}
    attempts = [api.operate(client_id, {"sequence": s, **op}) for s in range(1, 21)]
    asked = [api.call("POST", f"/v1/requests/{client_id}/{s}/resolve") for s in range(1, 21)]
    answers = await asyncio.gather(*(call for pair in zip(attempts, asked, strict=True) for call in pair))
    fates = [answer[2]["state"] for answer in answers[1::2]]
    assert set(fates) <= {"applied", "sealed"}
    assert [results[0]["status"] == "applied" for results in answers[::2]] == [fate == "applied" for fate in fates]
    status, _, row = await api.call("GET", "/v1/tables/rows/rows/n")
    assert (row["value"] if status == 200 else 0) == fates.count("applied")


async def test_owner_acknowledges_with_a_resolve_to_make_room(api: Api, client_id: str) -> None:
    narrow = await api.session("narrow", window=2)
    await api.operate(narrow, put(1, "a", 1), put(2, "a", 2))
    path = f"/v1/requests/{narrow}/3/resolve"
    assert_problem(await api.call("POST", path), "WINDOW_FULL")
    assert (await api.call("POST", path, {"epoch": 1, "first_incomplete": 3}))[2] == {"state": "sealed"}
    assert (await api.call("GET", f"/v1/requests/{narrow}/2"))[2] == {"state": "acknowledged"}


IMPOSSIBLE: list[tuple[str, object, str]] = [
    ("0000000000000009/1", None, "NOT_FOUND"),
    ("0000000000000001/0", None, "BAD_REQUEST"),
    ("1/1", None, "BAD_REQUEST"),
    ("0000000000000001/5", {"first_incomplete": 2}, "BAD_REQUEST"),
    ("0000000000000001/5", {"epoch": 0}, "BAD_REQUEST"),
    ("0000000000000001/5", {"epoch": 1, "first_incomplete": 6}, "BAD_ACK"),
    ("0000000000000001/5", {"epoch": 1, "first_incomplete": 2**64}, "BAD_ACK"),
    ("0000000000000001/5", ["x"], "BAD_REQUEST"),
]


async def test_impossible_resolve_is_refused_and_seals_nothing(api: Api) -> None:
    client_id = await api.session()
    for path, body, code in IMPOSSIBLE:
        assert_problem(await api.call("POST", f"/v1/requests/{path}/resolve", body), code)
    assert (await api.call("GET", f"/v1/requests/{client_id}/5"))[2] == {"state": "never_seen"}


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NO_TRACES = [
    "", "x", TRACE.upper(), TRACE + "-x", TRACE[:-1], "01" + TRACE[2:],
    "00-" + "0" * 32 + "-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
]  # fmt: skip


async def test_traceparent_of_the_request_that_applied_an_operation_is_kept_with_its_record(
    api: Api, client_id: str
) -> None:
    async def trace_of(request_id: str) -> object:
        state = (await api.call("GET", f"/v1/requests/{request_id}"))[2]
        assert state["state"] == "applied"
        return state.get("traceparent")

    async def operate(sequence: int, trace: str) -> None:
        body = operations(client_id, put(sequence, "a", sequence))
        assert (await api.call("POST", "/v1/operations", body, headers={"traceparent": trace}))[0] == 200

    await operate(1, TRACE)
    await operate(1, TRACE.replace("b7ad", "aaaa"))
    assert await trace_of(f"{client_id}/1") == TRACE, "a replay has its own trace, the record keeps the first"
    for number, trace in enumerate(NO_TRACES, 2):
        await operate(number, trace)
        assert await trace_of(f"{client_id}/{number}") is None
    body = b'{"key":"a","value":1}\n{"key":"b","value":2}\n'
    ranged = {**range_headers(client_id, 20, JSON_LINES), "traceparent": TRACE}
    assert (await api.call("POST", "/v1/tables/events/ranges", data=body, headers=ranged))[0] == 200
    assert await trace_of(f"{client_id}/21") == TRACE
    keyed = {"Idempotency-Key": '"k"', "traceparent": TRACE}
    _, headers, _ = await api.call("PUT", "/v1/tables/rows/rows/k", 1, headers=keyed)
    assert await trace_of(headers["Oncegate-Request"]) == TRACE


async def test_sessions_that_keep_much_are_listed_alone_page_by_page(api: Api, client_id: str) -> None:
    busy = [client_id, *[await api.session(f"busy{number}") for number in range(3)]]
    for number in range(4):
        await api.session(f"idle{number}")
    for one in busy:
        await api.operate(one, put(1, one, 1), put(2, one, 2))
    listed: list[str] = []
    after = ""
    while True:
        _, _, page = await api.call("GET", f"/v1/sessions?records_min=2&limit=3{after}")
        listed += [one["client_id"] for one in page["sessions"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert listed == sorted(busy)
    assert (await api.call("GET", "/v1/sessions?records_min=3"))[2] == {"sessions": [], "next": None}
    assert_problem(await api.call("GET", "/v1/sessions?records_min=x"), "BAD_REQUEST")
