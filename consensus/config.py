"""Settings of one replica, checked when built.

Owns bounds and defaults; opens nothing. Units are the last part of each name.
Read next: :mod:`oncegate.consensus.replica.replica`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oncegate.consensus.configuration import Configuration, RaftMember

KIB = 1024
MIB = 1024 * KIB

COMMAND_BYTES_MIN = 2
"""A one-byte entry is the log's own no-op, so a command has at least two."""

RECORD_OVERHEAD_BYTES_MAX = 4 * KIB

SECRET_BYTES_MIN = 16
SECRETS_MAX = 2
EVERY_ADDRESS = "::"
"""A host to listen at that stands for all addresses, of IPv4 too. Python's servers take it for IPv6 alone, and None for
both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Mutual TLS between peers; the certificate's DNS name (or common name) must be the peer's node id."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """Settings of one node.

    The defaults survive a node that is off the processor for 200 to 300 ms on a busy two-core machine.
    Without ``tls`` every address must be a loopback address, unless there is a secret and ``insecure_peers``.
    """

    node_id: str
    cluster_id: str
    listen: tuple[str, int]
    peers: Mapping[str, tuple[str, int]]
    """The other first members; empty means a cluster of one. Once the log holds a configuration, that one counts."""
    data_dir: Path
    member_data: Mapping[str, str] = field(default_factory=dict)
    """What the first configuration says of each member beside its address; opaque here."""
    joining: bool = False
    """The node is to be added to a running cluster. ``peers`` names its members; until the log names this node, it only
    receives."""
    advertise: tuple[str, int] | None = None
    """Where the others reach this node, if that is not ``listen``."""
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """Shared by all nodes, at least 16 bytes each. All are accepted, the first is used; two while it is replaced."""
    tls: TlsConfig | None = None
    insecure_peers: bool = False
    """Other machines are peers without TLS: frames are proved by the secret, and everybody on the way reads them. With
    ``tls`` both are spoken, TLS where the peer does, so that a cluster can begin with TLS node by node."""

    heartbeat_ms: int = 100
    election_ms_min: int = 600
    election_ms_max: int = 1200
    fast_election_ms_min: int = 20
    """Random delay before the election that follows the closing of the leader's connection."""
    fast_election_ms_max: int = 80
    commit_notice_ms: int = 2
    """How long an idle leader waits before it tells followers a new commit index by itself."""

    command_bytes_max: int = 8 * MIB
    frame_bytes_max: int = 16 * MIB
    append_bytes_max: int = 1 * MIB
    """Entries of one append message; a single larger entry travels alone."""
    in_flight_bytes_max: int = 8 * MIB
    """Entries sent to one follower and not yet acknowledged."""
    uncommitted_bytes_max: int = 64 * MIB
    log_memory_bytes_max: int = 64 * MIB
    journal_segment_bytes: int = 32 * MIB
    log_reserve_bytes: int = 64 * KIB
    """Room in the log that commands leave to elections and repairs when the disk is full; at most what a segment has
    left beside the largest command."""
    journal_bytes_max: int = 256 * 1024 * MIB
    save_log_bytes_max: int = 32 * MIB
    """Log applied since the last saved state that makes a durable state machine save the next one. A node's first save
    comes earlier, each member's at another part of this, so that members never save at the same time."""
    log_kept_bytes: int = 256 * MIB
    """Log kept behind a saved state, so that a follower that was away for a while needs no snapshot; at least one
    segment, at most half of ``journal_bytes_max``."""
    snapshot_chunk_bytes: int = 512 * KIB
    """At most what a frame has room for."""
    snapshot_bytes_per_s: int = 48 * MIB
    """Of snapshots leaving this node, all followers together; 0 means no bound."""
    snapshot_idle_s: float = 30.0
    """How long a follower that does not move keeps a snapshot open, and the log behind it from being removed."""
    catch_up_bytes_per_s: int = 16 * MIB
    """Old entries read back from segments, for each follower, beyond what the log grows by meanwhile: so a follower
    comes nearer at this rate, whatever the load; 0 means no bound. A MiB of small entries costs the leader about a
    hundredth of a core, the follower three."""
    apply_slice_ms: int = 20
    """How long one tick may apply entries before sockets and heartbeats get their turn."""

    @property
    def append_bytes(self) -> int:
        """``append_bytes_max``, but what a segment takes whole, so that there is room for all of a message or none."""
        return min(self.append_bytes_max, self.journal_segment_bytes // 4)

    @property
    def clear_too(self) -> bool:
        """Peers without TLS are met although this node has it."""
        return self.tls is not None and self.insecure_peers and bool(self.secrets)

    @property
    def reserve_bytes(self) -> int:
        """``log_reserve_bytes`` within its bound."""
        largest_bytes = max(self.command_bytes_max, self.append_bytes)
        return min(self.log_reserve_bytes, self.journal_segment_bytes - largest_bytes - RECORD_OVERHEAD_BYTES_MAX)

    def __post_init__(self) -> None:
        if not self.node_id or not self.cluster_id:
            raise ValueError("node_id and cluster_id must not be empty")
        if self.node_id in self.peers:
            raise ValueError("peers names the other members only")
        if not 0 < 3 * self.heartbeat_ms <= self.election_ms_min < self.election_ms_max:
            raise ValueError("want 3 * heartbeat_ms <= election_ms_min < election_ms_max")
        if not 0 < self.fast_election_ms_min < self.fast_election_ms_max <= self.election_ms_min:
            raise ValueError("want 0 < fast_election_ms_min < fast_election_ms_max <= election_ms_min")
        if self.command_bytes_max < COMMAND_BYTES_MIN:
            raise ValueError(f"command_bytes_max is at least {COMMAND_BYTES_MIN}")
        if self.frame_bytes_max < max(self.command_bytes_max, self.append_bytes_max) + RECORD_OVERHEAD_BYTES_MAX:
            raise ValueError("frame_bytes_max leaves no room for the largest command")
        if self.journal_segment_bytes < self.command_bytes_max + 2 * RECORD_OVERHEAD_BYTES_MAX:
            raise ValueError("journal_segment_bytes leaves no room for the largest command")
        if self.journal_bytes_max < 2 * self.journal_segment_bytes:
            raise ValueError("journal_bytes_max holds at least two segments")
        if self.snapshot_chunk_bytes < 1:
            raise ValueError("snapshot_chunk_bytes is at least 1")
        for host, _ in (self.listen, *self.peers.values()):
            self.check_host(host)
        if self.joining and not self.peers:
            raise ValueError("a node that joins needs the addresses of the members")
        self.check_secrets(self.secrets)

    @property
    def initial_configuration(self) -> Configuration:
        """The configuration before the log holds one: the first members, all voters; empty for one that joins."""
        if self.joining:
            return Configuration({})
        addresses = {**self.peers, self.node_id: self.advertise or self.listen}
        data = self.member_data
        return Configuration(
            {name: RaftMember(*addresses[name], data=data.get(name, "")) for name in sorted(addresses)}
        )

    def check_host(self, host: str) -> None:
        """Raise ValueError when what is said with peers at ``host`` could be read or changed by strangers."""
        if self.tls is not None or is_loopback(host):
            return
        if not self.insecure_peers:
            raise ValueError(f"{host} is not a loopback address: peers need TLS, or a secret and insecure_peers")
        if not self.secrets:
            raise ValueError(f"{host} is not a loopback address: insecure_peers needs a secret")

    def check_secrets(self, secrets: tuple[bytes, ...]) -> None:
        """Raise ValueError when a node cannot go on with these in place of its own."""
        if any(len(secret) < SECRET_BYTES_MIN for secret in secrets):
            raise ValueError(f"a secret has at least {SECRET_BYTES_MIN} bytes")
        if len(secrets) > SECRETS_MAX:
            raise ValueError(f"at most {SECRETS_MAX} secrets are accepted")
        if bool(secrets) != bool(self.secrets):
            raise ValueError("a node that runs neither begins nor ceases to have a secret")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches ``host``; a name other than ``localhost`` may lead anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
