"""What one tenant can take from another, and see of it: its share at most, and nothing."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.http.admission import bodies
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.parsing import ParsingThread
from oncegate.gateway.http.routes import flows
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import idempotency_keys
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.tenant_share import NOBODY, share
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.key_buckets import Held
from oncegate.rifl.key_table import NO_TIME, KeyTable
from oncegate.rifl.rule import Applied
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, one_node, operations, put, serving
from tests.gateway.test_auth import as_, entry, written
from tests.gateway.test_limits import Body

ANN, BOB, OPS, EVE = "ann" * 12, "bob" * 12, "ops" * 12, "eve" * 12
TOKENS = (
    entry(ANN, "ann", "read", "write")
    + entry(BOB, "bob", "read", "write")
    + entry(OPS, "ops", "read", "write", "flows", "admin")
    + entry(EVE, "eve", "read:rows", "write:rows", "admin:rows")
)
KEY_MS = 3_600_000


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Api]:
    """A node of several tenants with a table and a flow, and little room."""
    tokens = written(tmp_path / "tokens.toml", TOKENS)
    settings = {"tokens_file": tokens, "sessions_max": 8, "idempotency_keys_bytes_max": 2**20}
    async with serving(one_node(tmp_path, idempotency_key_ms=KEY_MS, **settings)) as (api, _):
        for table, kind in (("rows", "resident"), ("events", "stream")):
            assert (await as_(api, OPS, "PUT", f"/v1/tables/{table}", {"kind": kind}))[0] == 200
        yield api


@given(st.integers(0, 1000), st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 50)), max_size=100))
def test_whoever_comes_finds_room_as_long_as_nobody_takes_more_than_its_share(
    limit: int, asked: list[tuple[str, int]]
) -> None:
    held: dict[str, int] = {}
    for tenant, size in asked:
        taken, own = sum(held.values()), held.get(tenant, 0)
        if own + size <= share(tenant, limit, taken, own):
            held[tenant] = own + size
            left = limit - sum(held.values())
            assert left >= held[tenant]
            assert share("newcomer", limit, limit - left, 0) == left // 2
    assert share(NOBODY, limit, 10, 10) == limit


async def _keyed(api: Api, token: str, key: str, value: Any = 1) -> tuple[int, Any, Any]:
    headers = {"Idempotency-Key": f'"{key}"'}
    return await as_(api, token, "PUT", f"/v1/tables/rows/rows/{key}", value, **headers)


async def _events(api: Api, token: str, first: int, count: int = 400) -> tuple[int, Any, Any]:
    events = [{"specversion": "1.0", "id": str(at), "source": "s", "type": "t"} for at in range(first, first + count)]
    headers = {"Content-Type": "application/cloudevents-batch+json", "Authorization": f"Bearer {token}"}
    return await api.call("POST", "/v1/tables/events/events", data=json.dumps(events).encode(), headers=headers)


async def test_events_and_keys_of_one_tenant_leave_room_for_others_and_the_refusal_says_how_long(shared: Api) -> None:
    answers = [await _events(shared, BOB, at * 400) for at in range(4)]
    assert [answer[0] for answer in answers] == [200, 200, 429, 429], "half of what events may take"
    for status, headers, told in (answers[-1], await _events(shared, ANN, 0, 2_000)):
        assert status == 429
        refused = assert_problem((status, headers, told), "QUOTA")
        assert KEY_MS - 60_000 < refused["retry_after_ms"] <= KEY_MS + 1
        assert int(headers["Retry-After"]) > KEY_MS / 1000 - 60
    assert (await _events(shared, BOB, 0))[0] == 200, "replays pass"
    assert (await _events(shared, ANN, 0))[0] == 200
    assert (await _keyed(shared, BOB, "b0"))[0] == 200, "keys have room of their own"
    replay = await _keyed(shared, BOB, "b0")
    assert (replay[0], replay[1]["Idempotent-Replayed"]) == (200, "true")


def test_log_that_holds_more_keys_of_a_tenant_than_its_share_replays_as_it_was() -> None:
    """The share is kept where commands are ordered: members of an earlier build decide entries as this one does."""
    machine = Machine()
    apply(machine, 1, 1, c.encode_entry(0, [c.DeclareTable("t", "resident", 1 << 20)]))

    def check(command: c.Keyed) -> None:
        idempotency_keys.check_room(machine, command, 2_000, lambda: machine.time_ms)

    for at in range(1, 9):
        op = c.Op(1, int(c.OpKind.PUT), "t", f"k{at}", at, b"1")  # type: ignore[arg-type]
        command = c.Keyed(60_000, [c.KeyedOp(f"k{at}", NO_TIME, op)], "bob")
        if at > 2:
            with pytest.raises(OncegateError, match="QUOTA"):
                check(command)
        [done] = apply(machine, at + 1, 1, c.encode_entry(at, [command]))
        assert isinstance(done.verdicts[0], Applied)
    assert machine.keys.of_tenant("bob") == Held(8, machine.keys.bytes)
    known, fresh = (c.KeyedOp(f"k{at}", NO_TIME, op) for at in (1, 9))
    check(c.Keyed(60_000, [known], "bob"))
    with pytest.raises(OncegateError, match="QUOTA"):  # one replay among them lets no new key in
        check(c.Keyed(60_000, [known, fresh], "bob"))


def test_what_a_tenant_holds_is_counted_from_its_keys_through_forgetting_and_restoring() -> None:
    keys = KeyTable()
    for at in range(1, 40):
        tenant = "ab"[at % 2]
        keys.slot(tenant, f"k{at}", at, 50).record(at, at, at)  # type: ignore[arg-type]
    keys.forget(70)
    assert 0 < len(keys) < 39
    restored = KeyTable(keys.records)
    restored.restore(keys.next, keys.forgotten_ms, copy.deepcopy(keys.buckets))
    for table in (keys, restored):
        for tenant in "abc":
            mine = [one for one in table if one.tenant == tenant]
            assert table.of_tenant(tenant) == Held(len(mine), sum(one.size for one in mine))
    keys.fence(80, 0, 5)  # type: ignore[arg-type]
    assert [keys.of_tenant(tenant) for tenant in "ab"] == [restored.of_tenant(tenant) for tenant in "ab"]
    keys.forget(10**6)
    assert keys.of_tenant("a") == keys.of_tenant("b") == Held()
    assert not keys._owners


async def test_sessions_of_one_tenant_leave_room_for_others_and_a_retried_open_finds_its_session(shared: Api) -> None:
    async def opened(token: str, nonce: str) -> tuple[int, Any, Any]:
        return await as_(shared, token, "POST", "/v1/sessions", {"nonce": nonce, "lease_ms": 30_000})

    answers = [await opened(BOB, f"b{at}") for at in range(6)]
    assert [answer[0] for answer in answers] == [201] * 4 + [429] * 2
    assert 20_000 <= assert_problem(answers[-1], "QUOTA")["retry_after_ms"] <= 31_000
    assert (await opened(BOB, "b0"))[0] == 200
    assert [(await opened(ANN, f"a{at}"))[0] for at in range(3)] == [201, 201, 429]
    assert (await opened(OPS, "o"))[0] == 201


async def test_watchers_of_one_tenant_leave_room_for_others(shared: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "WATCHERS_MAX", 4)
    path = "/v1/flows/events/watch"
    async with AsyncExitStack() as watching:
        for token in (BOB, BOB, ANN):
            headers = {"Authorization": f"Bearer {token}"}
            answer = await watching.enter_async_context(shared._http.get(path, headers=headers))
            assert answer.status == 200
        async with asyncio.timeout(30):  # one that is taken never ends
            assert_problem(await as_(shared, BOB, "GET", path), "OVERLOADED")


async def test_watcher_of_a_flow_leaves_its_place_when_its_client_has_gone(
    shared: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "WATCHERS_MAX", 2)
    monkeypatch.setattr(flows, "KEEP_ALIVE_S", 1_000.0)

    async def watches() -> int:
        async with shared._http.get("/v1/flows/events/watch", headers={"Authorization": f"Bearer {BOB}"}) as answer:
            return answer.status

    async with asyncio.timeout(60):
        assert await watches() == 200
        while await watches() != 200:
            await asyncio.sleep(0.05)


async def test_large_bodies_of_one_tenant_leave_room_for_others_until_they_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "HELD_BYTES_MAX", 100)
    budget = BodyBudget(1000, 1000, 1000)
    budget.hold("bob", 50)
    with pytest.raises(OncegateError) as refused:
        budget.hold("bob", 1)
    assert refused.value.code is Code.OVERLOADED
    budget.hold("ann", 25)
    budget.release("bob", 50)
    budget.hold("ann", 25)
    budget.release("ann", 50)
    assert budget.held_bytes == 0
    assert not budget._held


async def test_body_that_gives_way_is_one_of_the_tenant_that_sends_most() -> None:
    budget = BodyBudget(1000, 1500, 60_000)
    older = Body(b"x" * 300)
    ann = asyncio.create_task(budget.receive(older, "ann"))
    await older.stalled.wait()
    crowd = [Body(b"x" * 400) for _ in range(4)]
    tasks = [asyncio.create_task(budget.receive(body, "bob")) for body in crowd]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=30)
    assert done == {tasks[0]}
    assert not ann.done()
    for task in (ann, *tasks):
        task.cancel()
    await asyncio.gather(ann, *tasks, return_exceptions=True)


async def test_large_bodies_are_parsed_one_at_a_time_beside_the_loop_and_tenants_take_turns() -> None:
    parsing, order = ParsingThread(), list[str]()
    first = threading.Event()

    def work(name: str) -> int:
        order.append(name)
        assert first.wait(30)
        return threading.get_ident()

    jobs = [asyncio.create_task(parsing.run(name[0], lambda name=name: work(name))) for name in ("b1", "b2", "b3")]
    while not order:
        await asyncio.sleep(0)
    jobs.append(asyncio.create_task(parsing.run("a", lambda: work("a1"))))
    await asyncio.sleep(0)
    first.set()
    threads = set(await asyncio.gather(*jobs))
    assert order == ["b1", "a1", "b2", "b3"]
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert not parsing._turns
    with pytest.raises(OncegateError):
        await parsing.run("a", _refuse)
    await parsing.close()


def _refuse() -> None:
    raise OncegateError(Code.BAD_REQUEST)


async def test_history_of_a_shared_row_shows_no_ids_of_another_tenant(shared: Api) -> None:
    client_id = (await as_(shared, ANN, "POST", "/v1/sessions", {"nonce": "n"}))[2]["client_id"]
    assert (await as_(shared, ANN, "POST", "/v1/operations", operations(client_id, put(1, "k", 1))))[0] == 200
    assert (await _keyed(shared, ANN, "k", 2))[0] == 200
    assert (await _keyed(shared, BOB, "k", 3))[0] == 200
    path = "/v1/explain?table=rows&key=k"
    for token, own in ((ANN, 2), (OPS, 3), (BOB, 1), (EVE, 0)):
        status, _, found = await as_(shared, token, "GET", path)
        assert status == 200
        logged = [event for event in found["events"] if event["what"] == "log"]
        assert [event["detail"] for event in logged] == ["put rows/k: executed"] * 3, "tenants share the row"
        assert sum("request" in event for event in logged) == own
        assert sum(event["what"] == "attempt" for event in found["events"]) == own
        assert (client_id in json.dumps(found)) == (token in (ANN, OPS))


async def test_metrics_name_no_table_and_no_flow_to_a_token_for_some_tables(shared: Api) -> None:
    assert_problem(await as_(shared, EVE, "GET", "/metrics"), "FORBIDDEN")
    async with shared._http.get("/metrics", headers={"Authorization": f"Bearer {BOB}"}) as answer:
        assert 'oncegate_table_bytes{table="rows"}' in await answer.text(), "it may read all of them"


async def test_refused_large_body_gives_back_no_more_than_it_held(shared: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "HELD_BYTES_MAX", 80_000)
    client_id = (await as_(shared, BOB, "POST", "/v1/sessions", {"nonce": "n"}))[2]["client_id"]
    body = operations(client_id, put(1, "k", "x" * 50_000))
    for _ in range(3):
        assert_problem(await as_(shared, BOB, "POST", "/v1/operations", body), "OVERLOADED")


async def test_body_that_arrives_and_is_parsed_counts_for_its_senders_tenant(
    shared: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    receive, run = BodyBudget.receive, ParsingThread.run

    async def received(self: Any, content: Any, tenant: str = "", bytes_max: Any = None) -> bytes:
        seen.append(("receive", tenant))
        return await receive(self, content, tenant, bytes_max)

    async def parsed(self: Any, tenant: str, work: Any) -> Any:
        seen.append(("parse", tenant))
        return await run(self, tenant, work)

    client_id = (await as_(shared, BOB, "POST", "/v1/sessions", {"nonce": "n"}))[2]["client_id"]
    monkeypatch.setattr(BodyBudget, "receive", received)
    monkeypatch.setattr(ParsingThread, "run", parsed)
    sent = json.dumps(operations(client_id, put(1, "k", "x" * 200_000))).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield sent[:100]
        await asyncio.sleep(0.2)  # so that it is not whole when its headers are
        yield sent[100:]

    headers = {"Authorization": f"Bearer {BOB}", "Content-Type": "application/json"}
    assert (await shared.call("POST", "/v1/operations", data=pieces(), headers=headers))[0] == 200
    assert set(seen) == {("receive", "bob"), ("parse", "bob")}
