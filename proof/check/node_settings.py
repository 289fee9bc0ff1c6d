"""What a checked cluster tells the process of one of its nodes (:mod:`oncegate.proof.check.node_process`)."""

from __future__ import annotations

from typing import Final

import msgspec

from oncegate.consensus.config import KIB

BODY_BYTES_MAX: Final = 384 * KIB
"""Largest body, and largest entry of several commands, with a small log."""


class NodeSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What ``oncegate serve`` has no flags for."""

    advertised_port: int
    """Peer port in the configuration that all members share."""
    parent: int
    """Process id of the run."""
    small_log: bool = False
    """Segments so small that a full disk is felt within a second of load: the log has two of them prepared."""
