"""A process's port is its own also while the process is down."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncegate.gateway.local import ports


def test_ports_differ_and_lie_below_those_that_the_kernel_gives_to_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(50):
        found = ports.free_ports(6)
        assert len(set(found)) == 6
        assert all(ports.LOWEST <= port < lowest for port in found)


def test_ports_that_somebody_listens_on_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    (free,) = ports.free_ports(1)
    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", free))
        taken.listen()
        monkeypatch.setattr(ports, "LOWEST", free)
        monkeypatch.setattr(ports, "ephemeral_from", lambda: free + 1)
        with pytest.raises(OSError, match="no 1 ports are free"):
            ports.free_ports(1)
