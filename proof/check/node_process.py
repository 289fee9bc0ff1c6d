"""A node of a checked cluster: ``oncegate serve`` with its peers' door before it and its flushes in our hands.

``python -m oncegate.proof.check.node_process SETTINGS serve …`` with :class:`NodeSettings` as JSON. What it changes are
what ``oncegate serve`` has no flags for: the peer port that the other members are told (a proxy's), the system calls of
:mod:`oncegate.proof.check.flush_control`, and a log in small pieces.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

import oncegate.gateway.node.node
import oncegate.gateway.node.proposer
from oncegate.consensus.config import KIB, ReplicaConfig
from oncegate.gateway.cli.main import main as command_line
from oncegate.gateway.node.settings import Settings
from oncegate.proof.check import flush_control

_PARENT_LOOK_S: Final = 0.5
SMALL_LOG: Final[dict[str, Any]] = {"command_bytes_max": 512 * KIB, "journal_segment_bytes": 576 * KIB}
BODY_BYTES_MAX: Final = 384 * KIB
"""Largest body, and largest entry of several commands, with a small log."""


class NodeSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the cluster tells its node's process."""

    advertised_port: int
    """Peer port in the configuration that all members share."""
    parent: int
    """Process id of the run."""
    flush_control: str | None = None
    """File of :class:`~oncegate.proof.check.flush_control.FlushControl`; None: the system calls are the plain ones."""
    small_log: bool = False
    """Segments so small that a full disk is felt within a second of load: the log has two of them prepared."""


def end_with(parent: int) -> None:
    """End this process soon after ``parent``: a run that is killed leaves no nodes behind."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_LOOK_S)
        os.kill(os.getpid(), signal.SIGKILL)

    # Not PR_SET_PDEATHSIG: that follows the thread that started the process, and faults start nodes in theirs.
    threading.Thread(target=watch, name="parent", daemon=True).start()


def main() -> None:
    """Read the settings, then run the command line behind them."""
    given = msgspec.json.decode(sys.argv.pop(1), type=NodeSettings)
    end_with(given.parent)
    if given.flush_control is not None:
        flush_control.install(Path(given.flush_control))
    if given.small_log:
        oncegate.gateway.node.proposer.ENTRY_BYTES_MAX = BODY_BYTES_MAX  # type: ignore[misc]
    plain = oncegate.gateway.node.node.replica_config

    def advertised(settings: Settings) -> ReplicaConfig:
        config = plain(settings)
        config = dataclasses.replace(config, advertise=(settings.address.host, given.advertised_port))
        return dataclasses.replace(config, **SMALL_LOG) if given.small_log else config

    oncegate.gateway.node.node.replica_config = advertised
    command_line()


if __name__ == "__main__":
    main()
