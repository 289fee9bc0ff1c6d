"""Frames of nodes that share a secret, on a path that others hold: what they change, repeat or reorder is refused."""

from __future__ import annotations

import contextlib
import logging

import msgspec
import pytest

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import Append, CallRequest, Challenge, Hello, PeerRefused
from oncegate.consensus.messages import encode as encode_message
from oncegate.consensus.net import handshake
from oncegate.consensus.net.sealing import Seal
from oncegate.consensus.net.wire import FrameReader, encode_frame
from tests.consensus.cluster import until
from tests.consensus.hostile_path import CLEAR, SEALED, HostilePath, TwoOnAPath, mended, message

SECRET = b"a secret of the cluster"
KEY, OTHER = b"k" * 32, b"o" * 32
SENT = [CallRequest(number, b"payload %d" % number) for number in range(3)]


def sealed(messages=SENT, key=KEY):
    seal = Seal(key)
    return [encode_frame(message, seal) for message in messages]


def read(frames, key=KEY):
    reader = FrameReader(1 << 20)
    reader.seal = Seal(key)
    got = []
    with contextlib.suppress(ProtocolError):
        for frame in frames:
            reader.space()[: len(frame)] = frame
            got += reader.all_received(len(frame))
    return got


def test_sealed_frames_come_as_they_were_sent_whole_or_cut():
    assert read(sealed()) == SENT
    stream = b"".join(sealed())
    for cut in (1, 7, 19, 20, 21, 33):
        assert read([stream[at : at + cut] for at in range(0, len(stream), cut)]) == SENT


def test_a_changed_bit_anywhere_in_a_sealed_frame_ends_the_connection_or_waits_for_more():
    (frame,) = sealed(SENT[:1])
    for bit in range(len(frame) * 8):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        assert read([bytes(changed)]) == []


@pytest.mark.parametrize(
    ("order", "before"),
    [((0, 0, 1), 1), ((0, 2, 1), 1), ((1, 0), 0), ((0, 2), 1), ((0, 1, 2, 0), 3)],
    ids=["repeated", "swapped", "first two swapped", "left out", "replayed later"],
)
def test_frames_in_another_order_than_they_were_sent_are_refused(order, before):
    frames = sealed()
    assert read([frames[at] for at in order]) == SENT[:before]


def test_a_frame_of_another_connection_or_of_the_other_direction_is_refused():
    assert read(sealed(key=OTHER)) == []
    first, second = shaken(), shaken()
    keys = {first[0].keys, first[1].keys, second[0].keys, second[1].keys}
    assert len({one for pair in keys for one in pair}) == 4
    assert first[0].keys == first[1].keys[::-1]


# -- versions --------------------------------------------------------------------------------------------------


def credentials(node_id, *secrets):
    return handshake.Credentials(
        cluster_id="test",
        node_id=node_id,
        stamp=handshake.Stamp("u", 1, (7,)),
        secrets=secrets or (SECRET,),
        peer_ids={"n1", "n2"},
    )


def same(message):
    return message


def shaken(hello=same, challenge=same, *, dialler=None, acceptor=None):
    """Both sides' results; the arguments are what the path makes of a message."""
    dialler = dialler or handshake.Dialler(credentials("n2"), "n1")
    acceptor = acceptor or handshake.Acceptor(credentials("n1"))
    answer, _ = acceptor.receive(hello(dialler.opening()))
    proof, _ = dialler.receive(challenge(answer))
    welcome, accepted = acceptor.receive(proof)
    _, dialled = dialler.receive(welcome)
    return dialled, accepted


def without_offer(said):
    return msgspec.structs.replace(said, version_max=1)


def lower(said):
    return msgspec.structs.replace(said, version=1)


@pytest.mark.parametrize("strip", [without_offer, lower])
@pytest.mark.parametrize("both", [False, True])
def test_the_offer_of_sealed_frames_cannot_be_taken_away_on_the_way(strip, both):
    with pytest.raises(ProtocolError):
        shaken(strip, strip if both else same)
    with pytest.raises(ProtocolError):
        shaken(same, strip)


def test_what_is_said_of_versions_is_covered_by_the_proof():
    def higher(said):
        return msgspec.structs.replace(said, version_max=9)

    with pytest.raises(ProtocolError, match="secret"):
        shaken(higher)


def test_a_node_that_speaks_no_common_version_is_refused_and_the_versions_are_named():
    def ahead(said):
        return msgspec.structs.replace(said, version=8, version_max=9)

    with pytest.raises(ProtocolError, match="versions 8 to 9, this node 3 to 3"):
        shaken(ahead)


def test_a_refusal_of_who_has_not_proved_the_secret_is_not_taken_for_the_members():
    with pytest.raises(ProtocolError, match="unexpected message"):
        handshake.Dialler(credentials("n2"), "n1").receive(PeerRefused("wiped"))


# -- replacing the secret --------------------------------------------------------------------------------------

NEW = b"the next secret of it"


@pytest.mark.parametrize(
    ("dialler", "acceptor"),
    [
        ((SECRET,), (SECRET, NEW)),
        ((SECRET, NEW), (SECRET,)),
        ((SECRET, NEW), (NEW, SECRET)),
        ((NEW, SECRET), (SECRET, NEW)),
        ((NEW,), (NEW, SECRET)),
        ((NEW, SECRET), (NEW,)),
    ],
)
def test_neighbouring_steps_of_a_replacement_talk_with_each_other(dialler, acceptor):
    sides = handshake.Dialler(credentials("n2", *dialler), "n1"), handshake.Acceptor(credentials("n1", *acceptor))
    dialled, accepted = shaken(dialler=sides[0], acceptor=sides[1])
    assert dialled.secret == accepted.secret == acceptor[0]
    assert dialled.keys == accepted.keys[::-1]


def test_a_secret_is_in_no_representation_of_what_holds_it():
    dialled, _ = shaken()
    assert repr(SECRET) not in repr((dialled, credentials("n1")))
    assert "keys" not in repr(dialled)


# -- a proxy on the path ---------------------------------------------------------------------------------------


class Once:
    """Attacks one append of the dialler's or of the other direction, and lets all else pass."""

    def __init__(self, change):
        self.change, self.done, self.held = change, False, {}

    def __call__(self, number, header, body, dialled):
        if self.held.get(dialled) is not None:
            held, self.held[dialled] = self.held[dialled], None
            return header + body + held
        if self.done or number < 2 or b"pay 0100" not in body or not isinstance(message(body), Append):
            return None
        self.done = True
        if self.change == "swap":
            self.held[dialled] = header + body
            return b""
        if self.change == "replay":
            return (header + body) * 2
        return mended(header, body.replace(b"pay 0100", b"pay 9999"))


async def paid_on(tmp_path, attack, *, header_bytes, secrets=(SECRET,)):
    """What the follower applied of one command, on a path with ``attack``; and the path."""
    cluster = TwoOnAPath(tmp_path, secrets=secrets)
    async with HostilePath(cluster.addresses["n1"], attack, header_bytes=header_bytes) as cluster.path:
        await cluster.start()
        try:
            leader = await cluster.leader()
            await cluster.replicas[leader].propose(b"pay 0100")
            await cluster.replicas[leader].propose(b"next")
            follower = cluster.machines["n2" if leader == "n1" else "n1"]
            await until(lambda: len(follower.commands) == 2)
            return follower.commands, cluster.path
        finally:
            await cluster.stop()


@pytest.mark.parametrize("change", ["change", "replay", "swap"])
async def test_a_frame_that_the_path_changes_repeats_or_reorders_ends_the_connection(tmp_path, caplog, change):
    attack = Once(change)
    commands, path = await paid_on(tmp_path, attack, header_bytes=SEALED)
    assert attack.done
    assert commands == [b"pay 0100", b"next"]
    assert path.connections == 2
    refused = [one for one in caplog.messages if "closes the connection" in one]
    assert len(refused) == 1
    assert "changed, left out or sent again" in refused[0]


async def test_the_same_change_goes_through_between_nodes_that_do_not_seal(tmp_path, monkeypatch):
    """The attack is real: without the seal the follower applies another amount, and nobody notices."""
    monkeypatch.setattr(handshake, "_keys", lambda secret, hello, challenge: None)
    commands, path = await paid_on(tmp_path, Once("change"), header_bytes=CLEAR)
    assert commands == [b"pay 9999", b"next"]
    assert path.connections == 1


@pytest.mark.parametrize("strip", [without_offer, lower])
async def test_a_path_that_takes_the_offer_away_keeps_nodes_apart(tmp_path, caplog, strip):
    def attack(number, header, body, dialled):
        said = message(body) if number == 0 else None
        return mended(header, encode_message(strip(said))) if isinstance(said, Hello | Challenge) else None

    caplog.set_level(logging.WARNING)
    cluster = TwoOnAPath(tmp_path, secrets=(SECRET,))
    async with HostilePath(cluster.addresses["n1"], attack, header_bytes=CLEAR) as cluster.path:
        await cluster.start()
        try:
            await until(lambda: cluster.path.connections >= 3)
            assert not any(peer.connected for one in cluster.replicas.values() for peer in one.status().peers.values())
            assert any("closes the connection" in one for one in caplog.messages)
        finally:
            await cluster.stop()
