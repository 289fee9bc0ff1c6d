"""Connections of strangers: places for some, members first, and few words about them in the log."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl

import msgspec
import pytest
import trustme

from oncegate.consensus.config import TlsConfig
from oncegate.consensus.messages import Hello, PeerRefused
from oncegate.consensus.net import connection, listening
from oncegate.consensus.net.strangers import COMPLAINT_S, Complaints, Strangers, address_of, printable
from oncegate.consensus.net.wire import encode_frame
from tests.consensus.cluster import Cluster, until
from tests.consensus.hostile_path import TwoOnAPath

SECRET = b"a secret of the cluster"


class Guest:
    pass


def test_a_newcomer_always_has_a_place_and_the_oldest_loses_its_own():
    strangers = Strangers(places=3, places_of_address=3)
    guests = [Guest() for _ in range(5)]
    losers = [strangers.enter(guest, f"10.0.0.{at}", ()) for at, guest in enumerate(guests)]
    assert losers == [None, None, None, guests[0], guests[1]]
    assert len(strangers) == 3
    strangers.leave(guests[2])
    assert strangers.enter(Guest(), "10.0.0.9", ()) is None


def test_an_address_that_has_its_share_takes_from_itself_alone():
    strangers = Strangers(places=64, places_of_address=2)
    other = Guest()
    strangers.enter(other, "10.0.0.1", ())
    flood = [Guest() for _ in range(100)]
    losers = [strangers.enter(guest, "10.0.0.9", ()) for guest in flood]
    assert losers == [None, None, *flood[:98]]
    assert len(strangers) == 3


def test_members_addresses_go_last_and_first_whoever_has_made_no_step_for_longest():
    strangers = Strangers(places=4, places_of_address=4)
    member, first, second, third = guests = [Guest() for _ in range(4)]
    for guest, host in zip(guests, ("10.0.0.1", "10.0.0.8", "10.0.0.9", "10.0.0.9"), strict=True):
        strangers.enter(guest, host, {"10.0.0.1"})
    strangers.stepped(first)
    strangers.stepped(Guest())
    assert [strangers.enter(Guest(), "10.0.0.1", {"10.0.0.1"}) for _ in range(4)] == [second, third, first, member]


def test_a_network_of_ipv6_counts_as_one_address():
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:2%eth0") != address_of("2001:db8:0:1::1")
    assert address_of("::ffff:10.0.0.1") == address_of("10.0.0.1") != address_of("10.0.0.2")
    assert address_of("node-1.example") == "node-1.example"


def test_what_a_stranger_says_is_one_line_of_bounded_length():
    line = printable("n9\n2026-01-01 [CRITICAL] forged\r\x1b[31m\u202e" + "x" * 10_000)
    assert line.isprintable()
    assert line.isascii() or line.endswith("…")
    assert len(line) < 1000


def test_complaints_are_counted_and_told_once_in_ten_seconds():
    complaints = Complaints()
    lines = [complaints.line("a stranger", "no", at / 100) for at in range(505)]
    assert [line for line in lines if line] == ["a stranger: no"]
    assert complaints.line("n2", "no", 5.0) == "n2: no"
    assert complaints.line("a stranger", "no", COMPLAINT_S) == "a stranger: no (504 more before it)"
    for at in range(1000):
        complaints.line(f"n{at}", "no", 20.0)
    assert len(complaints._subjects) <= 64


# -- a listening node ------------------------------------------------------------------------------------------


async def test_strangers_neither_forge_nor_flood_the_log(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    cluster = Cluster(tmp_path, secrets=(SECRET,))
    await cluster.start("n1")
    forged = "n9\n2026-11-22T00:00:00.000Z [ERROR] node n1 is halting\x1b[2J"
    hello = encode_frame(Hello(3, "test", "n2", "u", forged, bytes(16), 1, [7], 3))
    try:
        for _ in range(200):
            reader, writer = await asyncio.open_connection(*cluster.addresses["n1"])
            writer.write(hello)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        assert len(caplog.messages) == 1
        assert "n9" in caplog.messages[0]
        assert caplog.messages[0].isprintable()
    finally:
        await cluster.stop()


async def test_strangers_that_refuse_in_a_members_name_neither_flood_the_log_nor_are_taken_for_it(tmp_path, caplog):
    caplog.set_level(logging.INFO, "oncegate.consensus.net.transport")
    cluster = Cluster(tmp_path, secrets=(SECRET,))
    await cluster.start("n1")
    hello = encode_frame(Hello(3, "test", "n2", "u", "n1", bytes(16), 1, [7], 3))
    try:
        for at in range(40):
            reader, writer = await asyncio.open_connection(*cluster.addresses["n1"])
            writer.write(hello + encode_frame(PeerRefused(("wiped", "cloned")[at % 2])))
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
        told = [line for line in caplog.messages if "refused by" in line]
        assert len(told) == 2
        assert all("127.0.0.1, which calls itself n2 and has not proved it" in line for line in told)
    finally:
        await cluster.stop()


@contextlib.asynccontextmanager
async def silent_sockets(address, count):
    async def opened():
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(*address)

    sockets = [one for one in await asyncio.gather(*(opened() for _ in range(count))) if one]
    try:
        yield sockets
    finally:
        for _, writer in sockets:
            writer.transport.abort()


@pytest.mark.parametrize("tls", ["", "tls", "tls or not"])
async def test_a_member_comes_in_while_silent_strangers_hold_all_places(tmp_path, monkeypatch, tls):
    """They never time out here, so only their places count; with TLS they do not even begin its handshake."""
    settings = {}
    if tls:
        both = {"insecure_peers": tls == "tls or not"}
        settings = {name: {"tls": certificates(tmp_path, name), **both} for name in ("n1", "n2")}
    cluster = TwoOnAPath(tmp_path, secrets=(SECRET,))
    await cluster.start("n1", **settings.get("n1", {}))
    monkeypatch.setattr(connection, "HANDSHAKE_S", 3600)
    monkeypatch.setattr(listening, "HANDSHAKE_S", 3600)
    try:
        async with silent_sockets(cluster.addresses["n1"], 250) as sockets:
            strangers = cluster.replicas["n1"]._transport._strangers
            await until(lambda: sum(one.at_eof() or one.exception() is not None for one, _ in sockets) >= 210)
            assert len(strangers) == 32
            await cluster.start("n2", **settings.get("n2", {}))
            leader = await cluster.leader()
            await cluster.replicas[leader].propose(b"among strangers")
            assert 31 <= len(strangers) <= 32, "the member gave its place back"
    finally:
        await cluster.stop(*sorted(cluster.replicas, reverse=True))


async def test_a_node_that_has_no_descriptor_left_for_peers_accepts_them_once_it_has(tmp_path, monkeypatch, caplog):
    """Level-triggered readiness would call again and again, and leave nothing of the loop for others."""
    monkeypatch.setattr(listening, "_PAUSE_S", 0.05)
    tries = 0
    accept = socket.socket.accept

    def failing(listening_socket):
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise OSError(errno.EMFILE, "too many open files")
        return accept(listening_socket)

    monkeypatch.setattr(socket.socket, "accept", failing)
    cluster = TwoOnAPath(tmp_path, secrets=(SECRET,))
    await cluster.start()
    try:
        await cluster.leader()
        assert tries > 3
        assert sum("no peer can connect" in one for one in caplog.messages) == 1, "and not once for each attempt"
    finally:
        await cluster.stop()


async def test_a_member_comes_in_while_strangers_that_say_hello_keep_coming(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "HANDSHAKE_S", 3600)
    cluster = TwoOnAPath(tmp_path, secrets=(SECRET,))
    await cluster.start("n1")
    hello = encode_frame(Hello(3, "test", "n2", "u", "n1", bytes(16), 1, [7], 3))
    came = 0

    async def flood():
        nonlocal came
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(*cluster.addresses["n1"])
                try:
                    writer.write(hello)
                    came += 1
                    await reader.read()  # until another one takes the place
                finally:
                    writer.transport.abort()

    floods = [asyncio.create_task(flood()) for _ in range(100)]
    try:
        await until(lambda: came > 300)
        await cluster.start("n2")
        leader = await cluster.leader()
        await cluster.replicas[leader].propose(b"among strangers")
    finally:
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        await cluster.stop("n2" if "n2" in cluster.replicas else "n1")
        await cluster.stop()


AUTHORITY = trustme.CA()


def certificates(directory, name, *, signed_by=AUTHORITY, trusting=(AUTHORITY,)):
    """Write, or write anew, what a node proves itself with."""
    issued = signed_by.issue_cert(name)
    tls = TlsConfig(
        certificate=directory / f"{name}.pem", key=directory / f"{name}.key", authority=directory / f"{name}.ca.pem"
    )
    tls.certificate.write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(tls.key)
    tls.authority.write_bytes(b"".join(one.cert_pem.bytes() for one in trusting))
    return tls


# -- credentials are replaced while nodes run ------------------------------------------------------------------


async def two_talk(cluster, number):
    """The two are connected and commit a command."""
    leader = await cluster.leader()
    await cluster.replicas[leader].propose(b"command %d" % number)
    await until(lambda: all(len(machine.commands) == number for machine in cluster.machines.values()))


async def test_the_secret_is_replaced_while_nodes_run_and_the_old_one_ends(tmp_path):
    new = b"the next secret of it"
    cluster = Cluster(tmp_path, ("n1", "n2"))
    await cluster.start(secrets=(SECRET,))
    try:
        number = 0
        for secrets in ((SECRET, new), (new, SECRET), (new,)):
            for replica in cluster.replicas.values():
                replica.renew_credentials(secrets)
                number += 1
                await two_talk(cluster, number)
        used = {one.secret for replica in cluster.replicas.values() for one in replica._transport._peers.values()}
        assert used == {new}
        await cluster.stop("n2")
        await cluster.start("n2", secrets=(SECRET,))
        complaints = cluster.replicas["n2"]._transport._complaints
        await until(lambda: "n1" in complaints._subjects)
        assert not cluster.replicas["n1"].status().peers["n2"].connected
        for unusable in ((b"short",), (), (new, SECRET, SECRET)):
            with pytest.raises(ValueError, match=r"bytes|secret"):
                cluster.replicas["n1"].renew_credentials(unusable)
    finally:
        await cluster.stop()


async def test_certificates_and_their_authority_are_replaced_while_nodes_run(tmp_path):
    new = trustme.CA()
    names = ("n1", "n2")
    cluster = Cluster(tmp_path, names)
    for name in names:
        await cluster.start(name, tls=certificates(tmp_path, name))
    try:
        number = 0
        for signed_by, trusting in ((AUTHORITY, (AUTHORITY, new)), (new, (AUTHORITY, new)), (new, (new,))):
            for name in names:
                certificates(tmp_path, name, signed_by=signed_by, trusting=trusting)
                cluster.replicas[name].renew_credentials(())
                for one in cluster.replicas[name]._transport._peers.values():
                    one.abort()
                number += 1
                await two_talk(cluster, number)
        (tmp_path / "n1.pem").write_text("broken")
        with pytest.raises(OSError, match=r"n1\.pem"):
            cluster.replicas["n1"].renew_credentials(())
        await cluster.stop("n2")
        await cluster.start("n2", tls=certificates(tmp_path, "n2", trusting=(new,)))
        complaints = cluster.replicas["n1"]._transport._complaints
        await until(lambda: "a stranger" in complaints._subjects)
        assert not cluster.replicas["n1"].status().peers["n2"].connected
    finally:
        await cluster.stop("n2")
        await cluster.stop()


async def test_nodes_with_tls_speak_nothing_else(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    cluster = Cluster(tmp_path, ("n1", "n2"))
    await cluster.start("n1", tls=certificates(tmp_path, "n1"))
    try:
        reader, writer = await asyncio.open_connection(*cluster.addresses["n1"])
        writer.write(encode_frame(Hello(3, "test", "n2", "u", "n1", bytes(16), 1, [7], 3)))
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert not answer or answer[0] == 21, "an alert of TLS"
        writer.close()
        without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        without.load_verify_locations(tmp_path / "n1.ca.pem")
        reader, writer = await asyncio.open_connection(*cluster.addresses["n1"], ssl=without, server_hostname="n1")
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await reader.read() == b""
        writer.transport.abort()
        strangers = cluster.replicas["n1"]._transport._strangers
        await until(lambda: not len(strangers))
        assert len(caplog.messages) == 1
        assert "SSL" in caplog.messages[0]
    finally:
        await cluster.stop()


async def test_a_cluster_begins_with_tls_node_by_node(tmp_path):
    names = ("n1", "n2")
    steps = [{}, {"insecure_peers": True}, {"insecure_peers": False}]
    cluster = Cluster(tmp_path, names, secrets=(SECRET,))
    await cluster.start()
    try:
        for number, settings in enumerate(steps):
            for name in names if number else ():
                await cluster.stop(name)
                await cluster.start(name, tls=certificates(tmp_path, name), **settings)
                leader = await cluster.leader()
                await cluster.replicas[leader].propose(b"step")
        (made,) = cluster.replicas["n1"]._transport._peers.values()
        assert made._has_tls
        assert made._seal is None
        reader, writer = await asyncio.open_connection(*cluster.addresses["n1"])
        writer.write(encode_frame(Hello(3, "test", "n2", "u", "n1", bytes(16), 1, [7], 3)))
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert not answer or answer[0] == 21, "a node that has TLS alone answers nothing else"
        writer.close()
    finally:
        await cluster.stop("n2", "n1")


async def test_a_handshake_that_began_before_the_secret_was_given_up_ends_in_no_connection(tmp_path):
    new = b"the next secret of it"
    cluster = Cluster(tmp_path, ("n1", "n2"))
    await cluster.start(secrets=(SECRET,))
    try:
        await cluster.leader()
        transport = cluster.replicas["n1"]._transport
        late = transport._peers["n2"]
        cluster.replicas["n1"].renew_credentials((new,))
        up = []
        transport._receiver.peer_up = lambda peer_id, epoch: up.append(peer_id)
        transport.established(late, "n2")  # its last message was on the way
        assert not up
    finally:
        await cluster.stop()


async def test_the_address_that_a_member_came_from_is_a_members_where_the_settings_have_a_name(tmp_path):
    cluster = Cluster(tmp_path, ("n1", "n2"))
    await cluster.start(secrets=(SECRET,))
    try:
        await cluster.leader()
        transport = cluster.replicas["n1"]._transport
        for name, member in transport._members.items():
            transport._members[name] = msgspec.structs.replace(member, host=f"{name}.example")
        asked = []
        transport._strangers.enter = lambda connection, host, members: asked.append(set(members))
        transport._came_in("127.0.0.1")
        assert "127.0.0.1" in asked[0]
    finally:
        await cluster.stop()
