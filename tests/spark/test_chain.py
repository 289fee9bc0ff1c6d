"""Through Spark and three real nodes: flow, cascade, flow, cascade, flow, store; leader and jobs killed, exact."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import requests

from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.stores import claimed_store
from tests.spark.chain_driver import ENDS
from tests.spark.test_kill import await_true, killed, log, started

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

POSTS = [(f"p{n:04d}", None if n % 97 == 5 else " ".join("abcdefgh"[: 1 + (n + k) % 7] for k in range(3)))
         for n in range(900)]  # fmt: skip
"""Key and text; those without one become dead letters."""
PATIENCE_S = 240
"""Three jobs begin in one session, each with Python workers of its own, on whatever else the machine does."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster") as nodes:
        nodes.start()
        nodes.wait_ready()
        url = nodes.endpoint(nodes.leader())
        for table in ("posts", "words", "lengths", "dead"):
            declare(url, f"tables/{table}", kind="stream")
        declare(url, "tables/counts", kind="resident")
        cut: dict[str, Any] = {"max_items": 40, "linger_ms": 100}
        declare(url, "flows/split", source="posts", target=["words", "counts", "dead"], **cut)
        declare(url, "flows/length", source="words", target=["lengths", "counts", "dead"], **cut)
        declare(url, "flows/deliver", source="lengths", **cut)
        yield nodes


@contextmanager
def following(command: list[str], out: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the jobs until the block ends, also by a failure: then all of them are killed."""
    process = started(command, out)
    try:
        yield process
    finally:
        killed(process)


def declare(url: str, path: str, **fields: Any) -> None:
    answer = requests.put(f"{url}/v1/{path}", json=fields, timeout=20)
    assert answer.ok, answer.text


def write(nodes: LocalCluster, posts: list[tuple[str, str | None]]) -> None:
    """Write posts as one range in a session of its own."""
    url = nodes.endpoint(nodes.leader())
    opened = requests.post(f"{url}/v1/sessions", json={"nonce": posts[0][0]}, timeout=20).json()
    headers = {"Oncegate-Client": opened["client_id"], "Oncegate-Epoch": "1", "Oncegate-First-Sequence": "1"}
    headers |= {"Oncegate-First-Incomplete": "1", "Content-Type": "application/x-ndjson"}
    lines = (json.dumps({"key": key, "value": {} if text is None else {"text": text}}) for key, text in posts)
    answer = requests.post(f"{url}/v1/tables/posts/ranges", data="\n".join(lines), headers=headers, timeout=20)
    assert answer.ok, answer.text
    assert answer.json()["results"][0]["status"] == "applied"


def count(nodes: LocalCluster, key: str) -> int:
    answer = requests.get(f"{nodes.endpoint(nodes.leader())}/v1/tables/counts/rows/{key}", timeout=20)
    return int(answer.json()["value"]) if answer.ok else 0


def rows_in(store_url: str) -> dict[str, int]:
    with claimed_store(store_url) as store:
        return {row["key"]: row["words"] for rows in store.scan(ENDS) for row in rows.to_pylist()}


def test_chain_of_three_jobs_over_real_nodes_killed_with_its_leader_ends_exact(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = f"sqlite://{tmp_path}/store"
    command = [sys.executable, "-m", "tests.spark.chain_driver", ",".join(cluster.endpoints), store, str(tmp_path)]
    write(cluster, POSTS[:300])
    with log(tmp_path, 1) as out, following([*command, "follow"], out) as process:
        await_true(process, lambda: cursor(cluster, "deliver") > 0, PATIENCE_S)
        write(cluster, POSTS[300:600])
        await_true(process, lambda: count(cluster, "posts") > 300, PATIENCE_S)
        leader = cluster.leader()
        cluster.kill(leader)
        seen = count(cluster, "posts")
        await_true(process, lambda: count(cluster, "posts") > seen or count(cluster, "posts") >= 590, PATIENCE_S)
        write(cluster, POSTS[600:])
        await_true(process, lambda: count(cluster, "letters") > 1_500, PATIENCE_S)
    cluster.start(leader)
    cluster.wait_ready()
    behind = len(rows_in(store))
    with log(tmp_path, 2) as out:
        assert started([*command, "finish"], out).wait(300) == 0, (tmp_path / "job-2.log").read_text()[-2_000:]
    words = {f"{key}/{place}": word for key, text in POSTS if text for place, word in enumerate(text.split())}
    assert rows_in(store) == {key: len(word) for key, word in words.items()}
    assert behind < len(words), "the jobs were killed before the end"
    assert count(cluster, "posts") == sum(text is not None for _, text in POSTS)
    assert count(cluster, "letters") == sum(map(len, words.values()))
    wait_for(lambda: items_of(cluster, "dead") == sum(text is None for _, text in POSTS), 60, "dead letters are sealed")
    for flow, expected in (("split", len(POSTS)), ("length", len(words)), ("deliver", len(words))):
        assert items_of(cluster, flow) == expected, f"an item of {flow} came twice, or not at all"


def items_of(nodes: LocalCluster, flow: str) -> int:
    return int(state_of(nodes, flow)["items"])


def cursor(nodes: LocalCluster, flow: str) -> int:
    return int(state_of(nodes, flow)["consumers"].get("job", {}).get("cursor", 0))


def state_of(nodes: LocalCluster, flow: str) -> Any:
    return requests.get(f"{nodes.endpoint(nodes.leader())}/v1/flows/{flow}", timeout=20).json()
