"""Frames, handshake, and what a stranger can do to a listening node: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import Ack, Append, CallRequest, Hello, PeerRefused, Proof, Welcome
from oncegate.consensus.net.handshake import Acceptor, Credentials, Dialler, PeerRefusedError, Stamp
from oncegate.consensus.net.sealing import Seal
from oncegate.consensus.net.wire import FrameReader, encode_frame
from tests.consensus.cluster import Cluster, until

SECRET = b"a secret of the cluster"


def fed(reader, data):
    while data:
        space = reader.space()
        assert len(space) > 0
        part, data = data[: len(space)], data[len(space) :]
        space[: len(part)] = part
        yield from reader.received(len(part))


def feed(reader, data):
    return list(fed(reader, data))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=20), st.integers(1, 5000))
def test_messages_come_out_whole_however_the_stream_is_cut(payloads, cut):
    sent = [CallRequest(number, payload) for number, payload in enumerate(payloads)]
    stream = b"".join(map(encode_frame, sent))
    reader = FrameReader(1 << 20)
    got = []
    for start in range(0, len(stream), cut):
        got += feed(reader, stream[start : start + cut])
    assert got == sent


def test_a_frame_larger_than_the_buffer_grows_it_and_gives_it_back():
    reader = FrameReader(8 << 20)
    big = Append(1, 2, 3, 4, [(bytes(5 << 20), 3, 1)])
    assert feed(reader, encode_frame(big) + encode_frame(Ack(1, 2, True, 3, 4))) == [big, Ack(1, 2, True, 3, 4)]
    assert len(reader._view) <= 4 << 20


def test_an_oversized_frame_is_refused_before_it_is_read():
    with pytest.raises(ProtocolError, match="frame of"):
        feed(FrameReader(1000), struct.pack("<II", 1001, 0))


def test_the_bound_may_be_raised_between_two_frames_of_one_read():
    reader = FrameReader(100)
    stream = encode_frame(Welcome()) + encode_frame(CallRequest(1, bytes(5000)))
    reader.space()[: len(stream)] = stream
    got = []
    for message in reader.received(len(stream)):
        got.append(message)
        reader.frame_bytes_max = 10_000
    assert got == [Welcome(), CallRequest(1, bytes(5000))]


def test_a_changed_bit_anywhere_is_refused_or_waits_for_more():
    frame = encode_frame(Append(1, 2, 3, 4, [(b"payload", 3, 1)]))
    for bit in range(len(frame) * 8):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(ProtocolError):
            assert feed(FrameReader(1 << 20), bytes(changed)) == []


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=8, max_size=400))
def test_garbage_never_becomes_a_message(data):
    with contextlib.suppress(ProtocolError):
        assert feed(FrameReader(4096), data) == []


def credentials(node_id="n2", *, cluster_id="test", secrets=(SECRET,), judge=lambda peer_id, stamp: None):
    return Credentials(
        cluster_id=cluster_id,
        node_id=node_id,
        stamp=Stamp("u", 1, (7,)),
        secrets=secrets,
        peer_ids={"n1", "n2", "n3"},
        judge=judge,
    )


def shake(dialler, acceptor):
    challenge, _ = acceptor.receive(dialler.opening())
    proof, _ = dialler.receive(challenge)
    welcome, seen_by_acceptor = acceptor.receive(proof)
    _, seen_by_dialler = dialler.receive(welcome)
    return seen_by_dialler, seen_by_acceptor


def test_both_sides_agree_on_who_and_on_the_epoch():
    first = shake(Dialler(credentials("n2"), "n1"), Acceptor(credentials("n1")))
    second = shake(Dialler(credentials("n2"), "n1"), Acceptor(credentials("n1")))
    assert (first[0].peer_id, first[1].peer_id) == ("n1", "n2")
    assert first[0].epoch == first[1].epoch != second[0].epoch


@pytest.mark.parametrize(
    "dialler",
    [
        credentials(cluster_id="other"),
        credentials(secrets=(b"another secret, wrong",)),
        credentials(secrets=()),
        credentials("stranger"),
    ],
)
def test_the_wrong_cluster_secret_or_member_is_refused(dialler):
    with pytest.raises(ProtocolError):
        shake(Dialler(dialler, "n1"), Acceptor(credentials("n1")))


def test_a_dialler_refuses_an_acceptor_without_the_secret_before_proving_its_own():
    dialler = Dialler(credentials("n2"), "n1")
    challenge, _ = Acceptor(credentials("n1", secrets=(b"not the right secret",))).receive(dialler.opening())
    with pytest.raises(ProtocolError, match="secret"):
        dialler.receive(challenge)


def test_a_hello_for_another_node_is_refused():
    with pytest.raises(ProtocolError, match="wants 'n3'"):
        Acceptor(credentials("n1")).receive(Dialler(credentials("n2"), "n3").opening())


def test_a_replayed_handshake_is_refused():
    recorded = Dialler(credentials("n2"), "n1")
    first = Acceptor(credentials("n1"))
    challenge, _ = first.receive(recorded.opening())
    proof, _ = recorded.receive(challenge)
    assert first.receive(proof)[1] is not None
    second = Acceptor(credentials("n1"))
    second.receive(recorded.opening())
    with pytest.raises(ProtocolError, match="secret"):
        second.receive(proof)


@pytest.mark.parametrize("message", [Welcome(), Proof(b""), Append(9, 9, 9, 9, []), CallRequest(1, b"x")])
def test_nothing_but_a_hello_is_taken_first(message):
    with pytest.raises(ProtocolError):
        Acceptor(credentials("n1")).receive(message)


# -- whoever has proved himself is told why he is refused ------------------------------------------------------


def refuse(peer_id, stamp):
    return "wiped"


def test_an_acceptor_says_why_it_refuses_a_caller_that_has_proved_itself():
    dialler, acceptor = Dialler(credentials("n2"), "n1"), Acceptor(credentials("n1", judge=refuse))
    challenge, _ = acceptor.receive(dialler.opening())
    proof, _ = dialler.receive(challenge)
    refused, established = acceptor.receive(proof)
    assert (refused, established) == (PeerRefused("wiped"), None)
    with pytest.raises(PeerRefusedError, match="remove the member"):
        dialler.receive(refused)


def test_a_dialler_says_why_it_refuses_and_proves_nothing():
    dialler, acceptor = Dialler(credentials("n2", judge=refuse), "n1"), Acceptor(credentials("n1"))
    challenge, _ = acceptor.receive(dialler.opening())
    refused, established = dialler.receive(challenge)
    assert (refused, established) == (PeerRefused("wiped"), None)
    with pytest.raises(PeerRefusedError):
        acceptor.receive(refused)


def test_a_caller_that_is_no_member_is_told_so_only_once_it_has_proved_the_secret():
    stranger, acceptor = Dialler(credentials("n9"), "n1"), Acceptor(credentials("n1"))
    challenge, _ = acceptor.receive(stranger.opening())
    proof, _ = stranger.receive(challenge)
    assert acceptor.receive(proof) == (PeerRefused("unknown"), None)


@pytest.mark.parametrize("changed", [Stamp("forged", 1, (7,)), Stamp("u", 9, (7,)), Stamp("u", 1, (8,))])
def test_what_a_caller_says_of_its_directory_cannot_be_changed_on_the_way(changed):
    dialler, acceptor = Dialler(credentials("n2"), "n1"), Acceptor(credentials("n1"))
    said = Hello(*msgspec.structs.astuple(dialler.opening()))
    hello = msgspec.structs.replace(
        said, node_uuid=changed.node_uuid, incarnation=changed.incarnation, boots=list(changed.boots)
    )
    challenge, _ = acceptor.receive(hello)
    with pytest.raises(ProtocolError, match="secret"):
        dialler.receive(challenge)


# -- a listening node ------------------------------------------------------------------------------------------


async def closed_by_peer(reader):
    async with asyncio.timeout(60):
        try:
            return await reader.read() is not None
        except ConnectionError:
            return True


async def test_a_listening_node_closes_on_garbage_and_stays_up(tmp_path):
    rng = random.Random(1)
    hello = Hello(3, "test", "n2", "u", "n1", bytes(16), 1, [7], 3)
    attacks = [
        rng.randbytes(3000),
        struct.pack("<II", 1 << 31, 0),
        encode_frame(Append(99, 1, 0, 1, [(b"injected", 2, 99)])),
        encode_frame(CallRequest(1, b"payload")),
        encode_frame(Hello(3, "another", "n2", "u", "n1", bytes(16), 1, [7], 3)),
        encode_frame(Hello(4, "test", "n2", "u", "n1", bytes(16), 1, [7], 5)),
        encode_frame(hello) + encode_frame(Proof(bytes(32))),
        encode_frame(hello) + encode_frame(hello),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    cluster = Cluster(tmp_path, secrets=(SECRET,))
    await cluster.start("n1")
    try:
        for attack in attacks:
            reader, writer = await asyncio.open_connection(*cluster.addresses["n1"])
            writer.write(attack)
            assert await closed_by_peer(reader)
            writer.close()
        status = cluster.replicas["n1"].status()
        assert not any(peer.connected for peer in status.peers.values())
        assert status.last_index == 1
        await cluster.start("n2")
        assert await cluster.leader() in ("n1", "n2")
    finally:
        await cluster.stop()


async def test_nodes_with_different_secrets_do_not_form_a_cluster(tmp_path):
    cluster = Cluster(tmp_path, ("n1", "n2"))
    await cluster.start("n1", secrets=(SECRET,))
    await cluster.start("n2", secrets=(b"quite another secret",))
    try:
        transport = cluster.replicas["n1"]._transport
        seen = []
        admit = transport.admit
        transport.admit = lambda connection: seen.append(connection) or admit(connection)
        await until(lambda: sum(connection.closed.done() for connection in seen) >= 2)
        for replica in cluster.replicas.values():
            assert not any(peer.connected for peer in replica.status().peers.values())
    finally:
        await cluster.stop()


async def test_a_new_connection_replaces_the_old_one_and_its_messages(tmp_path):
    cluster = Cluster(tmp_path, secrets=(SECRET,))
    await cluster.start("n1")
    received = []
    replica = cluster.replicas["n1"]
    said = replica._inbound.peer_said
    replica._inbound.peer_said = lambda peer, epoch, messages: received.append(epoch) or said(peer, epoch, messages)
    try:

        async def dial():
            reader, writer = await asyncio.open_connection(*cluster.addresses["n1"])
            dialler = Dialler(credentials("n2"), "n1")
            frames = FrameReader(4096)
            writer.write(encode_frame(dialler.opening()))
            while True:
                # One by one: behind the last message of the handshake the same bytes may hold sealed ones.
                for message in fed(frames, await reader.read(4096)):
                    answer, established = dialler.receive(message)
                    if answer is not None:
                        writer.write(encode_frame(answer))
                    if established is not None:
                        return reader, writer, established

        old_reader, old_writer, old = await dial()
        _, new_writer, new = await dial()
        assert await closed_by_peer(old_reader)
        for writer, made in ((old_writer, old), (new_writer, new)):
            writer.write(encode_frame(Ack(1, made.epoch, True, 1, 1), Seal(made.keys.sending)))
        await until(lambda: received)
        assert set(received) == {new.epoch}
        old_writer.close()
        new_writer.close()
    finally:
        await cluster.stop()


def test_a_sealed_frame_is_copied_once_and_its_message_keeps_nothing_of_the_buffer():
    key, size = bytes(32), 1 << 20
    sent = Append(1, 2, 3, 4, [(b"c" * size, 3, 1)])
    reader = FrameReader(8 << 20)
    reader.seal = Seal(key)
    frame = encode_frame(sent, Seal(key))
    reader._view = memoryview(bytearray(frame))
    tracemalloc.start()
    (got,) = reader.received(len(frame))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * size
    reader._view[:] = bytes(len(frame))
    assert got == sent
