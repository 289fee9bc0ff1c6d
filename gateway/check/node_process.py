"""A node of a checked cluster: ``oncegate serve`` with its peers' door before it and its flushes in our hands.

``python -m gateway.check.node_process SETTINGS serve …`` with :class:`NodeSettings` as JSON. What it changes are two
things that ``oncegate serve`` has no flags for: the peer port that the other members are told (a proxy's), and the
system calls of :mod:`gateway.check.flush_control`.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import msgspec

import gateway.node
from consensus.config import ReplicaConfig
from gateway.check import flush_control
from gateway.cli.main import main as oncegate
from gateway.config import Settings


class NodeSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the cluster tells its node's process."""

    advertised_port: int
    """Peer port in the configuration that all members share."""
    flush_control: str | None = None
    """File of :class:`~gateway.check.flush_control.FlushControl`; None: the system calls are the plain ones."""


def main() -> None:
    """Read the settings, then run the command line behind them."""
    given = msgspec.json.decode(sys.argv.pop(1), type=NodeSettings)
    if given.flush_control is not None:
        flush_control.install(Path(given.flush_control))
    plain = gateway.node.replica_config

    def advertised(settings: Settings) -> ReplicaConfig:
        config = plain(settings)
        return dataclasses.replace(config, advertise=(settings.address.host, given.advertised_port))

    gateway.node.replica_config = advertised
    oncegate()


if __name__ == "__main__":
    main()
