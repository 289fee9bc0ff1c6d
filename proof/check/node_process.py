"""A node of a checked cluster: ``oncegate serve`` with its peers' door before it.

``python -m oncegate.proof.check.node_process SETTINGS serve …`` takes
:class:`oncegate.proof.check.node_settings.NodeSettings` in JSON. What ``oncegate serve`` has no flags for, it gets in
the node that is made for it: the peer port that the other members are told (a proxy's) and a log in small pieces.
Its flushes are in the hands of :mod:`oncegate.proof.check.flush_control`, which is preloaded.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from typing import Any, Final

import msgspec

from oncegate.consensus.config import KIB
from oncegate.gateway.cli.main import main as command_line
from oncegate.gateway.node.node import Node, replica_config
from oncegate.gateway.node.proposer import ENTRY_BYTES_MAX
from oncegate.gateway.node.settings import Settings
from oncegate.proof.check.node_settings import BODY_BYTES_MAX, NodeSettings

_PARENT_LOOK_S: Final = 0.5
SMALL_LOG: Final[dict[str, Any]] = {"command_bytes_max": 512 * KIB, "journal_segment_bytes": 576 * KIB}


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

    def make_node(settings: Settings) -> Node:
        replica = dataclasses.replace(
            replica_config(settings),
            advertise=(settings.address.host, given.advertised_port),
            **(SMALL_LOG if given.small_log else {}),
        )
        return Node(settings, replica, entry_bytes_max=BODY_BYTES_MAX if given.small_log else ENTRY_BYTES_MAX)

    command_line(make_node)


if __name__ == "__main__":
    main()
