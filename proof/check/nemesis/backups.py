"""Backups that are saved while other faults are there, and the new clusters that begin with them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable
from oncegate.gateway.local.cluster import LocalCluster, NodeEnded
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.errors import CheckError
from oncegate.proof.check.nemesis.fault import Fault, Injection, fault

SAVE_S: Final = 20.0
READY_S: Final = 60.0
_NAME: Final = "restored"


def _save(one: Injection, cluster: CheckCluster) -> str:
    (node_id,) = one.targets
    if cluster.restored_reads is None or not cluster.restored_reads.begin(node_id):
        return "left out: the workload has no rows to judge a backup by"
    place = cluster.directory / f"backup-{one.action.start:g}"
    try:
        said = _command("save", str(place), "--endpoint", cluster.endpoint(node_id))
    except CheckError as refused:
        cluster.restored_reads.give_up("no backup")
        return f"no backup: {refused}"
    one.kept = place
    return f"saved {said}"


def _restore(one: Injection, cluster: CheckCluster) -> str | None:
    place: Path | None = one.kept
    reads = cluster.restored_reads
    if place is None or reads is None:
        return None
    try:
        with LocalCluster(place / "cluster", 1, flags=("--cluster", _NAME)) as new:
            (member,) = new.members
            new.directory.mkdir()
            data = new.directory / member.node_id
            _command("restore", str(place), "--data-dir", str(data), "--cluster", _NAME, "--member", str(member))
            new.start()
            new.wait_ready(timeout_s=READY_S)
            rows = reads.end(member.http)
    except (CheckError, NodeEnded, TimeoutError, RequestRefused, Unreachable) as failure:
        # What was saved can be restored, whatever happens to the cluster that it is of.
        cluster.crashes.setdefault(place.name, f"cannot be restored: {failure}")
        reads.give_up("no new cluster")
        raise
    shutil.rmtree(place)
    return f"restored, {rows} rows read"


def _command(*words: str) -> str:
    """Run ``oncegate snapshot``, as an operator does; returns its last word. Raises CheckError."""
    command = [sys.executable, "-m", "oncegate", "snapshot", *words]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SAVE_S, check=False)
    except subprocess.TimeoutExpired:
        raise CheckError(f"snapshot {words[0]} did not end in {SAVE_S:g} s") from None
    if ended.returncode:
        raise CheckError(f"snapshot {words[0]}: {ended.stderr.strip()}")
    return ended.stdout.split()[-1]


# A backup is saved, whatever else is there, and a new cluster begins with it: its rows count as reads.
fault(
    Fault(
        "backup_restored",
        group="backups",
        strike=_save,
        heal=_restore,
        excludes="backups",
        weight=0.5,
        seconds=(0.5, 3.0),
        recovery_s=5.0,
    )
)
