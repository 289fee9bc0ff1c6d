"""Real processes: any node takes any request, and all of them say the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from oncegate.gateway.local.cluster import LocalCluster
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, put, sealed, send_range

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three real node processes, ready; one cluster for all tests here, each with flows and sessions of its own."""
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as started:
        started.start()
        started.wait_ready()
        yield started


@asynccontextmanager
async def each_node(cluster: LocalCluster) -> AsyncIterator[dict[str, Api]]:
    """Talk to every node by its id, on connections of its own."""
    async with AsyncExitStack() as stack:
        yield {
            node_id: Api(await stack.enter_async_context(aiohttp.ClientSession(base_url=cluster.endpoint(node_id))))
            for node_id in cluster.ids
        }


def _without_replayed(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in result.items() if name != "replayed"} for result in results]


async def _batches(api: Api, flow: str) -> list[tuple[bytes, str]]:
    state = await sealed(api, flow)
    found = []
    for number in range(1, state["last_batch"] + 1):
        status, headers, payload = await api.call("GET", f"/v1/flows/{flow}/batches/{number}")
        assert status == 200, payload
        found.append((payload, headers["ETag"]))
    return found


async def test_any_node_takes_any_request_and_is_read_from_any_other(cluster: LocalCluster) -> None:
    async with each_node(cluster) as nodes:
        leader = await asyncio.to_thread(cluster.leader)
        one, other = (nodes[node_id] for node_id in cluster.ids if node_id != leader)
        await declare(one)
        await declare(other, "events", "stream")
        status, headers, _ = await one.call("PUT", "/v1/flows/any", {"source": "rows", "max_items": 2})
        assert (status, headers["Oncegate-Leader"]) == (200, cluster.endpoint(leader))
        status, headers, opened = await one.call("POST", "/v1/sessions", {"nonce": "n"})
        assert (status, int(headers["Oncegate-Memory-Ms"])) == (201, 60_000)
        assert (await other.call("POST", "/v1/sessions", {"nonce": "n"}))[::2] == (200, opened)
        client_id = opened["client_id"]
        everyone = [*nodes.values()]
        for number in range(1, 61):
            writer, reader = everyone[number % 3], everyone[(number + 1) % 3]
            (result,) = await writer.operate(client_id, put(number, "row", number), first_incomplete=number)
            assert result["status"] == "applied"
            level = f"session&min_commit={result['commit']}" if number % 2 else "linearizable"
            _, _, row = await reader.call("GET", f"/v1/tables/rows/rows/row?consistency={level}")
            assert row["value"] == number, f"an acknowledged write was not read ({level})"
        ranged = await send_range(one, client_id, 61, ["a", "b"], first_incomplete=61)
        assert [part["status"] for part in ranged] == ["applied"]
        assert (await other.call("GET", "/v1/tables/events/rows/b"))[2]["value"] == {"n": 62}
        _, _, attached = await other.call("POST", "/v1/flows/any/consumers/c/attach", {"nonce": "n"})
        _, _, moved = await one.call(
            "POST", "/v1/flows/any/consumers/c/cursor", {"batch": 3, "fence": attached["fence"]}
        )
        assert moved == {"cursor": 3}
        _, _, described = await other.call("GET", "/v1/flows/any")
        assert described["consumers"]["c"]["cursor"] == 3
        for api in everyone:  # a refusal is the same refusal wherever it is met
            assert_problem(await api.call("POST", f"/v1/sessions/{client_id}/renew", {"epoch": 9}), "BAD_REQUEST")
            assert_problem(await api.call("PUT", "/v1/tables/rows", {"kind": "stream"}), "CONFLICT")
            assert_problem(await api.call("PUT", "/v1/flows/x", {"source": "nowhere"}), "NOT_FOUND")
            assert (await api.call("GET", "/v1/cluster"))[2]["leader"] == leader
        status, _, _ = await one.call("DELETE", f"/v1/sessions/{client_id}?epoch=1")
        assert status == 204
        assert_problem(await other.call("GET", f"/v1/sessions/{client_id}"), "SESSION_EXPIRED")


async def test_request_sent_to_all_nodes_at_once_is_applied_once(cluster: LocalCluster) -> None:
    async with each_node(cluster) as nodes:
        everyone = [*nodes.values()]
        await declare(everyone[0])
        await declare(everyone[0], "events", "stream")
        client_id = await everyone[0].session("duplicates")
        for number in range(1, 41):
            operations = [
                {"sequence": 2 * number, "op": "increment", "table": "rows", "key": "n"},
                put(2 * number + 1, f"k{number}", number, condition={"absent": True}),
            ]
            answers = await asyncio.gather(
                *(api.operate(client_id, *operations, first_incomplete=2 * number) for api in everyone)
            )
            assert _without_replayed(answers[0]) == _without_replayed(answers[1]) == _without_replayed(answers[2])
            assert [result["status"] for result in answers[0]] == ["applied", "applied"]
            assert answers[0][0]["value"] == number, "an increment ran more than once"
            assert sorted(answer[0]["replayed"] for answer in answers) == [False, True, True]
        before = (await sealed(everyone[1], "events", 0))["items"]
        parts = await asyncio.gather(
            *(send_range(api, client_id, 100, [f"e{i}" for i in range(500)], first_incomplete=82) for api in everyone)
        )
        assert _without_replayed(parts[0]) == _without_replayed(parts[1]) == _without_replayed(parts[2])
        assert (await sealed(everyone[1], "events"))["items"] == before + 500


async def test_batches_are_the_same_bytes_on_every_node_also_after_a_restart(cluster: LocalCluster) -> None:
    async with each_node(cluster) as nodes:
        first, *_ = nodes.values()
        await declare(first)
        await declare(first, "events", "stream")
        await first.call("PUT", "/v1/flows/same", {"source": "rows", "max_items": 7, "linger_ms": 0})
        client_id = await first.session("batches")
        at = 1
        for number in range(12):
            await first.operate(client_id, *(put(at + i, f"k{i}", [number, i]) for i in range(5)), first_incomplete=at)
            await send_range(first, client_id, at + 5, [f"e{i}" for i in range(40)], first_incomplete=at)
            await first.operate(client_id, put(at + 45, "single", number, table="events"), first_incomplete=at)
            at += 46
        before = {flow: await _batches(first, flow) for flow in ("same", "events")}
        assert len(before["same"]) >= 9
        leader = await asyncio.to_thread(cluster.leader)
        killed = next(node_id for node_id in cluster.ids if node_id != leader)
        cluster.kill(killed)
        cluster.start(killed)
        await asyncio.to_thread(cluster.wait_ready, killed)
        for node_id, api in nodes.items():
            for flow, batches in before.items():
                assert (await _batches(api, flow))[: len(batches)] == batches, f"{flow} differs on {node_id}"


async def test_key_and_event_sent_to_all_nodes_at_once_are_applied_once_and_resolve_agrees(
    cluster: LocalCluster,
) -> None:
    async with each_node(cluster) as nodes:
        everyone = [*nodes.values()]
        await declare(everyone[0])
        await declare(everyone[0], "events", "stream")
        row = "/v1/tables/rows/rows/keyed/increment"
        for number in range(1, 11):
            key = {"Idempotency-Key": f'"all-{number}"'}
            answers = await asyncio.gather(*(api.call("POST", row, headers=key) for api in everyone))
            assert {(status, body["value"]) for status, _, body in answers} == {(200, number)}
            assert sum("Idempotent-Replayed" not in headers for _, headers, _ in answers) == 1
            assert len({headers["Oncegate-Request"] for _, headers, _ in answers}) == 1
        event = {"specversion": "1.0", "id": "1", "source": "/all", "type": "t"}
        kind = {"Content-Type": "application/cloudevents+json"}
        calls = [api.call("POST", "/v1/tables/events/events", event, headers=kind) for api in everyone]
        answers = await asyncio.gather(*calls)
        assert sorted(body["results"][0]["replayed"] for _, _, body in answers) == [False, True, True]
        client_id = await everyone[0].session("resolved-anywhere")
        fates = await asyncio.gather(
            *(api.call("POST", f"/v1/requests/{client_id}/1/resolve") for api in everyone),
            everyone[1].operate(client_id, put(1, "resolved", 1)),
        )
        states = {fate[2]["state"] for fate in fates[:3]}
        assert states == {"applied" if fates[3][0]["status"] == "applied" else "sealed"}
