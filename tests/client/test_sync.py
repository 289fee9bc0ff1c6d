"""The facade for scripts: the same names and errors from threads that have no event loop."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiohttp import web

from oncegate import (
    Code,
    MalformedAnswer,
    OperationFailed,
    OutboxEntry,
    OutboxUnresolved,
    Outcome,
    OutcomeUnknown,
    sync,
)
from oncegate.gateway.client.sync_crossing import LoopThread
from oncegate.testing import FakeCluster, FakeGateway
from tests.client.answers import fails, lose_answers


@pytest.fixture
def fake(oncegate_cluster: FakeCluster) -> FakeGateway:
    """A gateway in a thread of its own, as a real one is to a script."""
    oncegate_cluster.declare("rows")
    oncegate_cluster.declare("events", "stream")
    return oncegate_cluster.gateway


def test_writes_and_reads_as_in_the_asynchronous_sdk(fake: FakeGateway) -> None:
    with sync.Client(fake.endpoints) as client:
        assert client.declare_table("seats").kind == "resident"
        with client.session() as session:
            assert session.insert("rows", "a", "ann").applied
            assert not session.insert("rows", "a", "bob").applied
            assert session.increment("rows", "n", 2).value == 2
            assert session.append("rows", "l", 1).applied
            assert session.get_remembered("rows", "a").value == "ann"
            assert session.put_many("events", [("x", 1), ("y", 2)]).last >= 2
            assert session.delete("rows", "a").applied
            assert session.get("rows", "a") is None
            assert session.outstanding == 0
        row = client.get("rows", "n")
        assert row.value == 2
        assert client.get("rows", "n", held=row) == row
        assert [found.key for found in client.scan("rows").rows] == ["l", "n"]
        assert client.cluster().node == "n0"
    assert not len(fake.machine.sessions)


def test_notebook_needs_no_with(fake: FakeGateway) -> None:
    client = sync.Client(fake.endpoints)
    session = client.session()
    assert session.put("rows", "a", 1).applied
    client.close()
    assert not len(fake.machine.sessions)
    with pytest.raises(OperationFailed):
        client.get("rows", "a")


def test_script_that_closes_nothing_ends_and_loses_nothing(fake: FakeGateway, oncegate_cluster: FakeCluster) -> None:
    script = f"""
from oncegate import sync
session = sync.Client({fake.endpoints!r}).session()
for n in range(20):
    session.submit("increment", "rows", "n")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
    assert oncegate_cluster.value("rows", "n") == 20


AT_ITS_END = """
from oncegate import sync
client = sync.Client({endpoints!r}, timeout_s=0.3)
session = client.session(outbox={outbox!r})
session.put("rows", "k", 1)
print("ready", flush=True)
input()
{last}
"""


@pytest.mark.parametrize(
    ("last", "outbox", "host"),
    [
        ('session.put("rows", "k", 2)', False, "127.0.0.1"),
        ('session.put("rows", "k", 2)', False, "localhost"),
        ('session.put("rows", "k", 2)', True, "127.0.0.1"),
        ('session.submit("put", "rows", "k", 2)', False, "127.0.0.1"),
        ('session.submit("put", "rows", "k", 2)', True, "127.0.0.1"),
    ],
    ids=["write", "name", "outbox", "submitted", "submitted outbox"],
)
def test_script_that_closes_nothing_tells_of_frozen_nodes_once_and_ends(
    fake: FakeGateway, oncegate_cluster: FakeCluster, tmp_path: Path, last: str, outbox: bool, host: str
) -> None:
    endpoints = [one.replace("127.0.0.1", host) for one in fake.endpoints]
    path = str(tmp_path / "outbox") if outbox else None
    script = AT_ITS_END.format(endpoints=endpoints, outbox=path, last=last)
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **piped, text=True) as program:  # type: ignore[call-overload]
        assert program.stdout.readline() == "ready\n"
        for node in range(len(fake.nodes)):
            oncegate_cluster.freeze(node)
        _, told = program.communicate("\n", timeout=120)
    expected = "put" in last and "submit" not in last
    assert told.count("Traceback") == expected, told
    assert (program.returncode, "Doubt: TIMEOUT" in told, "ignored" in told) == (expected, expected, False)
    if outbox:  # released, with what is not known to be done
        for node in range(len(fake.nodes)):
            oncegate_cluster.thaw(node)
        with sync.Client(fake.endpoints) as client, client.session(outbox=path) as session:
            row = session.get("rows", "k", consistency="linearizable")
            assert row is not None
            assert row.value == 2


def test_submitted_writes_overlap_and_wait_at_the_bound(fake: FakeGateway) -> None:
    with sync.Client(fake.endpoints) as client, client.session(window=8) as session:
        futures = [session.submit("increment", "rows", "n") for _ in range(100)]
        assert sorted(future.result().value for future in futures) == list(range(1, 101))
    assert fake.nodes[0].requests["POST /v1/operations"] < 100


def test_submit_fails_fast_on_request(fake: FakeGateway, oncegate_cluster: FakeCluster) -> None:
    with sync.Client(fake.endpoints) as client, client.session(window=1, full="fail") as session:
        oncegate_cluster.freeze()
        first = session.submit("put", "rows", "a", 1)
        with fails(Code.WINDOW_FULL):
            session.submit("put", "rows", "b", 1)
        oncegate_cluster.thaw()
        assert first.result().applied


def test_several_threads_share_a_session(fake: FakeGateway, oncegate_cluster: FakeCluster) -> None:
    with sync.Client(fake.endpoints) as client, client.session() as session, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: session.increment("rows", "n"), range(100)))
    assert oncegate_cluster.value("rows", "n") == 100


def test_doubt_is_resolved_without_await(fake: FakeGateway) -> None:
    with sync.Client(fake.endpoints) as client, client.session() as session:
        fake.nodes[0].after = lose_answers
        with pytest.raises(OutcomeUnknown) as unknown:
            session.increment("rows", "n", timeout_s=0.25)
        session.drain()
        fake.nodes[0].after = None
        assert isinstance(unknown.value, sync.Doubt)
        assert unknown.value.resolve().applied
        assert type(pickle.loads(pickle.dumps(unknown.value))) is OutcomeUnknown


@pytest.mark.parametrize("how", ["call", "submit"])
def test_error_of_any_class_in_doubt_is_resolved_without_await(fake: FakeGateway, how: str) -> None:
    async def garbage(request: web.Request) -> web.StreamResponse | None:
        return web.Response(body=b"?") if request.path == "/v1/operations" else None

    with sync.Client(fake.endpoints) as client, client.session() as session:
        fake.nodes[0].before = garbage
        increment = session.increment if how == "call" else lambda *row: session.submit("increment", *row).result()
        with pytest.raises(OutcomeUnknown) as unknown:
            increment("rows", "n")
        fake.nodes[0].before = None
        assert isinstance(unknown.value, MalformedAnswer)
        assert isinstance(unknown.value, sync.Doubt)
        assert not unknown.value.resolve().applied
        assert type(pickle.loads(pickle.dumps(unknown.value))) is MalformedAnswer


def test_outbox_goes_on_in_the_same_session(fake: FakeGateway, tmp_path: Path) -> None:
    path = tmp_path / "o"
    reported: list[OutboxEntry] = []
    with sync.Client(fake.endpoints) as client:
        with client.session(outbox=path, on_unknown=reported.append) as session:
            session.put("rows", "a", 1, position="line 1")
        with client.session(outbox=path, on_unknown=reported.append) as session:
            assert (session.position, session.recovered, session.is_lost) == ("line 1", [], False)
    assert reported == []


def test_outbox_without_an_answer_raises_a_doubt_of_this_facade(
    fake: FakeGateway, oncegate_cluster: FakeCluster, tmp_path: Path
) -> None:
    path = tmp_path / "o"
    with sync.Client(fake.endpoints) as client:
        session = client.session(outbox=path)
        session.put("rows", "a", 1)
        fake.nodes[0].after = lose_answers
        with pytest.raises(OutcomeUnknown) as sent:
            session.increment("rows", "n", timeout_s=0.25)
        session.close(drain=False)
        fake.nodes[0].after = None
        assert isinstance(sent.value, sync.Doubt)
        oncegate_cluster.advance(61)
        with pytest.raises(OutboxUnresolved) as left:
            client.session(outbox=path).put("rows", "b", 1)
        assert isinstance(left.value, sync.Doubt)
        assert len(left.value.entries) == 1
        with fails(Code.BAD_REQUEST):
            left.value.resolve()
        assert type(pickle.loads(pickle.dumps(left.value))) is OutboxUnresolved
        with pytest.raises(OutboxUnresolved), client.session(outbox=path):
            pass


def test_reasons_and_errors_outside_calls_are_those_of_this_facade(
    fake: FakeGateway, oncegate_cluster: FakeCluster
) -> None:
    reasons: list[OperationFailed] = []
    with sync.Client(fake.endpoints) as client, client.session(on_lost=reasons.append) as session:
        session.put("rows", "a", 1)
        oncegate_cluster.advance(61)
        with fails(Code.SESSION_EXPIRED):
            session.put("rows", "a", 2)
        assert [reason.code for reason in reasons] == [Code.SESSION_EXPIRED]
    with pytest.raises(OutcomeUnknown) as doubt, sync.Client(fake.endpoints) as client:
        raise OutcomeUnknown(Code.TIMEOUT)
    assert doubt.value.code is Code.TIMEOUT


def test_call_that_comes_while_the_loop_ends_is_refused_and_waits_for_nothing() -> None:
    thread, ending, go = LoopThread("test"), threading.Event(), threading.Event()

    async def lingers() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.to_thread(go.wait)

    async def nothing() -> None: ...

    lasting = asyncio.run_coroutine_threadsafe(lingers(), thread.loop)
    thread.run(nothing())
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    assert ending.wait(60)
    for late in (lambda: thread.run(nothing()), lambda: thread.call(go.set)):
        with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
            late()
    go.set()
    stopping.join(60)
    assert lasting.cancelled()
    with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
        thread.run(nothing())
