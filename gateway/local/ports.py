"""Free ports of the loopback that stay free while their process is down.

A port from the kernel's ephemeral range, which a bind to port 0 gives, may be taken by any outgoing connection of this
machine between a kill and the restart: the node then cannot start, and a run would call that a defect. So ports are
drawn from below that range.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from pathlib import Path
from typing import Final

LOWEST: Final = 10_000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_FROM: Final = 32_768
"""Where the kernel's range begins unless it says otherwise."""
_TRIES_A_PORT: Final = 50
# Not a seeded generator: two runs of one seed at the same time want different ports.
_dice = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on now, all different, none in the ephemeral range.

    Raises:
        OSError: EADDRINUSE, too few are free.
    """
    found: set[int] = set()
    top = ephemeral_from()
    for _ in range(_TRIES_A_PORT * count if top > LOWEST else 0):
        if len(found) == count:
            break
        port = _dice.randrange(LOWEST, top)
        if is_free("127.0.0.1", port):
            found.add(port)
    if len(found) < count:
        raise OSError(errno.EADDRINUSE, f"no {count} ports are free between {LOWEST} and {top}")
    return _dice.sample(sorted(found), count)


def is_free(host: str, port: int) -> bool:
    """Whether nobody listens there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def ephemeral_from() -> int:
    """Return the lowest port that the kernel gives to outgoing connections."""
    with contextlib.suppress(OSError, ValueError):
        return int(_RANGE.read_text().split()[0])
    return _EPHEMERAL_FROM
