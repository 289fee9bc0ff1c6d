"""Which names a node answers to, and which pages are its own, against a rule that splits names into labels."""

from __future__ import annotations

import itertools

import pytest

from oncegate.gateway.http.admission.hosts import AllowedHosts, is_own_origin

ALLOWED = ("example.org", ".below.net", "Node-1.", "a.b", "192.0.2.7")
NAMES = ("example", "org", "below", "net", "node-1", "a", "b", "localhost")


def serves(names: tuple[str, ...], host: str) -> bool:
    """Compare labels; a name with a dot before it stands for what has labels of its own in front."""
    labels = host.lower().removesuffix(".").split(".")
    for name in (*names, "localhost", ".localhost"):
        known = name.lower().removesuffix(".").split(".")
        if known[0] == "":
            if len(labels) >= len(known) and labels[-len(known) + 1 :] == known[1:]:
                return True
        elif labels == known:
            return True
    return False


@pytest.mark.parametrize("names", [(), ALLOWED, *((name,) for name in ALLOWED)])
def test_host_is_served_by_its_labels_whatever_its_case_its_port_and_its_last_dot(names: tuple[str, ...]) -> None:
    allowed = AllowedHosts(names)
    hosts = [".".join(labels) for count in (1, 2, 3) for labels in itertools.product(NAMES, repeat=count)]
    hosts += ["evilexample.org", "xlocalhost", "xbelow.net", "example.org.evil.net", "-node-1", "a.b.c"]
    served = 0
    for host in hosts:
        expected = serves(names, host)
        for written in (host, host.upper(), f"{host}.", f"{host}:7400", f"{host}.:80"):
            assert allowed.serves(written) is expected, written
        served += expected
    assert served > 1


@pytest.mark.parametrize("names", [(), ("example.org",)])
def test_address_is_no_name_and_what_is_neither_is_refused(names: tuple[str, ...]) -> None:
    allowed = AllowedHosts(names)
    for address in ("127.0.0.1", "192.0.2.9:80", "[::1]", "[::1]:7400", "[fe80::1%25eth0]:80", "[2001:DB8::1]"):
        assert allowed.serves(address), address
    for host in ("", ":80", ".", "[::1", "[nonsense]", "1.2.3", "1.2.3.4.5", "127.0.0.1.evil.net", "x@[::1"):
        assert not allowed.serves(host), host


def test_node_that_answers_to_any_name_answers_to_every_one() -> None:
    allowed = AllowedHosts(("example.org", "*"))
    assert all(allowed.serves(host) for host in ("evil.net", "[::1", "x:80", ""))


def test_page_is_a_nodes_own_by_its_whole_authority_and_a_scheme_of_the_web() -> None:
    authorities = ("node:7400", "NODE:7400", "node", "node:80", "other:7400", "x.node:7400", "")
    for scheme, (origin, host) in itertools.product(
        ("http", "https", "HTTPS", "ftp", "chrome-extension", ""), itertools.product(authorities, repeat=2)
    ):
        expected = scheme.lower() in ("http", "https") and origin.lower() == host.lower()
        assert is_own_origin(f"{scheme}://{origin}", host) is expected, (scheme, origin, host)
    assert not is_own_origin("null", "null")
