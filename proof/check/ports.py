"""Ports that stay ours while their node is down.

A port from the kernel's ephemeral range, which a bind to port 0 gives, may be taken by any outgoing connection of this
machine between a kill and the restart: the node then ends by itself, and a run would call that a defect.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

from oncegate.proof.check.errors import CheckError

LOWEST: Final = 10_000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_FROM: Final = 32_768
"""Where the kernel's range begins unless it says otherwise."""
_TRIES: Final = 200


def first_quiet_port(count: int) -> int:
    """Return the first of ``count`` ports of the loopback in a row that are free now, and not in the ephemeral range.

    Raises:
        CheckError: there are none.
    """
    top = _ephemeral_from()
    # Not from the run's seed: two runs at the same time with one seed want different ports.
    for _ in range(_TRIES if top - count > LOWEST else 0):
        first = random.randrange(LOWEST, top - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise CheckError(f"no {count} ports in a row are free between {LOWEST} and {top}")


def _ephemeral_from() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(_RANGE.read_text().split()[0])
    return _EPHEMERAL_FROM


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
