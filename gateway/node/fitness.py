"""Whether settings fit each other, and the machine: what would fail later is said before a node starts. Pure.

Owns :data:`CHECKS`, one a contradiction: a new bound adds a line there. An error keeps a node from starting, because it
would stop serving, or lose what it is for, at a moment that nobody chose; a warning says that a bound has no effect, or
leaves less than it promises. Each names the settings and what to set. Must not look at the machine itself:
:mod:`oncegate.gateway.node.host` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from oncegate.rifl.session import SESSIONS_MAX

if TYPE_CHECKING:
    from oncegate.gateway.node.settings import Settings

_MIB: Final = 2**20
DESCRIPTORS_RESERVED: Final = 512
"""File descriptors left for journal, state, segments and peers."""
CONNECTIONS_MIN: Final = 8
"""With descriptors for fewer connections than the least value of ``connections_max``, no node starts."""
SEGMENT_BYTES: Final = 32 * _MIB
"""``journal_segment_bytes`` of :class:`oncegate.consensus.config.ReplicaConfig`, and what it calls
``save_log_bytes_max``; a test holds them together."""
JOURNAL_BYTES_MAX: Final = 256 * 1024 * _MIB
DISK_BYTES_FIXED: Final = 5 * SEGMENT_BYTES
"""On the disk beside ``log_kept_bytes``: the segment in use, the next one, one that is not needed any more, the log
between two saves, and the state of a node with hardly any rows."""
MEMORY_BYTES_BASE: Final = 192 * _MIB
"""Program, libraries, and the buffers of connections and peers."""
LOG_MEMORY_BYTES: Final = 128 * _MIB
"""Newest log, and commands that wait for it."""
HELD_BODIES_BYTES: Final = 128 * _MIB
ADDRESS_SPACE_MIN: Final = 2 * 1024 * _MIB
"""A thread maps 72 MiB of it, most of which it never uses, and a node has dozens."""
ELECTION_MS: Final = 1_500


class Host(NamedTuple):
    """Facts of the machine; None: not known, or no bound."""

    descriptors_max: int | None = None
    """To how many this process may raise its limit."""
    disk_bytes: int | None = None
    """Of the file system of the data directory."""
    disk_free_bytes: int | None = None
    is_new: bool = False
    """There is no data directory yet."""
    memory_bytes: int | None = None
    """Of the machine, or of this process's container."""
    address_space_bytes: int | None = None
    """``ulimit -v``."""


class Finding(NamedTuple):
    """What is wrong, and what to do about it."""

    text: str
    is_error: bool = False


Check = Callable[["Settings", Host], Finding | None]


def watches_of(connections: int) -> int:
    """Return how many of so many connections watches may have: requests have to get in beside them."""
    return connections * 3 // 4


def _mib(size: float) -> str:
    return f"{size / _MIB:.0f} MiB"


def shares_of_connections(settings: Settings, host: Host) -> Finding | None:
    """Each watch, each request and each body on its way has a connection of its own."""
    places = _places(settings, host)
    most = max(1, watches_of(places))
    # Watches get their share at most, whatever the setting says.
    above = {"watchers_max": most + 1, "receiving_max": places, "tenant_requests_max": places}
    given = [f"{name} ({getattr(settings, name)})" for name in above if getattr(settings, name) >= above[name]]
    if not given:
        return None
    verb = "are no bounds" if len(given) > 1 else "is no bound"
    return Finding(
        f"{', '.join(given)} {verb}: there are {places} connections, and each takes one; set "
        f"{most} or less, or more connections_max"
    )


def _places(settings: Settings, host: Host) -> int:
    if host.descriptors_max is None:
        return settings.connections_max
    return min(settings.connections_max, max(0, host.descriptors_max - DESCRIPTORS_RESERVED))


def descriptors(settings: Settings, host: Host) -> Finding | None:
    """Each connection is a descriptor; without a free one nothing is accepted, and the journal gets no next file."""
    if host.descriptors_max is None or _places(settings, host) >= settings.connections_max:
        return None
    places, wanted = _places(settings, host), settings.connections_max + DESCRIPTORS_RESERVED
    way_out = f"raise it to {wanted} (ulimit -n, LimitNOFILE= of systemd)"
    bound = f"this process may open {host.descriptors_max} files (ulimit -n), of which {DESCRIPTORS_RESERVED} are for"
    if places < CONNECTIONS_MIN:
        return Finding(f"{bound} journal, state and peers: too few are left for connections; {way_out}", True)
    return Finding(
        f"{bound} journal, state and peers: it takes {places} connections; {way_out}, or set connections_max"
    )


def disk(settings: Settings, host: Host) -> Finding | None:
    """A disk that the log alone fills is full for good: a save, which would free the log, needs room itself."""
    kept = max(SEGMENT_BYTES, settings.log_kept_bytes)
    needed, least = DISK_BYTES_FIXED + kept, DISK_BYTES_FIXED + SEGMENT_BYTES
    if host.disk_bytes is not None and host.disk_bytes < least:
        text = f"the file system of {settings.data_dir} has {_mib(host.disk_bytes)}, and a node needs {_mib(least)}"
        return Finding(f"{text} with log_kept_bytes = 0, before it holds any rows: set data_dir to a larger one", True)
    if host.disk_bytes is not None and host.disk_bytes < needed:
        most = host.disk_bytes - DISK_BYTES_FIXED
        text = f"the file system of {settings.data_dir} has {_mib(host.disk_bytes)}, and with log_kept_bytes ="
        return Finding(f"{text} {_mib(kept)} the log alone fills it: set log_kept_bytes to {most} or less", True)
    if host.is_new and host.disk_free_bytes is not None and host.disk_free_bytes < needed:
        return Finding(
            f"{_mib(host.disk_free_bytes)} are free in the file system of {settings.data_dir}, and a node takes "
            f"{_mib(needed)} before it holds any rows: make room, or set a lower log_kept_bytes ({_mib(kept)})"
        )
    return None


def kept_log(settings: Settings, host: Host) -> Finding | None:
    """The journal has a bound of its own, which leaves half of it for what is not saved yet."""
    if settings.log_kept_bytes <= JOURNAL_BYTES_MAX // 2:
        return None
    return Finding(f"log_kept_bytes has no effect beyond {JOURNAL_BYTES_MAX // 2}, half of what a journal may have")


def memory(settings: Settings, host: Host) -> Finding | None:
    """What is filled in any operation, and what hostile clients can fill as well."""
    if host.memory_bytes is None:
        return None
    usual = MEMORY_BYTES_BASE + LOG_MEMORY_BYTES + settings.state_cache_bytes + settings.history_bytes_max
    most = usual + HELD_BODIES_BYTES + settings.receiving_bytes_max + settings.unsent_bytes_max
    there = f"{_mib(host.memory_bytes)} of memory are there"
    if usual > host.memory_bytes:
        return Finding(
            f"{there}, and a node fills {_mib(usual)}, of it {_mib(settings.state_cache_bytes)} state_cache_bytes and "
            f"{_mib(settings.history_bytes_max)} history_bytes_max: set less, or give it more",
            True,
        )
    if most > host.memory_bytes:
        return Finding(
            f"{there}, and clients that are slow or hostile may fill {_mib(most)}: set less receiving_bytes_max "
            f"({_mib(settings.receiving_bytes_max)}) and unsent_bytes_max ({_mib(settings.unsent_bytes_max)})"
        )
    return None


def address_space(settings: Settings, host: Host) -> Finding | None:
    """``ulimit -v`` counts what is mapped and never used; a library that gets none of it ends the process at once."""
    if host.address_space_bytes is None:
        return None
    text = f"the address space of this process is bounded to {_mib(host.address_space_bytes)} (ulimit -v)"
    if host.address_space_bytes < ADDRESS_SPACE_MIN:
        return Finding(
            f"{text}, and a node maps {_mib(ADDRESS_SPACE_MIN)}, most of which it never uses: lift that bound, and "
            "bound the memory of its container or unit instead (MemoryMax= of systemd)",
            True,
        )
    return Finding(f"{text}: a node that reaches it ends without a further word, though memory may be free")


def patience(settings: Settings, host: Host) -> Finding | None:
    """An election takes up to 1.2 s, and its first entry a flush."""
    if settings.answer_ms_max >= ELECTION_MS:
        return None
    text = f"answer_ms_max ({settings.answer_ms_max}) is less than an election takes"
    return Finding(f"{text}: each change of leaders is a TIMEOUT for who writes then; set {ELECTION_MS} or more")


def sessions(settings: Settings, host: Host) -> Finding | None:
    """A tenant's share of the sessions is part of all."""
    if settings.tenant_sessions_max <= settings.sessions_max or settings.tenant_sessions_max == SESSIONS_MAX:
        return None  # a share that was never set says nothing
    return Finding(f"tenant_sessions_max is no bound: sessions_max ({settings.sessions_max}) is less")


def addresses(settings: Settings, host: Host) -> Finding | None:
    """Clients and peers are told apart by where they come in."""
    if settings.http_address != settings.peer_address:
        return None
    return Finding(f"http_listen and peer_listen are both {settings.http_address[0]}:{settings.http_address[1]}", True)


CHECKS: Final[tuple[Check, ...]] = (
    address_space,
    descriptors,
    disk,
    memory,
    addresses,
    shares_of_connections,
    kept_log,
    patience,
    sessions,
)


def findings(settings: Settings, host: Host) -> Iterator[Finding]:
    """Yield what is wrong with these settings on this machine, in the order of :data:`CHECKS`."""
    for check in CHECKS:
        found = check(settings, host)
        if found is not None:
            yield found
