"""What one engine has done since it started, for metrics; numbers that only rise.

Read next: :mod:`oncegate.consensus.core.engine`, :class:`oncegate.consensus.ports.ReplicaStatus`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oncegate.consensus.histogram import Histogram


@dataclass(slots=True)
class Counters:
    """Counts of one engine's life."""

    pre_votes_started: int = 0
    elections_started: int = 0
    elections_won: int = 0
    leader_changes: int = 0
    """Times another leader, this node included, became known."""
    appends_sent: int = 0
    appends_received: int = 0
    appends_refused: int = 0
    """Appends this node could not match to its log, or whose sender was deposed."""
    transfers_started: int = 0
    transfers_failed: int = 0
    configurations_seen: int = 0
    """Times another configuration came into force, truncations included."""
    replication: Histogram = field(default_factory=Histogram)
    """At a leader: from when an append left to the acknowledgement of a voter that brought news of the commit index."""
