"""Real processes: any node takes any request, and all say the same, also when the leader dies or a quorum goes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import aiohttp
import pytest

from oncegate.gateway.local.waiting import until
from oncegate.proof.check.cluster import CheckCluster
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, put, sealed, send_range

pytestmark = pytest.mark.faults

ANSWER_S = 25.0
"""Longest answer: 5 s for a forwarded command or a read, and what a busy machine adds."""
RETRYABLE = ("NO_LEADER", "NOT_READY", "TIMEOUT", "NOT_LEADER")


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


async def test_any_node_takes_any_request_and_is_read_from_any_other(
    gateways: CheckCluster, nodes: dict[str, Api]
) -> None:
    leader = await asyncio.to_thread(gateways.leader)
    one, other = (nodes[node_id] for node_id in gateways.ids if node_id != leader)
    await declare(one)
    await declare(other, "events", "stream")
    status, headers, _ = await one.call("PUT", "/v1/flows/any", {"source": "rows", "max_items": 2})
    assert (status, headers["Oncegate-Leader"]) == (200, gateways.endpoint(leader))
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
    _, _, moved = await one.call("POST", "/v1/flows/any/consumers/c/cursor", {"batch": 3, "fence": attached["fence"]})
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


async def test_request_sent_to_all_nodes_at_once_is_applied_once(nodes: dict[str, Api]) -> None:
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


async def test_batches_are_the_same_bytes_on_every_node_also_after_a_restart(
    gateways: CheckCluster, nodes: dict[str, Api]
) -> None:
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
    leader = await asyncio.to_thread(gateways.leader)
    killed = next(node_id for node_id in gateways.ids if node_id != leader)
    gateways.kill(killed)
    gateways.start(killed)
    await asyncio.to_thread(gateways.wait_ready, killed)
    for node_id, api in nodes.items():
        for flow, batches in before.items():
            assert (await _batches(api, flow))[: len(batches)] == batches, f"{flow} differs on {node_id}"


async def test_key_and_event_sent_to_all_nodes_at_once_are_applied_once_and_resolve_agrees(
    nodes: dict[str, Api],
) -> None:
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


# --- where a leader can die around one operation -----------------------------------------------------------------


class Increment:
    """One operation on a counter of its own, sent as often as need be."""

    def __init__(self, client_id: str, counter: str) -> None:
        self.counter = counter
        operation = {"sequence": 1, "op": "increment", "table": "rows", "key": counter}
        self._body = {"client_id": client_id, "epoch": 1, "first_incomplete": 1, "operations": [operation]}

    async def send(self, api: Api) -> tuple[int, Any]:
        """Send it once; connection lost is an answer too."""
        try:
            status, _, answer = await api.call("POST", "/v1/operations", self._body)
        except aiohttp.ClientError:
            return 0, None
        return status, answer

    async def retried(self, *nodes: Api) -> dict[str, Any]:
        """Send it again, to all nodes in turn, until one has a verdict."""
        async with asyncio.timeout(60):
            while True:
                for api in nodes:
                    status, answer = await self.send(api)
                    if status == 200 and answer["results"][0]["status"] == "applied":
                        result: dict[str, Any] = answer["results"][0]
                        return result
                    await asyncio.sleep(0.05)

    async def row(self, api: Api) -> tuple[Any, Any]:
        """Return value and version of the counter, as a node has applied it, or None of both."""
        with contextlib.suppress(aiohttp.ClientError):
            status, _, row = await api.call("GET", f"/v1/tables/rows/rows/{self.counter}?consistency=stale")
            return (row["value"], row["version"]) if status == 200 else (None, None)
        return None, None

    async def applied(self, *nodes: Api) -> None:
        """Wait until all of these have applied it, once."""
        for api in nodes:
            await until(lambda api=api: self._is_one(api), 60, f"{self.counter} is 1")

    async def _is_one(self, api: Api) -> bool:
        return (await self.row(api))[0] == 1


async def _begun(gateways: CheckCluster, nodes: dict[str, Api], counter: str) -> tuple[str, list[Api], Increment]:
    """Return the leader, the other nodes and an operation that nobody has sent."""
    leader = await asyncio.to_thread(gateways.leader)
    await declare(nodes[leader])
    client_id = await nodes[leader].session(counter, lease_ms=600_000)
    return leader, [api for node, api in nodes.items() if node != leader], Increment(client_id, counter)


async def test_leader_killed_after_the_commit_and_before_the_reply_is_replayed_by_its_successor(
    gateways: CheckCluster, nodes: dict[str, Api]
) -> None:
    """Case 20: what the leader said is thrown away, and it is dead before anybody asks again."""
    leader, others, increment = await _begun(gateways, nodes, "replayed")
    lost = asyncio.create_task(increment.send(nodes[leader]))
    await increment.applied(*others)
    gateways.kill(leader)
    await lost
    before = await increment.row(others[0])
    result = await increment.retried(*others)
    assert (result["replayed"], (result["value"], result["commit"])) == (True, before)
    assert await increment.row(others[0]) == before


@pytest.mark.parametrize("ends", ["killed", "cut-off"])
async def test_attempt_that_was_never_committed_is_executed_once_by_the_retry(
    gateways: CheckCluster, nodes: dict[str, Api], ends: str
) -> None:
    """Cases 21 and 23: the attempt is only in the log of a leader that is killed, or cut off and truncated later."""
    leader, others, increment = await _begun(gateways, nodes, ends)
    before = (await asyncio.to_thread(gateways.state, leader) or {})["log_index"]
    gateways.links.isolate(leader)
    attempt = asyncio.create_task(increment.send(nodes[leader]))

    async def in_its_log() -> bool:
        state = await asyncio.to_thread(gateways.state, leader)
        return attempt.done() or (state is not None and state["log_index"] > before)

    await until(in_its_log, 30, "the attempt is in the leader's log")
    if ends == "killed":
        gateways.kill(leader)
    result = await increment.retried(*others)
    assert (result["replayed"], result["value"]) == (False, 1)
    status, answer = await attempt
    assert status in (0, 503, 504), "nobody was told that the lost attempt was applied"
    if status == 504:
        assert answer["outcome"] == "unknown"
    gateways.links.heal()
    gateways.start()
    await asyncio.to_thread(gateways.wait_ready)
    await increment.applied(*nodes.values())
    again = await increment.retried(nodes[leader])
    assert (again["replayed"], again["commit"]) == (True, result["commit"])


# --- without a quorum --------------------------------------------------------------------------------------------


async def _refused(api: Api, method: str, path: str, body: Any = None) -> str:
    """Send what needs a quorum; check that the refusal is typed, retryable and in time; return its code."""
    started = time.monotonic()
    answer = await api.call(method, path, body)
    assert time.monotonic() - started < ANSWER_S
    code: str = answer[2].get("code", "")
    assert code in RETRYABLE, answer
    assert assert_problem(answer, code)["retryable"] is True
    return code


@pytest.mark.parametrize("left", ["leader", "follower"])
async def test_without_a_quorum_nothing_is_written_or_read_as_newest_until_it_is_back(
    gateways: CheckCluster, nodes: dict[str, Api], left: str
) -> None:
    leader, key = await asyncio.to_thread(gateways.leader), f"{left}-left"
    await declare(nodes[leader])
    alive = leader if left == "leader" else next(node_id for node_id in gateways.ids if node_id != leader)
    api = nodes[alive]
    client_id = await api.session(f"session-{key}", lease_ms=600_000)
    (first,) = await api.operate(client_id, put(1, key, 1))
    path = f"/v1/tables/rows/rows/{key}"
    last_seen = f"session&min_commit={first['commit']}"
    assert (await api.call("GET", f"{path}?consistency={last_seen}"))[0] == 200
    gateways.kill(*(node_id for node_id in gateways.ids if node_id != alive))
    request = {"client_id": client_id, "epoch": 1, "first_incomplete": 1, "operations": [put(2, key, 2)]}
    for _ in range(2):
        await asyncio.gather(
            _refused(api, "POST", "/v1/operations", request),
            _refused(api, "GET", path),
            _refused(api, "GET", f"/v1/requests/{client_id}/1"),
            _refused(api, "POST", "/v1/sessions", {"nonce": f"other-{key}"}),
        )
        assert_problem(await api.call("GET", "/readyz"), "NOT_READY")
    await asyncio.gather(*(_refused(api, "GET", "/v1/flows") for _ in range(50)))
    for level in ("stale", last_seen):
        _, headers, row = await api.call("GET", f"{path}?consistency={level}")
        assert (row["value"], row["version"]) == (1, first["version"])
        assert int(headers["Oncegate-Commit"]) >= first["commit"]
    assert (await api.call("GET", "/livez"))[0] == 200
    assert (await api.call("GET", "/v1/cluster"))[2]["role"] != "leader"
    gateways.start()
    await asyncio.to_thread(gateways.wait_ready)
    # Whatever became of the attempts, the retry of the same id settles it: applied once.
    (settled,) = await api.operate(client_id, put(2, key, 2))
    assert settled["status"] == "applied"
    assert (await api.operate(client_id, put(2, key, 2)))[0] == {**settled, "replayed": True}
    _, _, row = await api.call("GET", path)
    assert (row["value"], row["version"]) == (2, settled["version"])
