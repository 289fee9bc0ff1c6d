"""Replicas over real loopback sockets and real files."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time

import pytest

from oncegate.consensus import (
    CallFailed,
    CommandRefused,
    DirectoryLocked,
    IdentityMismatch,
    LeadershipLost,
    NoLeader,
    NotLeader,
    Overloaded,
    PeerUnavailable,
    Replica,
    Role,
    Stopped,
    Timeout,
    TlsConfig,
)
from oncegate.consensus.config import KIB, MIB
from tests.consensus.cluster import Cluster, Halted, ListMachine, running, until


async def test_a_cluster_of_one_leads_when_start_returns_and_replays_its_log_after_a_restart(tmp_path):
    async with running(tmp_path, ("only",)) as cluster:
        replica = cluster.replicas["only"]
        assert replica.status().ready
        for number in range(50):
            index, command = await replica.propose(b"command %d" % number)
            assert command == b"command %d" % number
        assert await replica.read_index(timeout_s=20) >= index
        await replica.wait_applied(index, timeout_s=20)
        before = cluster.machines["only"].entries
        await cluster.stop("only")
        await cluster.start("only")
        await until(lambda: cluster.machines["only"].entries == before)


@pytest.mark.parametrize(
    ("commands", "settings"),
    [
        ([b"command %d" % number for number in range(200)], {}),
        ([bytes([number]) * (200 * KIB + number) for number in range(10)], {}),
        (
            [b"%04d" % number for number in range(9000)],
            {"command_bytes_max": 64 * KIB, "append_bytes_max": 64 * KIB, "frame_bytes_max": 80 * KIB},
        ),
    ],
    ids=["many", "each larger than an append", "tiny ones that together exceed a frame"],
)
async def test_commands_reach_every_node_whole_and_in_one_order(tmp_path, commands, settings):
    async with running(tmp_path, **settings) as cluster:
        leader = cluster.replicas[await cluster.leader()]
        results = await asyncio.gather(*[leader.propose(command) for command in commands])
        assert [command for _, command in results] == commands
        for name, replica in cluster.replicas.items():
            await replica.wait_applied(results[-1][0], timeout_s=20)
            assert cluster.machines[name].commands == commands
            assert cluster.machines[name].entries == cluster.machines["n1"].entries


async def test_proposals_of_one_loop_iteration_share_one_flush(tmp_path):
    async with running(tmp_path) as cluster:
        leader = cluster.replicas[await cluster.leader()]
        await leader.propose(b"warm up")
        flushes = leader.status().flushes
        await asyncio.gather(*[leader.propose(b"command %d" % number) for number in range(100)])
        assert leader.status().flushes == flushes + 1


async def test_node_that_hears_nobody_grows_older_whether_it_follows_or_leads(tmp_path):
    async with running(tmp_path) as cluster:
        leader, follower, other = await cluster.by_role()
        replicas = cluster.replicas
        await until(lambda: all(replica.age_s() < 10 for replica in replicas.values()), what="everybody has heard")
        cluster.cut(follower)
        await until(lambda: replicas[follower].age_s() > 0.4 > replicas[other].age_s(), what="the follower is old")
        cluster.cut(other)
        await until(lambda: replicas[leader].age_s() > 0.4, what="the leader without followers is old")


async def test_a_follower_refuses_commands_and_names_the_leader(tmp_path):
    async with running(tmp_path) as cluster:
        leader, follower, _ = await cluster.by_role()
        await until(lambda: cluster.replicas[follower].status().leader_id == leader)
        with pytest.raises(NotLeader) as refused:
            cluster.replicas[follower].propose(b"command")
        assert refused.value.leader_id == leader
        assert refused.value.outcome == "not_applied"


async def test_commands_outside_the_bounds_are_refused(tmp_path):
    async with running(tmp_path, ("only",)) as cluster:
        replica = cluster.replicas["only"]
        for command in (b"", b"1", bytes(256 * KIB + 1)):
            with pytest.raises(CommandRefused):
                replica.propose(command)
        with pytest.raises(TypeError):
            replica.propose(bytearray(b"mutable"))
        await replica.propose(bytes(256 * KIB))


async def test_a_full_journal_refuses_and_goes_on_reading(tmp_path):
    async with running(tmp_path, ("only",), journal_bytes_max=3 * MIB) as cluster:
        replica = cluster.replicas["only"]

        async def fill():
            for _ in range(100):
                await replica.propose(bytes(200 * KIB))

        with pytest.raises(Overloaded) as refused:
            await fill()
        assert refused.value.outcome == "not_applied"
        assert replica.status().journal_bytes <= 3 * MIB
        assert await replica.read_index(timeout_s=20) == replica.status().commit_index


async def test_the_end_of_the_leader_starts_an_election_at_once(tmp_path):
    async with running(tmp_path, election_ms_min=50_000, election_ms_max=90_000) as cluster:
        # Far longer than the fast start: only the closed connection can explain a quick election.
        name = await cluster.leader()
        started = time.monotonic()
        await cluster.stop(name)
        await cluster.leader()
        assert time.monotonic() - started < 40.0


async def test_a_partitioned_leader_never_answers_a_linearizable_read(tmp_path):
    async with running(tmp_path) as cluster:
        old = await cluster.leader()
        await cluster.replicas[old].propose(b"before")
        cluster.cut(old)
        assert cluster.replicas[old].status().ready
        with pytest.raises((Timeout, NoLeader)):
            await cluster.replicas[old].read_index(timeout_s=0.3)
        new = await cluster.leader(among=[name for name in cluster.names if name != old])
        index, _ = await cluster.replicas[new].propose(b"after")
        with pytest.raises((Timeout, NoLeader)):
            await cluster.replicas[old].read_index(timeout_s=0.3)
        assert await cluster.replicas[new].read_index(timeout_s=5) >= index
        await until(lambda: cluster.replicas[old].status().role is not Role.LEADER)


async def test_reads_that_come_together_share_rounds(tmp_path):
    async with running(tmp_path) as cluster:
        leader, follower, _ = await cluster.by_role()
        await until(lambda: cluster.replicas[follower].status().leader_id == leader)
        rounds = cluster.replicas[leader]._engine.leading.reads.rounds
        before = rounds._number
        await asyncio.gather(
            *[cluster.replicas[name].read_index(timeout_s=5) for name in (leader, follower) for _ in range(100)]
        )
        assert rounds._number - before <= 6


async def test_a_read_without_a_leader_is_refused(tmp_path):
    cluster = await Cluster(tmp_path).start("n1")
    try:
        with pytest.raises(NoLeader):
            await cluster.replicas["n1"].read_index(timeout_s=20)
        with pytest.raises(Timeout):
            await cluster.replicas["n1"].wait_applied(99, timeout_s=0.05)
    finally:
        await cluster.stop()


async def test_calls_reach_the_peer_and_come_back(tmp_path):
    async with running(tmp_path) as cluster:
        await cluster.leader()
        await until(lambda: all(peer.connected for peer in cluster.replicas["n1"].status().peers.values()))
        assert await cluster.replicas["n1"].call("n2", b"hello", timeout_s=5) == b"n1:hello"
        big = bytes(500 * KIB)
        assert await cluster.replicas["n1"].call("n3", big, timeout_s=5) == b"n1:" + big
        with pytest.raises(CallFailed):
            await cluster.replicas["n1"].call("n2", b"fail", timeout_s=5)
        with pytest.raises(Timeout) as late:
            await cluster.replicas["n1"].call("n2", b"hang", timeout_s=0.05)
        assert late.value.outcome == "unknown"


async def test_a_call_whose_peer_goes_away_is_unknown_and_to_an_absent_peer_not_applied(tmp_path):
    async with running(tmp_path) as cluster:
        await cluster.leader()
        await until(lambda: cluster.replicas["n1"].status().peers["n2"].connected)
        hanging = asyncio.ensure_future(cluster.replicas["n1"].call("n2", b"hang", timeout_s=20))
        await until(lambda: cluster.replicas["n2"]._calls._serving)
        await cluster.stop("n2")
        with pytest.raises(PeerUnavailable) as broken:
            await hanging
        assert broken.value.outcome == "unknown"
        with pytest.raises(PeerUnavailable) as absent:
            await cluster.replicas["n1"].call("n2", b"hello", timeout_s=20)
        assert absent.value.outcome == "not_applied"


async def test_role_changes_are_reported_in_order(tmp_path):
    async with running(tmp_path) as cluster:
        name = await cluster.leader()
        changes = [change for node, change in cluster.roles if node == name]
        assert changes[-1].ready
        assert changes[-1].leader_id == name
        assert [change.term for change in changes] == sorted(change.term for change in changes)
        leading = [change.ready for change in changes if change.role is Role.LEADER]
        assert leading == [False, True] or leading == [True]


async def test_a_directory_serves_one_process_and_one_node_only(tmp_path):
    async with running(tmp_path, ("only",)) as cluster:
        second = Replica(cluster.config("only"), ListMachine())
        with pytest.raises(DirectoryLocked):
            await second.start()
    other = Cluster(tmp_path, ("other",))
    (tmp_path / "only").rename(tmp_path / "other")
    with pytest.raises(IdentityMismatch):
        await other.start()


async def test_a_stopped_replica_refuses_everything(tmp_path):
    cluster = await Cluster(tmp_path, ("only",)).start()
    replica = cluster.replicas["only"]
    future = replica.propose(b"on its way")
    await replica.stop()
    await replica.stop()
    with pytest.raises((LeadershipLost, NotLeader)):
        await future
    with pytest.raises(Stopped):
        replica.propose(b"command")
    with pytest.raises(Stopped):
        await replica.read_index(timeout_s=20)


async def test_an_exception_in_apply_halts_the_node(tmp_path):
    class Broken(ListMachine):
        def apply(self, index, term, command):
            raise ValueError("a bug")

    cluster = Cluster(tmp_path, ("only",))
    replica = Replica(cluster.config("only"), Broken(), halt=cluster.halted)
    await replica.start()
    caught = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: caught.append(context["exception"]))
    replica.propose(b"command")
    await until(lambda: cluster.halts)
    assert "a bug" in cluster.halts[0]
    assert isinstance(caught[0], Halted)
    await replica.stop()


async def test_a_failed_flush_halts_the_node(tmp_path):
    cluster = await Cluster(tmp_path, ("only",)).start()
    replica = cluster.replicas["only"]
    file = replica._engine.log._segments[-1].file

    class Failing:
        def read(self, size, offset):
            return file.read(size, offset)

        def write_blocks(self, blocks, offset):
            file.write_blocks(blocks, offset)

        def sync(self):
            raise OSError("input/output error")

        def close(self):
            file.close()

    replica._engine.log._segments[-1].file = Failing()
    caught = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: caught.append(context["exception"]))
    future = replica.propose(b"command")
    await until(lambda: cluster.halts)
    assert not future.done()
    assert isinstance(caught[0], Halted)
    replica._engine.log._segments[-1].file = file
    await cluster.stop()


async def test_an_idle_leader_tells_its_followers_soon_what_is_committed(tmp_path):
    async with running(tmp_path, heartbeat_ms=30_000, election_ms_min=100_000, election_ms_max=200_000) as cluster:
        leader = cluster.replicas[await cluster.leader()]
        index, _ = await leader.propose(b"the only command")
        started = time.monotonic()
        for replica in cluster.replicas.values():
            await replica.wait_applied(index, timeout_s=40)
        assert time.monotonic() - started < 20.0


async def test_peers_over_mutual_tls_are_who_their_certificate_says(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make certificates")
    make = Certificates(tmp_path / "tls")
    settings = {name: make.node(name) for name in ("n1", "n2")}
    cluster = Cluster(tmp_path, ("n1", "n2"))
    for name in cluster.names:
        await cluster.start(name, tls=settings[name])
    try:
        leader = cluster.replicas[await cluster.leader()]
        await leader.propose(b"encrypted")
        await cluster.stop("n2")
        await cluster.start("n2", tls=make.node("somebody-else"))
        transport = cluster.replicas["n1"]._transport
        refused = []
        admit = transport.admit
        transport.admit = lambda connection: refused.append(connection) or admit(connection)
        await until(lambda: any(connection.closed.done() for connection in refused))
        assert not cluster.replicas["n1"].status().peers["n2"].connected
    finally:
        # Whoever dials stops first: a handshake that is under way ends at both ends.
        await cluster.stop("n2")
        await until(lambda: not cluster.replicas["n1"]._transport._strangers)
        await cluster.stop("n1")


class Certificates:
    """A throw-away authority."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir()
        self.openssl("req", "-x509", "-nodes", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")

    def openssl(self, *arguments):
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1") if "-keyout" in arguments else ()
        subprocess.run(["openssl", *arguments, *key], cwd=self.directory, check=True, capture_output=True)

    def node(self, name):
        self.openssl("req", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
        at = self.directory
        return TlsConfig(certificate=at / f"{name}.pem", key=at / f"{name}.key", authority=at / "ca.pem")
