"""``Idempotency-Key`` in front of real servers of both kinds: carried out once, whatever is sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from oncegate import Client
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.settings import Settings
from oncegate.middleware import Gate, Policy
from oncegate.testing import FakeGateway
from tests.middleware.service import KINDS, Orders, for_framework, serving

pytestmark = pytest.mark.parametrize("kind", KINDS)
Answer = tuple[int, Any, bytes]


class Service(NamedTuple):
    """A running service and how to call it."""

    http: aiohttp.ClientSession
    orders: Orders
    gate: Gate

    async def post(self, key: str | None, body: bytes = b"{}", path: str = "/orders", **headers: str) -> Answer:
        if key is not None:
            headers["Idempotency-Key"] = key
        async with self.http.post(path, data=body, headers=headers) as answer:
            return answer.status, answer.headers, await answer.read()


@pytest.fixture
async def started(kind: str, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts services on one fake gateway, each with a client and a session of its own."""
    async with contextlib.AsyncExitStack() as stack:
        fake = await stack.enter_async_context(FakeGateway())

        async def start(policy: Policy | None = None, **how: Any) -> Service:
            client = await stack.enter_async_context(Client(fake.endpoints))
            await client.declare_table("orders", kind="resident")
            gate = await stack.enter_async_context(Gate(client, policy, **how))
            orders = Orders(tmp_path / "effects")
            base = await stack.enter_async_context(serving(kind, for_framework(kind, orders, gate)))
            connector = aiohttp.TCPConnector(force_close=True)  # a server may close what an error came over
            http = await stack.enter_async_context(aiohttp.ClientSession(base_url=base, connector=connector))
            return Service(http, orders, gate)

        start.fake = fake  # type: ignore[attr-defined]
        yield start


def code(answer: Answer) -> tuple[int, str]:
    """Return status and code of a problem."""
    status, headers, body = answer
    assert headers["Content-Type"] == "application/problem+json"
    return status, str(json.loads(body)["code"])


async def test_retry_gets_the_recorded_response_and_nothing_runs_again(started: Any) -> None:
    service = await started()
    status, headers, body = await service.post('"k-1"')
    assert (status, headers["Location"]) == (201, "/orders/1")
    assert "Idempotent-Replayed" not in headers
    assert int(headers["Idempotency-Key-Kept"]) == service.gate.policy.kept_s
    assert headers["Set-Cookie"] == "s=1"
    again_status, again, again_body = await service.post("k-1")
    assert (again_status, again_body, again["Location"]) == (201, body, "/orders/1")
    assert again["Idempotent-Replayed"] == "true"
    assert again["Content-Type"] == headers["Content-Type"]
    assert "Set-Cookie" not in again, "a cookie of the first answer is not handed out again"
    assert service.orders.count == 1


async def test_without_a_key_requests_pass_or_are_refused_where_one_is_required(started: Any) -> None:
    free, strict = await started(), await started(Policy(required=True))
    assert [(await free.post(None))[0] for _ in range(2)] == [201, 201]
    assert free.orders.count == 2
    assert code(await strict.post(None)) == (400, "BAD_REQUEST")
    async with strict.http.put("/orders", data=b"{}") as answer:
        assert answer.status == 201, "a method that takes no key passes"


async def test_key_with_another_payload_or_path_is_refused(started: Any) -> None:
    service = await started()
    await service.post("k", b'{"a": 1}')
    assert code(await service.post("k", b'{"a": 2}')) == (422, "PAYLOAD_MISMATCH")
    assert code(await service.post("k", b'{"a": 1}', "/orders?x=1")) == (422, "PAYLOAD_MISMATCH")
    assert service.orders.count == 1


@pytest.mark.parametrize("key", ["", '"', '"a', '"a"b', "a b", "ä", "x" * 256, '"a\\b"'])
async def test_malformed_key_is_refused_before_anything_runs(started: Any, key: str) -> None:
    service = await started()
    headers = {"Idempotency-Key": key}
    async with service.http.post("/orders", data=b"{}", headers=headers) as answer:
        assert answer.status == 400
    async with service.http.post(
        "/orders", data=b"{}", headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    ) as answer:
        assert answer.status == 400
    assert service.orders.count == 0


async def test_keys_of_one_caller_never_meet_those_of_another(started: Any) -> None:
    service = await started(Policy(scope=lambda request: request.headers["x-user"]))
    first = await service.post("k", **{"X-User": "ann"})
    other = await service.post("k", **{"X-User": "bob"})
    assert "Idempotent-Replayed" not in other[1]
    assert (await service.post("k", **{"X-User": "ann"}))[2] == first[2] != other[2]


async def test_duplicates_sent_together_run_once_and_the_others_are_told_to_wait(started: Any) -> None:
    """To two services at once, as a balancer would spread them."""
    services = [await started(), await started()]
    for service in services:
        service.orders.go_on.clear()
    calls = [asyncio.create_task(services[number % 2].post("k")) for number in range(10)]
    refused = 0
    async with asyncio.timeout(20):
        while refused < 9:
            refused = sum(call.done() for call in calls)
            await asyncio.sleep(0.01)
    for service in services:
        service.orders.go_on.set()
    answers = await asyncio.gather(*calls)
    assert sorted(answer[0] for answer in answers) == [201] + [409] * 9
    waited = next(answer for answer in answers if answer[0] == 409)
    assert code(waited) == (409, "IN_PROGRESS")
    assert waited[1]["Retry-After"] == "1"
    assert services[0].orders.count == 1
    assert {(await service.post("k"))[0] for service in services} == {201}
    assert code(await services[0].post("k", b"[1]")) == (422, "PAYLOAD_MISMATCH")


async def test_refusals_of_the_service_are_kept_and_passing_ones_are_not(started: Any) -> None:
    service = await started()
    for body, kept in ((b'{"status": 409}', True), (b'{"status": 418}', True), (b'{"status": 503}', False)):
        before = service.orders.count
        first, second = await service.post(body.decode().replace('"', "").replace(" ", ""), body), None
        second = await service.post(body.decode().replace('"', "").replace(" ", ""), body)
        assert first[0] == second[0]
        assert ("Idempotent-Replayed" in second[1]) == kept
        assert service.orders.count - before == (1 if kept else 2)


async def test_broken_off_run_is_reported_and_not_repeated(started: Any, kind: str) -> None:
    service = await started()
    assert (await service.post("k", b'{"fail": 1}'))[0] == 500
    status, headers, body = await service.post("k", b'{"fail": 1}')
    assert (status, headers["Idempotent-Replayed"]) == (500, "true")
    assert b"OUTCOME_UNKNOWN" in body or kind == "starlette", "Starlette answers its own 500, which is kept"
    assert service.orders.count == 1


async def test_broken_off_run_is_repeated_under_the_same_id_where_that_is_said_to_be_safe(started: Any) -> None:
    services = [await started(Policy(rerun=lambda _: True)) for _ in range(2)]
    body = b'{"fail": 1, "once": 7}'
    for service in services:
        assert (await service.post("k", body))[0] == 500
    ids = services[0].orders.effects.read_text().split()
    assert len(ids) == 2
    assert len(set(ids)) == 1
    rows = (await services[0].gate._client.scan("orders")).rows
    assert [row.key for row in rows] == [ids[0]]


async def test_large_response_is_sent_and_a_retry_is_told_that_it_was_not_kept(started: Any) -> None:
    service = await started(Policy(response_bytes_max=2_000))
    status, _, body = await service.post("k", path="/large")
    assert (status, len(body)) == (200, 20_000)
    assert code(await service.post("k", path="/large")) == (410, "RESPONSE_NOT_KEPT")
    assert service.orders.count == 1


async def test_body_over_the_bound_is_refused(started: Any) -> None:
    service = await started(Policy(body_bytes_max=100))
    assert code(await service.post("k", b" " * 101)) == (413, "PAYLOAD_TOO_LARGE")

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * 10

    async with service.http.post("/orders", data=parts(), headers={"Idempotency-Key": "k"}) as answer:
        assert answer.status == 413
    assert service.orders.count == 0


async def test_without_the_gateway_nothing_with_a_key_runs(started: Any) -> None:
    service = await started(Policy(record_timeout_s=0.3))
    await started.fake.nodes[0].stop()
    assert code(await service.post("k")) == (503, "NOT_READY")
    assert service.orders.count == 0
    await started.fake.nodes[0].start()
    async with asyncio.timeout(20):
        while (await service.post("k"))[0] != 201:
            await asyncio.sleep(0.05)
    assert service.orders.count == 1, "a claim in doubt was never run: the retry runs it"


async def test_old_responses_are_forgotten_and_newer_ones_are_kept(started: Any) -> None:
    now = 1_000.0
    service = await started(Policy(kept_s=60), now_s=lambda: now)
    await service.post("old")
    now += 50
    await service.post("new")
    now += 20
    assert await service.gate.sweep() == 1
    assert "Idempotent-Replayed" in (await service.post("new"))[1]
    assert "Idempotent-Replayed" not in (await service.post("old"))[1]


async def test_service_killed_between_claim_and_response_leaves_an_honest_answer(kind: str, tmp_path: Path) -> None:
    rerun = {"aiohttp": "refuse", "starlette": "rerun"}[kind]  # real processes take their time: one of each
    http_port, peer_port, first_port, second_port = free_ports(4)
    settings = Settings(members=[f"n1=127.0.0.1:{http_port}:{peer_port}"], data_dir=tmp_path / "n1")
    gateway, effects = f"http://127.0.0.1:{http_port}", tmp_path / "effects"
    body = b'{"once": 1, "hang": "%s"}' % str(tmp_path / "hung").encode()
    headers = {"Idempotency-Key": "k"}
    async with running(settings), aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(60):
            first, second = [
                await stack.enter_async_context(_process(kind, port, gateway, effects, rerun))
                for port in (first_port, second_port)
            ]
            hanging = asyncio.create_task(
                http.post(f"http://127.0.0.1:{first_port}/orders", data=body, headers=headers)
            )
            while not (tmp_path / "hung").exists():
                await asyncio.sleep(0.02)
            url = f"http://127.0.0.1:{second_port}/orders"
            async with http.post(url, data=body, headers=headers) as waiting:
                assert waiting.status == 409, "the first one lives"
            first.kill()
            with pytest.raises(aiohttp.ClientError):
                await hanging
            statuses = []
            while not statuses or statuses[-1] == 409:
                await asyncio.sleep(0.05)
                async with http.post(url, data=body, headers=headers) as answer:
                    statuses.append(answer.status)
                    told = await answer.json(content_type=None)
            ids = effects.read_text().split()
            if rerun == "rerun":
                assert (statuses[-1], told["attempt"]) == (201, 2)
                assert len(ids) == 2
                assert len(set(ids)) == 1
            else:
                assert (statuses[-1], told["code"], told["outcome"]) == (500, "OUTCOME_UNKNOWN", "unknown")
                assert len(ids) == 1
            async with Client(gateway) as client:
                assert [row.key for row in (await client.scan("orders")).rows] == [ids[0]], "one order, either way"
            assert second.returncode is None


@contextlib.asynccontextmanager
async def _process(kind: str, port: int, gateway: str, effects: Path, rerun: str) -> AsyncIterator[Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.middleware.service", kind, str(port), gateway, str(effects), rerun,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
