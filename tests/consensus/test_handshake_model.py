"""Who is connected with whom, against a rule of one sentence; and what a path, or a stranger, can make of it: nothing.

Two nodes are connected if and only if they are of one cluster, each is the one that the other wants and a known
directory, and the one that dials accepts the secret that the other proves first.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import (
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    Challenge,
    Hello,
    PeerRefused,
    Proof,
    Welcome,
)
from oncegate.consensus.net import handshake
from oncegate.consensus.net.handshake import Acceptor, Credentials, Dialler, Established, PeerRefusedError, Stamp

SECRETS = (b"the old secret of this cluster", b"the new secret of this cluster", b"one of somebody else")
NAMES = ("n1", "n2", "n3")
Path = Callable[[Any], Any]


def node(name: str, *secrets: bytes, **more: Any) -> Credentials:
    stamp = Stamp(f"uuid of {name}", int(name[1:]), (int(name[1:]), 7))
    given = {"cluster_id": "c", "node_id": name, "stamp": stamp, "secrets": secrets, "peer_ids": set(NAMES), **more}
    return Credentials(**given)


def same(message: Any) -> Any:
    return message


def keeping(said: list[Any]) -> Path:
    """Return a path that changes nothing and remembers all."""

    def keep(message: Any) -> Any:
        said.append(message)
        return message

    return keep


def shaken(
    dialler: Dialler, acceptor: Acceptor, hello: Path = same, challenge: Path = same, proof: Path = same
) -> tuple[Established | None, Established | None]:
    """Return what both sides come to; the last arguments are what the path makes of a message."""
    ends: list[Established | None] = [None, None]
    try:
        said, _ = acceptor.receive(hello(dialler.opening()))
        said, _ = dialler.receive(challenge(said))
        said, ends[1] = acceptor.receive(proof(said))
        _, ends[0] = dialler.receive(said)
    except ProtocolError:
        pass
    return ends[0], ends[1]


@pytest.mark.parametrize("seed", range(6))
def test_two_nodes_are_connected_if_each_wants_the_other_and_one_secret_is_both_sides_and_agree_on_all_of_it(
    seed: int,
) -> None:
    dice, connected = random.Random(seed), 0
    for _ in range(150):
        names = dice.sample(NAMES, 2)
        secrets = [dice.sample(SECRETS, dice.choice((0, 1, 1, 2, 2))) for _ in names]
        if dice.random() < 0.5:
            secrets[0] = [*secrets[0], *secrets[1][:1]]
        wanted = [set(NAMES) if dice.random() < 0.8 else set(dice.sample(NAMES, 2)) for _ in names]
        judged = [dice.choice((None,) * 8 + ("wiped", "cloned")) for _ in names]
        clusters = [dice.choice("c" * 12 + "d") for _ in names]
        dials, accepts = (
            node(
                names[at],
                *secrets[at],
                cluster_id=clusters[at],
                peer_ids=wanted[at],
                judge=lambda *_, said=judged[at]: said,
            )
            for at in range(2)
        )
        target = names[1] if dice.random() < 0.9 else dice.choice(NAMES)
        proved = secrets[1][0] if secrets[1] else None
        shall = (
            clusters[0] == clusters[1]
            and target == names[1]
            and (proved in secrets[0] if proved is not None else not secrets[0])
            and names[1] in wanted[0]
            and names[0] in wanted[1]
            and judged == [None, None]
        )
        dialled, accepted = shaken(Dialler(dials, target), Acceptor(accepts))
        assert (dialled is not None, accepted is not None) == (shall, shall)
        if dialled is None or accepted is None:
            continue
        connected += 1
        assert (dialled.peer_id, accepted.peer_id) == (names[1], names[0])
        assert (dialled.stamp, accepted.stamp) == (accepts.stamp, dials.stamp)
        assert dialled.epoch == accepted.epoch
        assert dialled.version == accepted.version
        assert dialled.secret == accepted.secret == proved
        if proved is None:
            assert dialled.keys is accepted.keys is None
        else:
            assert dialled.keys is not None
            assert accepted.keys is not None
            assert dialled.keys == accepted.keys[::-1]
            assert len({*dialled.keys}) == 2
    assert connected > 10


def changes(message: Any) -> Iterator[Any]:
    """Yield a message with each of its fields changed, a little and to what another node would say."""
    for field in msgspec.structs.fields(message):
        value = getattr(message, field.name)
        others: tuple[Any, ...] = ()
        if isinstance(value, bytes):
            others = (b"", bytes([value[0] ^ 1, *value[1:]]), bytes([*value[:-1], value[-1] ^ 1])) if value else (b"x",)
        elif isinstance(value, str):
            others = (value + "x", *(name for name in NAMES if name != value))
        elif isinstance(value, int):
            others = (value + 1, value - 1)
        elif isinstance(value, list):
            others = (value[:-1], [*value, 1], value[::-1])
        for other in others:
            if other != value:
                yield msgspec.structs.replace(message, **{field.name: other})


@pytest.mark.parametrize("which", ["hello", "challenge", "proof"])
def test_no_field_of_any_message_can_be_changed_on_the_way(which: str) -> None:
    def tried(path: Path) -> tuple[Established | None, Established | None]:
        return shaken(Dialler(node("n2", SECRETS[0]), "n1"), Acceptor(node("n1", SECRETS[0])), **{which: path})

    kept: list[Any] = []
    assert None not in tried(keeping(kept))
    for number in range(len(list(changes(kept[0])))):
        changed: list[Any] = []

        def changes_it(message: Any, number: int = number, changed: list[Any] = changed) -> Any:
            changed.append(next(itertools.islice(changes(message), number, None)))
            return changed[0]

        assert tried(changes_it) == (None, None), f"{changed} went through"


def test_a_node_that_is_called_by_anothers_name_is_not_taken_for_it_whatever_the_path_says_to_both() -> None:
    def to_n1(hello: Hello) -> Hello:
        return msgspec.structs.replace(hello, target_id="n1")

    def from_n3(challenge: Challenge) -> Challenge:
        return msgspec.structs.replace(challenge, node_id="n3")

    ends = shaken(Dialler(node("n2", SECRETS[0]), "n3"), Acceptor(node("n1", SECRETS[0])), to_n1, from_n3)
    assert ends == (None, None)


def heard(secret: bytes, dials: str, accepts: str) -> list[Any]:
    """Return the messages of a handshake that went well."""
    said: list[Any] = []
    keep = keeping(said)
    assert None not in shaken(Dialler(node(dials, secret), accepts), Acceptor(node(accepts, secret)), keep, keep, keep)
    return said


def test_whoever_has_heard_any_number_of_handshakes_and_knows_no_secret_is_let_in_nowhere() -> None:
    """It repeats what was said, in any order and to any side, sends back what it gets, or says nothing."""
    pool = [
        message for secret in SECRETS[1:] for pair in (("n2", "n1"), ("n1", "n2")) for message in heard(secret, *pair)
    ]
    pool += heard(SECRETS[0], "n2", "n1") + heard(SECRETS[0], "n1", "n2")
    pool += [Proof(message.mac) for message in pool if isinstance(message, Challenge)]
    pool += [msgspec.structs.replace(message, mac=b"") for message in pool if isinstance(message, Challenge)]
    pool += [
        msgspec.structs.replace(one, mac=two.mac)
        for one in pool
        for two in pool[:18]
        if isinstance(one, Challenge) and isinstance(two, Proof)
    ]
    pool += [Proof(b""), Welcome(), PeerRefused("unknown"), PeerRefused("wiped")]
    for accepted in (SECRETS[:1], SECRETS[:2]):
        for first, second in itertools.product(pool, repeat=2):
            acceptor, dialler = Acceptor(node("n1", *accepted)), Dialler(node("n2", *accepted), "n1")
            for side in (acceptor, dialler):
                with_own: list[Any] = [first, second]
                try:
                    for message in with_own:
                        answer, established = side.receive(message)
                        assert established is None, f"{type(side).__name__} takes {with_own}"
                        if isinstance(answer, Challenge):
                            with_own.append(Proof(answer.mac))
                        assert side is acceptor or not isinstance(answer, Proof), f"it proves itself to {message}"
                except PeerRefusedError:
                    # A dialler refuses in place of its proof, so an acceptor is told this by anybody who says hello.
                    assert side is acceptor
                except ProtocolError:
                    pass


def test_each_message_is_taken_once() -> None:
    dialler, acceptor = Dialler(node("n2", SECRETS[0]), "n1"), Acceptor(node("n1", SECRETS[0]))
    challenge, _ = acceptor.receive(dialler.opening())
    with pytest.raises(ProtocolError):
        acceptor.receive(dialler.opening())
    proof, _ = dialler.receive(challenge)
    with pytest.raises(ProtocolError):
        dialler.receive(challenge)
    assert acceptor.receive(proof)[1] is not None


@pytest.mark.parametrize("reason", ["unknown", "wiped"])
def test_why_a_node_is_refused_is_told_to_who_knows_the_secret_alone(reason: str) -> None:
    def refusing(name: str, secret: bytes) -> Credentials:
        one = node(name, secret)
        return replace(one, peer_ids=set()) if reason == "unknown" else replace(one, judge=lambda *_: "wiped")

    for secret in SECRETS[:2]:
        acceptor = Acceptor(refusing("n1", SECRETS[0]))
        dialler = Dialler(node("n2", SECRETS[0], SECRETS[1]), "n1")
        challenge, _ = acceptor.receive(dialler.opening())
        proof, _ = dialler.receive(challenge)
        if secret == SECRETS[0]:
            assert acceptor.receive(proof) == (PeerRefused(reason), None)  # type: ignore[arg-type]
        else:
            with pytest.raises(ProtocolError, match="secret"):
                acceptor.receive(Proof(bytes(32)))
        caller = Dialler(refusing("n2", SECRETS[0]), "n1")
        challenge, _ = Acceptor(node("n1", secret)).receive(caller.opening())
        if secret == SECRETS[0]:
            assert caller.receive(challenge) == (PeerRefused(reason), None)  # type: ignore[arg-type]
        else:
            with pytest.raises(ProtocolError, match="secret"):
                caller.receive(challenge)


def test_two_connections_that_one_hello_began_are_told_apart() -> None:
    first, again = (Dialler(node("n2", SECRETS[0]), "n1") for _ in range(2))
    again._hello = first._hello
    ends = [shaken(dialler, Acceptor(node("n1", SECRETS[0]))) for dialler in (first, again)]
    (one, _), (other, _) = ends
    assert one is not None
    assert other is not None
    assert one.epoch != other.epoch
    assert one.keys != other.keys


def test_a_secret_that_is_only_accepted_opens_no_node_that_proves_another() -> None:
    """While secrets are replaced, the connection goes on with the one that the acceptor proved, and no other."""
    acceptor = Acceptor(node("n1", *SECRETS[:2]))
    dialler = Dialler(node("n2", *SECRETS[:2]), "n1")
    hello = dialler.opening()
    challenge, _ = acceptor.receive(hello)
    assert isinstance(challenge, Challenge)
    with pytest.raises(ProtocolError, match="secret"):
        acceptor.receive(Proof(handshake._proof(SECRETS[1], "dial", hello, challenge)))


def test_whoever_speaks_a_version_of_ours_is_talked_with_in_the_highest_that_both_speak() -> None:
    """Over all ranges of versions, nonces and clusters: what is refused, and what frames are sealed with."""
    own = Credentials(
        cluster_id="c", node_id="n1", stamp=Stamp("u", 1, ()), secrets=(b"a secret of the cluster",), peer_ids=("n2",)
    )
    nonces = {size: bytes(size) for size in (0, 12, 15, 16, 17)}
    for low, high, cluster, nonce in itertools.product(range(6), range(6), ("c", "d"), nonces.values()):
        said = Challenge(low, cluster, "n2", "u", nonce, b"", 1, [], version_max=high)
        common = set(range(low, high + 1)) & set(range(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX + 1))
        fits = bool(common) and cluster == "c" and len(nonce) == 16
        if fits:
            handshake._check(own, said)
            continue
        with pytest.raises(ProtocolError):
            handshake._check(own, said)
    hello = Hello(3, "c", "n1", "u", "n2", nonces[16], 1, [], version_max=3)
    for ours, theirs, secret in itertools.product((3, 4, 5), (3, 4, 5), (None, b"a secret of the cluster")):
        dialled = msgspec.structs.replace(hello, version_max=ours)
        challenge = Challenge(3, "c", "n2", "u", nonces[16], b"", 1, [], version_max=theirs)
        version = min(ours, theirs)
        assert handshake._version(dialled, challenge) == version
        keys = handshake._keys(secret, dialled, challenge)
        assert (keys is not None) == (secret is not None)
        assert keys is None or keys[0] != keys[1]
        if secret is not None:
            others = [msgspec.structs.replace(challenge, **{name: 0}) for name in ("version", "version_max")]
            assert len({handshake._mac(secret, "dial", dialled, one) for one in (challenge, *others)}) == 3
