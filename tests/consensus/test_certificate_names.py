"""Whose a certificate is: the node's whose id is a name in it, byte for byte; one without names is nobody's."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.net.connection import Connection, Owner
from oncegate.consensus.net.handshake import Acceptor

names = st.sampled_from(("n1", "n2", "N1", "n1.example", "*", "*.n1", "n", ""))
kinds = st.sampled_from(("DNS", "IP Address", "URI", "email"))
fields = st.sampled_from(("commonName", "organizationName", "serialNumber"))
certificates = st.one_of(
    st.none(),
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            "subjectAltName": st.lists(st.tuples(kinds, names), max_size=3).map(tuple),
            "subject": st.lists(st.tuples(st.tuples(fields, names)), max_size=3).map(tuple),
            "issuer": st.lists(st.tuples(st.tuples(fields, names)), max_size=2).map(tuple),
        },
    ),
)
"""As :meth:`ssl.SSLSocket.getpeercert` gives them; None and ``{}`` where it knows none."""


class _Transport:
    """What a connection asks of its transport about TLS."""

    def __init__(self, certificate: dict[str, Any] | None) -> None:
        self._known = {"ssl_object": object(), "peercert": certificate}

    def get_extra_info(self, name: str) -> Any:
        return self._known.get(name)


def _names(certificate: dict[str, Any] | None) -> set[str]:
    found = set()
    for kind, value in (certificate or {}).get("subjectAltName", ()):
        if kind == "DNS":
            found.add(value)
    for ((field, value),) in (certificate or {}).get("subject", ()):
        if field == "commonName":
            found.add(value)
    return found


class _Owner:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()


@pytest.fixture(scope="module")
def owner() -> Any:
    made = _Owner()
    yield made
    made.loop.close()


@given(certificates, st.sampled_from(("n1", "n2")))
@example(None, "n1")
@example({}, "n1")
@example({"subjectAltName": (), "subject": ()}, "n1")
def test_certificate_is_taken_from_the_node_that_it_names_alone(
    owner: Owner, certificate: dict[str, Any] | None, peer_id: str
) -> None:
    connection = Connection(owner, cast(Acceptor, object()))
    connection._transport = _Transport(certificate)  # type: ignore[assignment]
    if peer_id in _names(certificate):
        connection._check_certificate(peer_id)
    else:
        with pytest.raises(ProtocolError, match=f"does not name {peer_id}"):
            connection._check_certificate(peer_id)
