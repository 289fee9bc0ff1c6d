"""Each command ends in time at the node that was asked, whatever the log does, and says what is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.consensus.ports import Role, RoleChange
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.reads import Reads
from oncegate.rifl.errors import Code, OncegateError, Outcome
from tests.conftest import Api
from tests.gateway.http_contract import declare, one_node, operations, put, serving

ANSWER_MS = 500


@pytest.fixture
async def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Api, Node, list[Any]]]:
    """A leader with the table ``rows`` whose log takes entries and commits none."""
    async with serving(one_node(tmp_path, answer_ms_max=ANSWER_MS)) as (api, node):
        await declare(api)
        node._housekeep_in(3_600_000)
        entries: list[asyncio.Future[Any]] = []

        def proposed(entry: bytes) -> asyncio.Future[Any]:
            entries.append(asyncio.get_running_loop().create_future())
            return entries[-1]

        monkeypatch.setattr(node.replica, "propose", proposed)
        async with asyncio.timeout(60):
            yield api, node, entries
        for entry in entries:
            if not entry.done():
                entry.set_exception(OncegateError(Code.TIMEOUT))


async def test_every_route_ends_in_time_at_a_leader_that_cannot_commit(stuck: tuple[Api, Node, list[Any]]) -> None:
    api, node, entries = stuck
    asked: dict[str, asyncio.Task[Any]] = {}
    for name, method, path, body, headers in (
        ("hot", "PUT", "/v1/tables/rows/rows/a", 1, {"Idempotency-Key": "a"}),
        ("session", "POST", "/v1/sessions", {"nonce": "n"}, {}),
        ("control", "PUT", "/v1/tables/other", {"kind": "resident"}, {}),
        ("operations", "POST", "/v1/operations", operations("0" * 15 + "1", put(1, "a", 1)), {}),
    ):
        asked[name] = asyncio.create_task(api.call(method, path, body, headers=headers))
        while not node.proposer.inflight_commands:
            await asyncio.sleep(0)
    outcomes = {}
    for name, task in asked.items():
        status, _, problem = await task
        assert (status, problem["code"], problem["retryable"]) == (504, "TIMEOUT", True), (name, problem)
        outcomes[name] = problem["outcome"]
    # The first is in the log; the others waited for its end, and nobody has got them.
    assert outcomes.pop("hot") == "unknown"
    assert len(entries) == 1
    assert set(outcomes.values()) == {"not_applied"}


async def test_what_was_proposed_counts_until_its_end_and_is_told_once(stuck: tuple[Api, Node, list[Any]]) -> None:
    _, node, entries = stuck
    first = node.submit(c.OpenSession("n", 60_000, 64), 64)
    refused = await _refusal(first)
    assert (refused.code, refused.outcome) == (Code.TIMEOUT, Outcome.UNKNOWN)
    assert node.proposer.inflight_commands == 1, "its bytes are held by the log still"
    entries[0].set_exception(OncegateError(Code.TIMEOUT))
    await asyncio.sleep(0)
    assert (node.proposer.inflight_commands, node.proposer.inflight_bytes) == (0, 0)


async def test_timer_rests_while_nothing_is_under_way(stuck: tuple[Api, Node, list[Any]]) -> None:
    _, node, entries = stuck
    await _refusal(node.submit(c.OpenSession("n", 60_000, 64), 64))
    entries[0].set_exception(OncegateError(Code.TIMEOUT))
    sweep = node.proposer._sweep
    while sweep.at < float("inf"):
        await asyncio.sleep(0.01)
    follows = node.submit(c.OpenSession("m", 60_000, 64), 64)
    await asyncio.sleep(0)
    assert sweep.at < float("inf")
    assert (await _refusal(follows)).code is Code.TIMEOUT


async def test_end_of_a_clients_operation_is_noted_once(stuck: tuple[Api, Node, list[Any]]) -> None:
    _, node, entries = stuck
    ends: list[str] = []
    waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    command = c.Operate(1, 1, 1, [])
    node.attempt(command, 64, waiting, lambda: ends.append("then"))
    await _refusal(waiting)
    entries[0].set_result([None])
    await asyncio.sleep(0.01)
    assert ends == ["then"], "the key of a running request would be given back twice"
    assert node.proposer.inflight_commands == 0


async def test_what_ended_while_it_waited_lets_nothing_leave_before_its_turn(
    stuck: tuple[Api, Node, list[Any]],
) -> None:
    """What waits together leaves at once from 16 KiB on: what has ended is no part of it."""
    _, node, entries = stuck
    first = node.submit(c.OpenSession("first", 60_000, 64), 64)
    while not entries:
        await asyncio.sleep(0)
    for turn in range(3):
        late = [node.submit(c.OpenSession(f"{turn}.{n}", 60_000, 64), 1024) for n in range(15)]
        assert {(await _refusal(one)).outcome for one in late} == {Outcome.NOT_APPLIED}
        assert len(entries) == 1
    assert (await _refusal(first)).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("consistency", ["linearizable", "session"])
async def test_read_that_waits_for_a_commit_ends_when_its_own_time_is_over(tmp_path: Path, consistency: str) -> None:
    async with serving(one_node(tmp_path, answer_ms_max=60_000)) as (api, node), asyncio.timeout(30):
        await declare(api)
        with pytest.raises(OncegateError) as refused:
            await node.reads.reach(consistency, node.machine.commit + 1, 0.5)
        assert refused.value.code in (Code.NOT_READY, Code.TIMEOUT)


@pytest.mark.parametrize("own_s", [0.5, None])
async def test_read_has_one_time_for_all_that_it_waits_for(own_s: float | None) -> None:
    asked: list[float] = []
    now_s = asyncio.get_running_loop().time

    class Slow:
        async def read_index(self, *, timeout_s: float) -> int:
            asked.append(timeout_s)
            goes_on_s = now_s() + 0.05
            while now_s() < goes_on_s:
                await asyncio.sleep(0.01)
            return 1

        async def wait_applied(self, index: int, *, timeout_s: float) -> None:
            asked.append(timeout_s)

    slow: Any = Slow()
    await Reads(slow, Machine(), slow, slow, answer_s=7.0).reach("linearizable", 0, own_s)
    for_the_index, for_the_state = asked
    assert for_the_index <= (own_s or 7.0)
    assert for_the_state <= (own_s or 7.0) - 0.05


async def test_what_a_leader_was_forwarded_and_what_waits_behind_it_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(one_node(tmp_path, answer_ms_max=ANSWER_MS)) as (_, node), asyncio.timeout(60):
        frames: list[Any] = []
        monkeypatch.setattr(node.replica, "ask", lambda *args, **more: frames.append(args) or len(frames))
        term = node.replica.status().term
        node._role(RoleChange(role=Role.FOLLOWER, leader_id="n2", term=term, ready=False))
        futures = []
        for nonce in "abcd":
            futures.append(node.submit(c.OpenSession(nonce, 60_000, 64), 64))
            await asyncio.sleep(0)
        outcomes = [(await _refusal(future)).outcome for future in futures]
        assert outcomes == [*[Outcome.UNKNOWN] * len(frames), *[Outcome.NOT_APPLIED] * (4 - len(frames))]
        assert 0 < len(frames) < 4


async def test_each_command_that_was_forwarded_ends_at_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last one, behind which nothing comes that would have the deadlines looked at."""
    async with serving(one_node(tmp_path, answer_ms_max=ANSWER_MS)) as (_, node), asyncio.timeout(30):
        frames: list[Any] = []
        monkeypatch.setattr(node.replica, "ask", lambda *args, **more: frames.append(args) or len(frames))
        term = node.replica.status().term
        node._role(RoleChange(role=Role.FOLLOWER, leader_id="n2", term=term, ready=False))
        futures = []
        for nonce in "ab":
            futures.append(node.submit(c.OpenSession(nonce, 60_000, 64), 64))
            await asyncio.sleep(ANSWER_MS / 2_000)
        assert [(await _refusal(future)).outcome for future in futures] == [Outcome.UNKNOWN] * 2
        assert len(frames) == 2


async def _refusal(future: asyncio.Future[Any]) -> OncegateError:
    with pytest.raises(OncegateError) as refused:
        await future
    return refused.value
