"""Real traffic through real nodes: a right cluster is ok, each planted bug is an anomaly, nothing is slowed or lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http.server import running
from oncegate.gateway.live_check import recorder
from oncegate.gateway.live_check.recorder import RowSample
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import Table
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.reads import Reads
from oncegate.gateway.node.settings import Settings
from oncegate.proof.mutants.bugs import BUGS
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, put


class Cluster:
    """Nodes in this process, each with its HTTP server, and the way to each."""

    def __init__(self, nodes: list[Node], apis: list[Api]) -> None:
        self.nodes = nodes
        self.apis = apis

    async def checked(self, at: int = 0) -> Any:
        """Return ``/v1/check`` of a node once all nodes have checked all that was answered."""
        for node in self.nodes:
            assert node.live_check is not None
            await node.live_check.check_window()
            assert node.live_check.recorder.seen == []
        status, _, found = await self.apis[at].call("GET", "/v1/check")
        assert status == 200, found
        return found


@asynccontextmanager
async def started(directory: Path, count: int, **settings: Any) -> AsyncIterator[Cluster]:
    """A cluster in which every row is sampled."""
    ports = free_ports(2 * count)
    members = [f"n{at + 1}=127.0.0.1:{ports[2 * at]}:{ports[2 * at + 1]}" for at in range(count)]
    given = {"live_check_share": 1.0, "live_check_window_ms": 600_000, **settings}
    async with AsyncExitStack() as stack:
        nodes, apis = [], []
        for at in range(count):
            own = Settings(node=f"n{at + 1}", members=members, data_dir=directory / f"n{at + 1}", **given)
            nodes.append(await stack.enter_async_context(running(own)))
            http = await stack.enter_async_context(aiohttp.ClientSession(base_url=own.address.http))
            apis.append(Api(http))
        for api in apis:
            async with asyncio.timeout(20):
                while (await api.call("GET", "/readyz"))[0] != 200:
                    await asyncio.sleep(0.01)
        await declare(apis[0])
        yield Cluster(nodes, apis)


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster of one."""
    async with started(tmp_path, 1) as cluster:
        yield cluster


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster of three."""
    async with started(tmp_path, 3) as cluster:
        yield cluster


def operation(rng: random.Random, sequence: int) -> dict[str, Any]:
    """Return a random operation on one of three rows."""
    kind = rng.choice(("put", "put", "delete", "increment", "append", "get", "transaction"))
    if kind == "transaction":
        writes = [{"op": "put", "table": "rows", "key": key, "value": sequence} for key in rng.sample("abc", 2)]
        return {"sequence": sequence, "op": kind, "writes": writes}
    made: dict[str, Any] = {"sequence": sequence, "op": kind, "table": "rows", "key": rng.choice("abc")}
    if kind == "put":
        made["value"] = rng.choice((1, "x", [1], None))
    elif kind == "append":
        made["item"] = sequence
    if kind != "get" and rng.random() < 0.3:
        made["if"] = rng.choice(({"absent": True}, {"version": 5}, {"value": 1}))
    return made


async def traffic(apis: Iterable[Api], seed: int, rounds: int = 25) -> None:
    """Write and read through all nodes at once, with duplicates, reads of each level, and plain requests."""

    async def worker(number: int, api: Api) -> None:
        rng = random.Random(f"{seed} {number}")
        client_id = await api.session(f"{seed}-{number}")
        path = "/v1/tables/rows/rows"
        for sequence in range(1, rounds, 2):
            sent = [operation(rng, sequence), operation(rng, sequence + 1)]
            await api.operate(client_id, *sent)
            if rng.random() < 0.3:
                await api.operate(client_id, *sent)
            level = rng.choice(("linearizable", "linearizable", "session", "stale"))
            await api.call("GET", f"{path}/{rng.choice('abc')}?consistency={level}")
            key = {"Idempotency-Key": f'"{number}-{sequence}"'}
            await api.call("PUT", f"{path}/{rng.choice('abc')}", sequence, headers=key)

    await asyncio.gather(*(worker(number, api) for number, api in enumerate([*apis] * 2)))


async def test_right_node_is_ok_and_says_what_it_has_checked(one: Cluster) -> None:
    assert (await one.checked())["verdict"] == "unknown"
    await traffic(one.apis, 1)
    found = await one.checked()
    assert (found["verdict"], found["anomalies"], found["first_anomaly"]) == ("ok", 0, "")
    assert (found["keys"], found["dropped"], found["complete"], found["windows"]) == (3, 0, True, 2)
    assert found["operations"] > 90
    assert found["last_unix_ms"] > 1_700_000_000_000
    assert found["cluster"]["verdict"] == "ok"
    _, _, text = await one.apis[0].call("GET", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    assert float(values['oncegate_live_check_verdict{verdict="ok"}']) == 1
    assert float(values["oncegate_live_check_operations_total"]) == found["operations"]


async def test_rows_that_end_by_themselves_raise_no_alarm(one: Cluster) -> None:
    api, path = one.apis[0], "/v1/tables/rows/rows/k"
    client_id = await api.session("s")
    await api.operate(client_id, {**put(1, "k", 1), "ttl_ms": 1})
    async with asyncio.timeout(20):
        while (await api.call("GET", path))[0] != 404:
            await asyncio.sleep(0.01)
    await api.operate(client_id, {**put(2, "k", 2), "if": {"absent": True}})
    found = await one.checked()
    assert (found["verdict"], found["first_anomaly"], found["complete"]) == ("ok", "", False)


async def test_several_nodes_raise_no_alarm_by_what_the_others_did(three: Cluster) -> None:
    for seed in range(2):
        await traffic(three.apis, seed, rounds=15)
        found = [await three.checked(at) for at in range(3)]
        assert [(one["verdict"], one["first_anomaly"], one["complete"]) for one in found] == [("ok", "", False)] * 3
        assert [one["cluster"]["nodes"] for one in found] == [
            ["n1", "n2", "n3"],
            ["n2", "n1", "n3"],
            ["n3", "n1", "n2"],
        ]
    together = found[0]["cluster"]
    assert (together["verdict"], together["silent"]) == ("ok", [])
    assert together["operations"] == sum(one["operations"] for one in found)


async def test_windows_are_checked_by_themselves(tmp_path: Path) -> None:
    async with started(tmp_path, 1, live_check_window_ms=100) as cluster:
        await traffic(cluster.apis, 1, rounds=6)
        async with asyncio.timeout(20):
            while True:
                _, _, found = await cluster.apis[0].call("GET", "/v1/check")
                if found["windows"] > 2 and found["operations"]:
                    break
                await asyncio.sleep(0.02)
        assert found["verdict"] == "ok"


# --- planted bugs ------------------------------------------------------------------------------------------------


async def test_planted_stale_read_is_caught(one: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Reads.row
    before: list[StoredRow] = []

    async def stale(reads: Reads, table: str, key: str) -> StoredRow:
        before.append(await stored(reads, table, key))
        return before[0]

    monkeypatch.setattr(Reads, "row", stale)
    api = one.apis[0]
    client_id = await api.session()
    for sequence in (1, 2):
        await api.operate(client_id, put(sequence, "a", sequence))
        await api.call("GET", "/v1/tables/rows/rows/a")
    found = await one.checked()
    assert (found["verdict"], found["anomalies"]) == ("anomaly", 1)
    assert found["first_anomaly"] == (
        "row rows/a: read at commit 2 was told version 1, although version 2 was there before"
    )


async def test_planted_read_without_its_round_is_caught_on_a_node_that_is_behind(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = next(at for at, node in enumerate(three.nodes) if not node.leadership.leads)
    node, api = three.nodes[at], three.apis[at]
    client_id = await api.session()
    await api.operate(client_id, put(1, "a", 1))
    await node.reads.reach("linearizable", 0)

    async def reach(reads: Reads, consistency: str, min_commit: int) -> None:
        """Answer from whatever is here."""

    monkeypatch.setattr(Reads, "reach", reach)
    with monkeypatch.context() as behind:
        # The follower hears of nothing new; the leader and the third node go on.
        behind.setattr(node.state, "apply", lambda index, term, command: [])
        await api.operate(client_id, put(2, "a", 2))
        await api.call("GET", "/v1/tables/rows/rows/a")
        found = await three.checked(at)
    assert found["verdict"] == "anomaly"
    assert "older than what was known" in found["first_anomaly"]


@pytest.fixture
def executes_again() -> Iterator[None]:
    """A retry is executed again, as a planted bug has it."""
    with BUGS["apply-without-dedup"].planted():
        yield


@pytest.mark.usefixtures("executes_again")
async def test_planted_second_execution_is_caught(one: Cluster) -> None:
    api = one.apis[0]
    client_id = await api.session()
    for _ in range(2):
        await api.operate(client_id, {"sequence": 1, "op": "increment", "table": "rows", "key": "n"})
    found = await one.checked()
    assert found["first_anomaly"] == f"row rows/n: request {client_id}/1 was executed twice, at commits 1 and 2"


@pytest.mark.usefixtures("executes_again")
async def test_planted_second_execution_through_another_node_is_caught_by_asking_all(three: Cluster) -> None:
    client_id = await three.apis[0].session()
    for api in three.apis[:2]:
        await api.operate(client_id, {"sequence": 1, "op": "increment", "table": "rows", "key": "n"})
    found = await three.checked(2)
    assert (found["operations"], found["cluster"]["operations"]) == (0, 2)
    assert (found["verdict"], found["cluster"]["verdict"]) == ("anomaly", "anomaly")
    assert "was executed twice, at commits 1 and 2" in found["cluster"]["first_anomaly"]
    assert found["first_anomaly"] == found["cluster"]["first_anomaly"], "what was found once is not forgotten"


async def test_planted_second_execution_whose_answer_comes_from_the_record_is_caught_where_nobody_else_writes(
    one: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = Table.change

    def twice(table: Table, key: str, before: Any, after: Any, commit: Any, cause: str = "") -> None:
        change(table, key, before, after, commit, cause)
        table.rows.put(key, StoredRow(commit, b"%d" % (int(after.value) + 1)), after)

    monkeypatch.setattr(Table, "change", twice)
    api = one.apis[0]
    client_id = await api.session()
    for sequence in (1, 2):
        await api.operate(client_id, {"sequence": sequence, "op": "increment", "table": "rows", "key": "n"})
    found = await one.checked()
    assert (found["verdict"], found["anomalies"]) == ("anomaly", 1)


@pytest.mark.parametrize("known", [True, False], ids=["there was a row", "there was none"])
async def test_planted_forgotten_write_is_caught(one: Cluster, monkeypatch: pytest.MonkeyPatch, *, known: bool) -> None:
    api = one.apis[0]
    client_id = await api.session()
    if known:
        await api.operate(client_id, put(1, "a", 1))
    monkeypatch.setattr(Table, "change", lambda *_: None)
    await api.operate(client_id, put(2, "a", 2))
    await api.call("GET", "/v1/tables/rows/rows/a")
    found = await one.checked()
    assert (found["verdict"], found["anomalies"]) == ("anomaly", 1)
    assert found["first_anomaly"].startswith("row rows/a: read at commit")


async def test_planted_forgotten_write_is_caught_through_another_node(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_id = await three.apis[0].session()
    await three.apis[0].operate(client_id, put(1, "a", 1))
    assert (await three.apis[1].call("GET", "/v1/tables/rows/rows/a"))[0] == 200
    monkeypatch.setattr(Table, "change", lambda *_: None)
    await three.apis[0].operate(client_id, put(2, "a", 2))
    assert (await three.apis[1].call("GET", "/v1/tables/rows/rows/a"))[0] == 200
    found = await three.checked(1)
    assert (found["operations"], found["cluster"]["verdict"]) == (2, "anomaly")
    assert "was told version 1, although version 2 was there before" in found["cluster"]["first_anomaly"]


# --- bounds and switches -----------------------------------------------------------------------------------------


async def test_operations_beyond_the_bound_are_counted_and_nothing_is_claimed_of_them(
    one: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = one.nodes[0].live_check
    assert live is not None
    monkeypatch.setattr(live.recorder, "_operations_max", 20)
    await traffic(one.apis, 1)
    found = await one.checked()
    assert found["operations"] <= 20
    assert (found["verdict"], found["complete"]) == ("ok", False)
    assert found["dropped"] > 0
    await traffic(one.apis, 2, rounds=4)
    again = await one.checked()
    assert (again["verdict"], again["operations"] > found["operations"]) == ("ok", True)


async def test_operation_of_unknown_outcome_makes_its_row_doubtful_and_no_other(
    one: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, api = one.nodes[0], one.apis[0]
    client_id = await api.session()
    submit = node.proposer.submit

    def hung_up(command: Any, size: int) -> Any:
        """The operation goes on; who waited for it does not."""
        future, left = submit(command, size), asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: left.cancel())
        return left

    await api.operate(client_id, put(1, "a", 1), put(2, "b", 1))
    with monkeypatch.context() as patch:
        patch.setattr(node.proposer, "submit", hung_up)
        deletion = {"sequence": 3, "op": "delete", "table": "rows", "key": "a"}
        asking = asyncio.ensure_future(api.operate(client_id, deletion))
        assert node.live_check is not None
        seen = node.live_check.recorder
        await until(lambda: seen.unknown == {"rows/a"}, 30, "nobody knows what became of it")
        asking.cancel()
    await api.call("GET", "/v1/tables/rows/rows/a")
    await api.call("GET", "/v1/tables/rows/rows/b")
    assert (await one.checked())["verdict"] == "ok"


async def test_each_answer_is_handed_over_once_as_soon_as_nothing_can_come_before_it() -> None:
    """An answer waits for the operations that were under way when it came, and only for these."""
    taken: list[tuple[str, int]] = []
    notes = recorder.WindowRecorder(RowSample(1.0, 0))
    loop = asyncio.get_running_loop()

    def take() -> list[int]:
        ready = notes.take()
        taken.extend((seen.what, seen.commit) for seen in ready)
        return [seen.commit for seen in ready]

    async def submit(sequence: int) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = loop.create_future()
        op = c.Op(sequence, int(c.OpKind.PUT), "rows", "a", sequence, b"1")
        notes.watch(c.Operate(1, 1, 1, [op]), future)
        return future

    async def answer(future: asyncio.Future[Answer], sequence: int, commit: int) -> None:
        result = wire.OperationResult(sequence, "applied", commit=commit, version=commit)
        future.set_result(Answer(wire.OperationsResponse([result], 1), commit))
        await asyncio.sleep(0)

    first, second = await submit(1), await submit(2)
    await answer(first, 1, 5)
    notes.read("rows", "a", 5, 5, 5, b"1")
    assert take() == []  # the second may have been applied before
    third = await submit(3)
    await answer(second, 2, 4)
    assert take() == [5, 5, 4]  # the third comes behind what was answered when it was asked for
    await answer(third, 3, 6)
    assert take() == [6]
    assert take() == []
    assert sorted(taken) == [("put", 4), ("put", 5), ("put", 6), ("read", 5)]


async def test_nothing_is_recorded_where_the_share_is_none(tmp_path: Path) -> None:
    async with started(tmp_path, 1, live_check_share=0.0) as cluster:
        assert cluster.nodes[0].live_check is None
        assert_problem(await cluster.apis[0].call("GET", "/v1/check"), "NOT_FOUND")


async def test_member_without_an_answer_is_named(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(three.nodes[2], "live_check", None)
    _, _, found = await three.apis[0].call("GET", "/v1/check")
    assert (found["cluster"]["nodes"], found["cluster"]["silent"]) == (["n1", "n2"], ["n3"])


def test_bounds_are_what_the_documents_say() -> None:
    assert recorder.OPERATIONS_MAX == 2_000
