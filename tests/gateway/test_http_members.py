"""Operators change the cluster over HTTP while it serves: real processes."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from oncegate.gateway.cli.main import app
from oncegate.gateway.local.blocking_http import send_json
from oncegate.gateway.local.cluster import LocalCluster
from tests.gateway.http_contract import JSON_LINES, assert_problem, operations, range_headers


class Counting:
    """Increments one row in a thread, each with the next sequence number, repeating until it is answered."""

    def __init__(self, cluster):
        self.endpoints = cluster.endpoints
        send_json("PUT", f"{self.endpoints[0]}/v1/tables/counters", {"kind": "resident"}, 10)
        self.client = send_json("POST", f"{self.endpoints[0]}/v1/sessions", {"nonce": "counting"}, 10)["client_id"]
        self.done = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        turn = 0
        while not self._stop.is_set():
            sequence = self.done + 1
            op = {"sequence": sequence, "op": "increment", "table": "counters", "key": "k", "by": 1}
            body = operations(self.client, op, first_incomplete=sequence)
            try:
                answer = send_json("POST", f"{self.endpoints[turn % len(self.endpoints)]}/v1/operations", body, 5)
            except Exception:  # noqa: BLE001 - whatever it was, the same request is sent again, elsewhere
                turn += 1
                continue
            if answer["results"][0]["status"] == "applied":
                self.done = sequence


def value_of(endpoint):
    with urllib.request.urlopen(f"{endpoint}/v1/tables/counters/rows/k", timeout=10) as answer:
        return json.loads(answer.read())["value"]


def progressed(counting, by=20):
    start, waited = counting.done, threading.Event()
    while counting.done < start + by:
        assert not waited.wait(0.01)
    return True


@contextmanager
def counted(directory, **options):
    """A cluster that counts; at the end each increment counts once, wherever it is read."""
    with LocalCluster(directory, **options) as cluster:
        cluster.start()
        cluster.wait_ready()
        with Counting(cluster) as counting:
            assert progressed(counting)
            yield cluster, counting
        for endpoint in counting.endpoints:
            assert value_of(endpoint) == counting.done
        cluster.stop()


def done(*arguments):
    """Run a command that must succeed; return what it prints."""
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.stderr
    return ran.stdout


@pytest.mark.timeout(180)
def test_nodes_join_and_leave_under_load_and_each_increment_counts_once(tmp_path):
    with counted(tmp_path) as (cluster, counting):
        new = cluster.expand("n4")
        cluster.start("n4")
        added = done("member", "add", str(new), "--endpoint", cluster.endpoint("n2"))
        assert "--join --node n4 --cluster oncegate --data-dir oncegate-n4 " in added
        assert f" --member n1={cluster.members[0].host}" in added
        cluster.wait_ready("n4")
        assert {m["id"] for m in cluster.state("n4")["members"]} == {"n1", "n2", "n3", "n4"}
        assert progressed(counting)

        # A leader is removed: it hands over first.
        leader = cluster.leader()
        done("member", "remove", leader, "--yes", "--endpoint", cluster.endpoint("n4"))
        assert progressed(counting)
        cluster.kill(leader)
        rest = [node_id for node_id in cluster.ids if node_id != leader]
        counting.endpoints = [cluster.endpoint(node_id) for node_id in rest]
        state = cluster.state("n4")
        assert {m["id"] for m in state["members"]} == set(rest)
        assert state["leader"] in rest

        for _ in range(2):  # the second time it leads already
            done("leader", "move", "--to", "n4", "--endpoint", cluster.endpoint(rest[0]))
        assert cluster.state("n4")["role"] == "leader"
        assert progressed(counting)


@pytest.mark.timeout(120)
def test_a_dead_node_is_replaced_under_its_own_id_and_its_old_directory_is_refused(tmp_path):
    with counted(tmp_path) as (cluster, counting):
        dead = next(node_id for node_id in ("n1", "n2", "n3") if node_id != cluster.leader())
        cluster.kill(dead)
        (tmp_path / dead).rename(tmp_path / "old")
        left = [node_id for node_id in ("n1", "n2", "n3") if node_id != dead]
        counting.endpoints = [cluster.endpoint(node_id) for node_id in left]
        member = next(m for m in cluster.members if m.node_id == dead)
        done("member", "remove", dead, "--yes", "--endpoint", cluster.endpoint(left[0]))
        cluster.flags = ("--join",)
        cluster.start(dead)
        done("member", "add", str(member), "--endpoint", cluster.endpoint(left[0]))
        cluster.flags = ()
        cluster.wait_ready(dead)
        assert progressed(counting)
        cluster.kill(dead)
        (tmp_path / dead).rename(tmp_path / "new")
        (tmp_path / "old").rename(tmp_path / dead)
        cluster.start(dead)
        refused = threading.Event()
        while "wiped" not in cluster.log_tail(dead) and "refuse" not in cluster.log_tail(dead):
            assert not refused.wait(0.02)
        assert progressed(counting)


async def test_what_cannot_be_is_refused_with_its_reason(api):
    member = {"id": "n4", "host": "192.0.2.1", "http_port": 1, "peer_port": 2}
    for method, path, body, code in (
        ("DELETE", "members/n1", None, "CONFLICT"),
        ("POST", "members", {**member, "id": "N 4"}, "BAD_REQUEST"),
        ("POST", "members", member, "BAD_REQUEST"),
        ("POST", "leader", {"to": "n9"}, "CONFLICT"),
    ):
        assert_problem(await api.call(method, f"/v1/cluster/{path}", body), code)
    here = str(api._http._base_url)
    host, http_port = here.rstrip("/").removeprefix("http://").rsplit(":", 1)
    for ports in ((int(http_port), 1), (1, int(http_port))):
        taken = {"id": "n4", "host": host, "http_port": ports[0], "peer_port": ports[1]}
        assert_problem(await api.call("POST", "/v1/cluster/members", taken), "CONFLICT")
    for arguments, code in (
        (("leader", "move", "--to", "n9", "--endpoint", here), 1),
        (("member", "remove", "n1", "--endpoint", "http://127.0.0.1:1"), 3),
    ):
        assert (await asyncio.to_thread(CliRunner().invoke, app, arguments)).exit_code == code
    misspelt = await asyncio.to_thread(CliRunner().invoke, app, ("member", "remove", "n9", "--endpoint", here))
    assert (misspelt.exit_code, misspelt.stderr) == (1, "oncegate: n9 is no member: the members are n1\n")


async def test_what_cannot_be_taken_back_is_asked_first_and_changes_nothing_without_a_yes(api):
    here = str(api._http._base_url).rstrip("/")
    await api.call("PUT", "/v1/tables/f", {"kind": "stream"})
    await api.call("POST", "/v1/flows/f/consumers/typo/start", {"nonce": "n", "start": "beginning"})

    async def state():
        _, _, cluster = await api.call("GET", "/v1/cluster")
        _, _, flow = await api.call("GET", "/v1/flows/f")
        return [one["id"] for one in cluster["members"]], cluster["level"], list(flow["consumers"])

    before = await state()
    commands = (("member", "remove", "n1"), ("level", "raise"), ("consumer", "remove", "f", "typo"))
    for words in commands:
        for answer in ("n\n", ""):  # "": nobody is there to answer, as in a script
            ran = await asyncio.to_thread(CliRunner().invoke, app, (*words, "--endpoint", here), answer)
            assert ran.exit_code == 1, (words, ran.stderr)
            assert "[y/N]" in ran.stderr
    assert await state() == before
    ran = await asyncio.to_thread(CliRunner().invoke, app, (*commands[2], "--endpoint", here), "y\n")
    assert ran.exit_code == 0, ran.stderr
    assert (await state())[2] == []


@pytest.mark.timeout(180)
def test_a_node_that_joins_behind_a_compacted_log_gets_state_and_batches(tmp_path):
    """Rows, sessions and batches of before: the new node alone can answer for all of it."""
    with counted(tmp_path, environment={"ONCEGATE_LOG_KEPT_BYTES": "0"}) as (cluster, counting):
        endpoint = cluster.endpoints[0]
        send_json("PUT", f"{endpoint}/v1/tables/events", {"kind": "stream"}, 10)
        writer = send_json("POST", f"{endpoint}/v1/sessions", {"nonce": "wide"}, 10)["client_id"]
        value = "v" * 20_000
        sequence = 1
        while cluster.state("n1")["saved_index"] == 0 or _log_begins(cluster) < 2:
            body = "\n".join(json.dumps({"key": f"k{sequence + n}", "value": value}) for n in range(200)).encode()
            headers = range_headers(writer, sequence, JSON_LINES, first_incomplete=sequence)
            request = urllib.request.Request(f"{endpoint}/v1/tables/events/ranges", body, headers)
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert json.loads(answer.read())["results"][0]["status"] == "applied"
            sequence += 200
        send_json("POST", f"{endpoint}/v1/flows/events/consumers/c/attach", {"nonce": "reader"}, 10)
        new = cluster.expand("n4")
        cluster.start("n4")
        done("member", "add", str(new), "--endpoint", endpoint)
        assert progressed(counting)
        assert "a snapshot up to entry" in (tmp_path / "n4.log").read_text()
        counting.endpoints = [cluster.endpoint("n4")]
        checksums = []
        for node in (cluster.endpoint("n4"), cluster.endpoint("n2")):
            with urllib.request.urlopen(f"{node}/v1/flows/events/batches/1", timeout=20) as answer:
                checksums.append((answer.headers["ETag"], len(answer.read())))
        assert checksums[0] == checksums[1]


def _log_begins(cluster):
    """Sequence number of the oldest journal segment of n1."""
    names = sorted((cluster.directory / "n1" / "raft").glob("journal-*.segment"))
    return int(names[0].stem.rpartition("-")[2])
