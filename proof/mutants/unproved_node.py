"""A node of a checked cluster with a planted bug: it takes every frame of a peer for what was sent.

``python -m oncegate.proof.mutants.unproved_node`` stands in the place of :mod:`oncegate.proof.check.node_process`.
"""

from __future__ import annotations

from oncegate.consensus.net.sealing import Seal
from oncegate.proof.check.node_process import main


def _taken(seal: Seal, body: bytes, tag: bytes) -> None:
    """What was changed, left out or sent again fits."""


if __name__ == "__main__":
    Seal.check = _taken  # type: ignore[method-assign]
    main()
