"""etcd beside us: three unmodified etcd processes and a closed loop of puts, in the same run on the same machine.

What counts is the ratio to our figure of the same run, and what it is a ratio of: etcd's load comes over gRPC from a
process of its own, ours is inside the leader's and has no network and no client. The whole systems, each behind its
client, are compared in :mod:`bench.peers`, which starts etcd here too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench.peers import measure
from bench.peers.etcd import Etcd
from bench.peers.packages import NotBuilt
from bench.peers.peer import Case

WARM_S: Final = 1.0
OUTSTANDING: Final = (1, 64, 512)


def run(directory: Path, *, seconds: float) -> list[dict[str, Any]] | None:
    """Measure puts of 200 bytes at 1, 64 and 512 outstanding; None where etcd cannot be built, which is said."""
    rows = []
    try:
        with Etcd(directory / "etcd") as peer:
            peer.start()
            for outstanding in OUTSTANDING:
                row = measure.window(peer, Case("put", outstanding), warm_s=WARM_S, measured_s=seconds)
                rows.append({**row, "per_second": row["rate"]})
    except NotBuilt as missing:
        print(missing)
        return None
    return rows
