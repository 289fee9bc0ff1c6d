"""``/v1/sessions``: who may write, until when, and what a lost answer may be asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gateway.http_contract import JSON_LINES, assert_problem, declare, put, range_headers

if TYPE_CHECKING:
    from tests.conftest import Api


async def test_retried_open_returns_the_same_session(api: Api) -> None:
    status, headers, first = await api.call("POST", "/v1/sessions", {"nonce": "n-1", "lease_ms": 5000, "window": 7})
    assert status == 201
    assert first["epoch"] == 1
    assert (first["lease_ms"], first["window"]) == (5000, 7)
    assert len(first["client_id"]) == 16
    assert 0 < int(headers["Oncegate-Memory-Ms"]) <= 5000
    status, headers, again = await api.call("POST", "/v1/sessions", {"nonce": "n-1", "lease_ms": 9000})
    assert status == 200
    assert again == first
    assert 0 < int(headers["Oncegate-Memory-Ms"]) <= 5000
    status, _, other = await api.call("POST", "/v1/sessions", {"nonce": "n-2"})
    assert status == 201
    assert other["client_id"] != first["client_id"]
    assert other["window"] == 512


async def test_described_session_counts_what_it_remembers(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    await api.operate(client_id, put(1, "a", 1), put(2, "b", 2), put(5, "c", 3))
    status, headers, state = await api.call("GET", f"/v1/sessions/{client_id}")
    assert status == 200
    assert state["records"] == 3
    assert (state["epoch"], state["first_incomplete"], state["highest_sequence"]) == (1, 1, 5)
    assert state["lease_ms_left"] == int(headers["Oncegate-Memory-Ms"]) > 0
    await api.operate(client_id, put(6, "d", 4), first_incomplete=3)
    _, _, state = await api.call("GET", f"/v1/sessions/{client_id}")
    assert (state["records"], state["first_incomplete"]) == (2, 3)


async def test_renewal_gives_a_full_lease(api: Api) -> None:
    client_id = await api.session(lease_ms=5000)
    status, headers, left = await api.call("POST", f"/v1/sessions/{client_id}/renew", {"epoch": 1})
    assert status == 200
    assert left == {"lease_ms_left": 5000}
    assert headers["Oncegate-Memory-Ms"] == "5000"


async def test_take_over_fences_the_older_owner_and_tells_where_it_stood(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    await api.operate(client_id, put(1, "a", 1), put(4, "b", 2))
    path = f"/v1/sessions/{client_id}/take-over"
    status, headers, taken = await api.call("POST", path, {"nonce": "new-owner"})
    assert status == 200
    assert taken == {"epoch": 2, "first_incomplete": 1, "highest_sequence": 4}
    assert int(headers["Oncegate-Memory-Ms"]) > 0
    assert (await api.call("POST", path, {"nonce": "new-owner"}))[2] == taken, "a retry raised the epoch again"
    assert_problem(await api.call("POST", f"/v1/sessions/{client_id}/renew", {"epoch": 1}), "FENCED")
    (old,) = await api.operate(client_id, put(5, "c", 3), epoch=1)
    assert (old["status"], old["code"], old["outcome"], old["retryable"]) == ("rejected", "FENCED", "unknown", False)
    (new,) = await api.operate(client_id, put(5, "c", 3), epoch=2)
    assert new["status"] == "applied"


async def test_request_of_another_epoch_is_told_which_one_is_in_force(api: Api) -> None:
    await declare(api)
    await declare(api, "events", "stream")
    client_id = await api.session()
    assert (await api.call("POST", f"/v1/sessions/{client_id}/take-over", {"nonce": "owner"}))[2]["epoch"] == 2
    for epoch, told in ((1, "epoch 1 was fenced by 2"), (3, "epoch 3 was never given out, the session's is 2")):
        (operation,) = await api.operate(client_id, put(1, "a", 1), epoch=epoch)
        _, _, ranged = await api.call(
            "POST",
            "/v1/tables/events/ranges",
            data=b'{"key":"a","value":1}',
            headers={**range_headers(client_id, 1, JSON_LINES, epoch=epoch), "Accept": "application/json"},
        )
        place = {"Oncegate-Request": f"{client_id}/1", "Oncegate-First-Incomplete": "1", "Oncegate-Epoch": str(epoch)}
        row = assert_problem(await api.call("PUT", "/v1/tables/rows/rows/a", 1, headers=place), "FENCED")
        owner = {"epoch": epoch, "first_incomplete": 1}
        resolve = await api.call("POST", f"/v1/requests/{client_id}/1/resolve", owner)
        answers = (operation, ranged["results"][0], row, assert_problem(resolve, "FENCED"))
        assert [(answer["code"], answer["detail"]) for answer in answers] == [("FENCED", told)] * 4


async def test_nonce_of_another_session_cannot_take_over(api: Api) -> None:
    await api.session("one")
    second = await api.session("two")
    assert_problem(await api.call("POST", f"/v1/sessions/{second}/take-over", {"nonce": "one"}), "CONFLICT")


async def test_ids_of_a_closed_session_are_refused_for_ever(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    (done,) = await api.operate(client_id, put(1, "a", 1))
    status, headers, body = await api.call("DELETE", f"/v1/sessions/{client_id}?epoch=1")
    assert (status, body) == (204, b"")
    assert int(headers["Oncegate-Commit"]) == done["commit"]
    (retry, new) = await api.operate(client_id, put(1, "a", 1), put(2, "a", 2))
    assert retry["code"] == new["code"] == "SESSION_EXPIRED"
    assert_problem(await api.call("GET", f"/v1/sessions/{client_id}"), "SESSION_EXPIRED")
    assert_problem(await api.call("POST", f"/v1/sessions/{client_id}/renew", {"epoch": 1}), "SESSION_EXPIRED")
    assert_problem(await api.call("DELETE", f"/v1/sessions/{client_id}?epoch=1"), "SESSION_EXPIRED")
    _, _, state = await api.call("GET", f"/v1/requests/{client_id}/1")
    assert state == {"state": "expired"}
    assert await api.session() != client_id, "the id of a closed session was given out again"


async def test_session_whose_lease_has_ended_is_never_treated_as_new(api: Api) -> None:
    await declare(api)
    client_id = await api.session(lease_ms=1000)
    await api.operate(client_id, put(1, "a", 1))
    # Nothing is sent in its name, so only time can end it: reaping is the condition this waits for.
    while (await api.call("GET", f"/v1/sessions/{client_id}"))[0] == 200:
        pass
    (late,) = await api.operate(client_id, put(1, "a", 1))
    assert late["code"] == "SESSION_EXPIRED"
    assert (await api.call("GET", "/v1/tables/rows/rows/a"))[2]["version"] == 1


IMPOSSIBLE_TERMS: list[object] = [
    {},
    {"nonce": ""},
    {"nonce": "x" * 65},
    {"nonce": "a\nb"},
    {"nonce": 1},
    {"nonce": "n", "lease_ms": 999},
    {"nonce": "n", "lease_ms": 24 * 3_600_000 + 1},
    {"nonce": "n", "lease_ms": "1000"},
    {"nonce": "n", "window": 0},
    {"nonce": "n", "window": 4097},
    {"nonce": "n", "window": 2**70},
    [],
    "nonce",
]


async def test_session_of_impossible_terms_is_refused(api: Api) -> None:
    for body in IMPOSSIBLE_TERMS:
        assert_problem(await api.call("POST", "/v1/sessions", body), "BAD_REQUEST")
    assert "oncegate_sessions 0.0" in (await api.call("GET", "/metrics"))[2].decode()


async def test_malformed_client_id_is_refused(api: Api) -> None:
    for client_id in ("1", "g" * 16, "0" * 16, "F" * 16, "f" * 16, "0020000000000000", "a%00b"):
        assert_problem(await api.call("GET", f"/v1/sessions/{client_id}"), "BAD_REQUEST")
        assert_problem(await api.call("DELETE", f"/v1/sessions/{client_id}?epoch=1"), "BAD_REQUEST")


async def test_unknown_session_is_not_found(api: Api) -> None:
    assert_problem(await api.call("GET", "/v1/sessions/00000000000004d2"), "NOT_FOUND")


async def test_close_needs_an_epoch(api: Api) -> None:
    client_id = await api.session()
    for query in ("", "?epoch=", "?epoch=x", "?epoch=0", "?epoch=-1", f"?epoch={2**53}", "?epoch=1.0"):
        assert_problem(await api.call("DELETE", f"/v1/sessions/{client_id}{query}"), "BAD_REQUEST")
    assert (await api.call("GET", f"/v1/sessions/{client_id}"))[0] == 200


async def test_epoch_never_given_out_closes_nothing(api: Api) -> None:
    client_id = await api.session()
    assert_problem(await api.call("DELETE", f"/v1/sessions/{client_id}?epoch=2"), "BAD_REQUEST")
    assert (await api.call("GET", f"/v1/sessions/{client_id}"))[0] == 200
