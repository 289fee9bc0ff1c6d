"""A node's port is its own also while the node is down."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncegate.proof.check import ports
from oncegate.proof.check.errors import CheckError


def test_ports_lie_below_those_that_the_kernel_gives_to_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(50):
        first = ports.first_quiet_port(6)
        assert ports.LOWEST <= first < first + 6 <= lowest


def test_ports_that_somebody_listens_on_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.first_quiet_port(3)
    monkeypatch.setattr(ports, "LOWEST", first)
    monkeypatch.setattr(ports, "_ephemeral_from", lambda: first + 4)
    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        with pytest.raises(CheckError, match="no 3 ports in a row"):
            ports.first_quiet_port(3)
