"""A node of a checked cluster: ``oncegate serve`` behind a proxy, ended with the run that started it.

``python -m oncegate.proof.check.node_process PARENT PORT serve …``: PARENT is the process id of the run, PORT the peer
port in the configuration that all members share (the proxy's). With the small bodies of a small disk, the log's
segments are so small that the node notices a full disk within a second of load: the log prepares two of them.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from typing import Any, Final

from oncegate.consensus.config import KIB
from oncegate.gateway.cli.main import main as command_line
from oncegate.gateway.node.node import Node, replica_config
from oncegate.gateway.node.proposer import ENTRY_BYTES_MAX
from oncegate.gateway.node.settings import Settings

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
    """Take the two arguments of our own, then run the command line."""
    parent, port = int(sys.argv.pop(1)), int(sys.argv.pop(1))
    end_with(parent)

    def make_node(settings: Settings) -> Node:
        small = settings.body_bytes_max <= SMALL_LOG["command_bytes_max"]
        replica = dataclasses.replace(
            replica_config(settings), advertise=(settings.address.host, port), **(SMALL_LOG if small else {})
        )
        return Node(settings, replica, entry_bytes_max=settings.body_bytes_max if small else ENTRY_BYTES_MAX)

    command_line(make_node)


if __name__ == "__main__":
    main()
