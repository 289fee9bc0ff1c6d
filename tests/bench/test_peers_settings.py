"""Each system runs as it is said to run: what was pinned, flushed before the answer, and gone when the bench is."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bench.children import with_its_parent
from bench.peers import packages
from bench.peers.etcd import Etcd
from bench.peers.gateway import LAG_MAX, Gateway
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.peer import NODES, Peer
from bench.peers.restate import Restate
from bench.peers.systems import PEERS
from bench.peers.zookeeper import ZooKeeper
from oncegate.gateway.local.waiting import wait_for

SERVERS = packages.HERE / "servers"


@pytest.fixture(autouse=True)
def nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for build in ("go_program", "maven_jars", "npm_packages"):
        monkeypatch.setattr(packages, build, lambda *_words: tmp_path)
    monkeypatch.setattr(Kafka, "_format", lambda _self: None)


def written(peer: type[Peer], directory: Path, file: str) -> list[str]:
    """Lines of the configuration files that a system's nodes are started with."""
    made = peer(directory)
    made.configure()
    texts = [(directory / file.format(node)).read_text() for node in made.nodes]
    assert len(texts) == NODES
    assert all(any(file.format(node) in word for word in made.command(node)) for node in made.nodes)
    found = [{line.strip() for line in text.splitlines()} for text in texts]
    return sorted(found[0] & found[1] & found[2])


def test_nats_flushes_always(tmp_path: Path) -> None:
    assert "sync_interval: always" in written(Nats, tmp_path, "{}.conf")


def test_kafka_flushes_each_message_and_needs_two_replicas(tmp_path: Path) -> None:
    lines = written(Kafka, tmp_path, "{}.properties")
    assert "log.flush.interval.messages=1" in lines
    assert "min.insync.replicas=2" in lines
    assert "default.replication.factor=3" in lines


def test_zookeeper_forces_its_log(tmp_path: Path) -> None:
    assert "forceSync=yes" in written(ZooKeeper, tmp_path, "{}.cfg")
    assert not [word for word in ZooKeeper(tmp_path / "b").command("n1") if "forceSync" in word]


def test_restate_flushes_on_two_nodes(tmp_path: Path) -> None:
    lines = written(Restate, tmp_path, "{}.toml")
    assert "rocksdb-disable-wal-fsync = false" in lines
    assert "default-replication = 2" in lines


def test_etcd_is_told_nothing_about_flushes(tmp_path: Path) -> None:
    assert not [word for word in Etcd(tmp_path).command("n2") if "fsync" in word]


def test_nodes_of_this_gateway_have_their_defaults(tmp_path: Path) -> None:
    words = Gateway(tmp_path).command("n1")
    assert {word for word in words if word.startswith("--") and word != "--pdeathsig"} == {
        "--node",
        "--data-dir",
        "--member",
    }


def test_every_kafka_record_waits_for_all_replicas_and_has_a_number() -> None:
    source = (packages.HERE / "load" / "kafka.go").read_text()
    assert "kgo.RequiredAcks(kgo.AllISRAcks())" in source
    assert "DisableIdempotentWrite" not in source


def pinned(name: str) -> str:
    """The version of a server in the file that pins it."""
    folder = SERVERS / name
    if (folder / "go.mod").exists():
        found = re.search(r"^require \S+/v\d v(\S+)$", (folder / "go.mod").read_text(), re.MULTILINE)
    elif (folder / "pom.xml").exists():
        found = re.search(
            r"<artifactId>(?:kafka_2.13|zookeeper)</artifactId>\s*<version>([\d.]{3,})<",
            (folder / "pom.xml").read_text(),
        )
    else:
        locked = json.loads((folder / "package-lock.json").read_text())["packages"]
        return str(locked["node_modules/@restatedev/restate-server"]["version"])
    assert found is not None
    return found[1]


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer is not Gateway], ids=lambda peer: peer.name)
def test_the_version_that_is_told_is_the_one_that_is_pinned(peer: type[Peer]) -> None:
    assert peer.version == pinned(peer.name)


def test_each_pinned_package_has_a_checksum() -> None:
    for name in ("zookeeper", "kafka"):
        assert all(
            re.fullmatch(r"[0-9a-f]{64}  \S+\.jar", line)
            for line in (SERVERS / name / "SHA256SUMS").read_text().splitlines()
        )
    locked = json.loads((SERVERS / "restate" / "package-lock.json").read_text())["packages"]
    assert all("integrity" in package for name, package in locked.items() if name)
    for folder in (SERVERS / "etcd", SERVERS / "nats", packages.HERE / "load"):
        assert (folder / "go.sum").read_text()


def test_files_that_differ_are_missing_or_are_not_known_are_named(tmp_path: Path) -> None:
    for name in ("same.jar", "other.jar", "unknown.jar"):
        (tmp_path / name).write_text(name)
    same, other = (hashlib.sha256(text).hexdigest() for text in (b"same.jar", b"else"))
    sums = f"{same}  same.jar\n{other}  other.jar\n{other}  missing.jar\n"
    assert packages.wrong_sums(tmp_path, sums) == ["missing.jar", "other.jar", "unknown.jar"]


SLEEPER = """
import sys, time
from functools import partial
from pathlib import Path
from bench.peers.etcd import Etcd
from bench.peers import packages
packages.go_program = lambda *words: Path("/bin/false")
Etcd.command = lambda self, name: ["sleep", "600"]
Etcd.is_ready = lambda self: True
with Etcd(Path(sys.argv[1])) as peer:
    peer.start()
    print(*peer.node_pids(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["leave", signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_bench(tmp_path: Path, end: signal.Signals | str) -> None:
    command = [sys.executable, "-c", SLEEPER, str(tmp_path / "data")]
    pipe = subprocess.PIPE
    # Whoever runs the tests in the background may have Ctrl-C ignored, and what is ignored is inherited.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, preexec_fn=heard
    ) as bench:
        assert bench.stdin is not None
        assert bench.stdout is not None
        pids = [int(word) for word in bench.stdout.readline().split()]
        assert len(pids) == NODES
        assert all(running(pid) for pid in pids)
        if isinstance(end, signal.Signals):
            bench.send_signal(end)
        else:
            bench.stdin.close()
        bench.wait(30)
    wait_for(lambda: not any(running(pid) for pid in pids), 10, "the nodes end")
    assert (tmp_path / "data").exists() == (end == signal.SIGKILL)


def test_what_starts_behind_the_end_of_the_bench_does_not_run(tmp_path: Path) -> None:
    late = with_its_parent(["touch", str(tmp_path / "ran")])
    subprocess.run(["sh", "-c", '"$@"; true', "sh", *late], check=True)  # the shell stands for who takes orphans
    assert not (tmp_path / "ran").exists()
    subprocess.run(late, check=True)
    assert (tmp_path / "ran").exists()


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_node_that_has_just_started_or_lacks_many_writes_is_not_in_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To kill the leader beside it would be to kill two nodes."""
    gateway = Gateway(tmp_path)
    monkeypatch.setattr(gateway, "cluster", gateway._make_cluster(), raising=False)
    states = {name: {"leader": "n1", "commit": 9_000} for name in gateway.nodes}
    monkeypatch.setattr(gateway.cluster, "leader_now", lambda: "n1")
    monkeypatch.setattr(gateway.cluster, "state", states.get)
    assert gateway.standing() == ("n1", 3)
    states["n2"] = {"leader": "n1", "commit": 9_000 - LAG_MAX - 1}
    assert gateway.standing() == ("n1", 2)
    states["n3"] = {"leader": None, "commit": 9_000}
    assert gateway.standing() == ("n1", 1)
