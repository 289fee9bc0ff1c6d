"""``POST /v1/tables/{table}/events``: each event once, and a status that a sender without a body reader understands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from oncegate.gateway.http.cloudevents import BATCH, STRUCTURED
from tests.gateway.http_contract import assert_problem, batch_lines, declare, sealed

if TYPE_CHECKING:
    from tests.conftest import Api

PATH = "/v1/tables/events/events"


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": f"e{number}", "source": "/s", "type": "t", "data": {"n": number}, **more}


async def send(api: Api, content_type: str, shape: Any, path: str = PATH) -> tuple[int, Any, Any]:
    return await api.call("POST", path, data=json.dumps(shape).encode(), headers={"Content-Type": content_type})


async def test_event_is_taken_once_in_whatever_mode_it_comes_again(api: Api) -> None:
    await declare(api, "events", "stream")
    status, headers, first = await send(api, STRUCTURED, event(1, datacontenttype="application/json"))
    assert (status, "Idempotent-Replayed" in headers) == (200, False)
    [result] = first["results"]
    assert (result["key"], result["commit"], result["status"], result["replayed"]) == ("/s e1", 1, "applied", False)
    in_binary = {"ce-specversion": "1.0", "ce-id": "e1", "ce-source": "/s", "ce-type": "t"}
    status, headers, again = await api.call(
        "POST", PATH, data=b'{"n":1}', headers={**in_binary, "Content-Type": "application/json"}
    )
    assert (status, headers["Idempotent-Replayed"]) == (200, "true")
    assert again["results"] == [{**result, "replayed": True}]
    assert headers["Oncegate-Request"] == result["request"]
    assert (await api.call("GET", f"/v1/requests/{result['request']}"))[2]["state"] == "applied"
    row = (await api.call("GET", "/v1/tables/events/rows/%2Fs%20e1"))[2]
    assert row["value"] == event(1, datacontenttype="application/json")
    assert_problem(await send(api, STRUCTURED, event(1, type="other")), "PAYLOAD_MISMATCH")


async def test_batch_that_is_sent_again_applies_only_what_is_new(api: Api) -> None:
    """Case 33 for events; the flow holds each once, in order."""
    await declare(api, "events", "stream")
    await send(api, BATCH, [event(1), event(2)])
    status, headers, body = await send(api, BATCH, [event(number) for number in (2, 3, 1, 3)])
    assert status == 200
    assert [(r["commit"], r["replayed"]) for r in body["results"]] == [(2, True), (3, False), (1, True), (3, True)]
    assert int(headers["Oncegate-Memory-Ms"]) == body["memory_ms"] > 0
    await sealed(api, "events")
    items = await batch_lines(api, "events")
    assert [item["value"] for item in items] == [event(1), event(2), event(3)]
    assert [item["sequence"] for item in items] == [1, 2, 3]


async def test_batch_of_which_an_event_is_refused_has_its_status_and_may_be_sent_again(api: Api) -> None:
    await declare(api, "events", "stream")
    await send(api, STRUCTURED, event(1))
    answer = await send(api, BATCH, [event(1, type="other"), event(2)])
    assert (answer[0], answer[2]["code"], answer[2]["outcome"]) == (422, "PAYLOAD_MISMATCH", "unknown")
    assert [result["status"] for result in answer[2]["results"]] == ["rejected", "applied"]
    status, _, body = await send(api, BATCH, [event(2)])
    assert (status, body["results"][0]["replayed"]) == (200, True)
    assert_problem(await send(api, BATCH, [event(3)], "/v1/tables/nowhere/events"), "NOT_FOUND")


async def test_events_go_into_resident_tables_too_and_tables_do_not_share_keys(api: Api) -> None:
    await declare(api)
    await declare(api, "events", "stream")
    for table in ("rows", "events"):
        status, headers, _ = await send(api, STRUCTURED, event(1), f"/v1/tables/{table}/events")
        assert (status, "Idempotent-Replayed" in headers) == (200, False)
    assert (await api.call("GET", "/v1/tables/rows/rows/%2Fs%20e1"))[2]["value"] == event(1)


async def test_what_is_no_event_is_refused_and_an_empty_batch_is_not(api: Api) -> None:
    await declare(api, "events", "stream")
    assert (await send(api, BATCH, []))[2]["results"] == []
    assert_problem(await send(api, STRUCTURED, event(1, specversion="2.0")), "BAD_REQUEST")
    assert_problem(await send(api, BATCH, [event(1), 7]), "BAD_REQUEST")
    assert_problem(await send(api, "application/json", event(1)), "BAD_REQUEST")
    assert_problem(await send(api, "application/cloudevents+xml", event(1)), "UNSUPPORTED_MEDIA_TYPE")
    assert_problem(await send(api, STRUCTURED, event(1), "/v1/tables/NO/events"), "BAD_REQUEST")
    _, headers, _ = await api.call("GET", "/v1/flows")
    assert headers["Oncegate-Commit"] == "0"
