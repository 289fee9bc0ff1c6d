"""After the faults: everything that was bent is straight again, or the error says what is not.

Order: the means first (network, processes, room, time), then the members, then the proof that all of it is so.
"""

from __future__ import annotations

import contextlib
import email.utils
import time
import urllib.request
from typing import Final

from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check import membership
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.errors import NotHealed

CLOCK_OFF_S: Final = 5.0
"""More than this between a node's clock and ours is a fault that is still there."""
_STEP_S: Final = 15.0


def make_whole(cluster: CheckCluster, timeout_s: float) -> None:
    """Undo every fault there may be, and wait until the cluster is as it was.

    Raises:
        NotHealed: it is not within ``timeout_s``, or a node ended by itself while the faults were there.
    """
    cluster.links.heal()
    cluster.thaw(*cluster.ids)
    for disk in cluster.disks.values():
        disk.give_back()
    for clock in cluster.clocks.values():
        clock.step(0)
    for control in cluster.flushes.values():
        control.slow(0)
    wrong: dict[str, str] = {"cluster": "nothing has been looked at"}

    def whole() -> bool:
        nonlocal wrong
        failed: dict[str, str] = {}
        try:
            for target in cluster.targets.values():
                target.start()
            _restore_members(cluster)
        except membership.NO_QUORUM as failure:
            failed = {"members": str(failure)}
        wrong = failed | _wrong(cluster)
        return not wrong

    with contextlib.suppress(TimeoutError):
        wait_for(whole, timeout_s, "the cluster is whole", despite=membership.NO_QUORUM)
    wrong |= cluster.crashes
    if wrong:
        raise NotHealed(wrong)


def _restore_members(cluster: CheckCluster) -> None:
    """Bring the members back to those of the beginning, all of them voters; one step may fail and is tried again."""
    for node_id in cluster.first_ids:
        if node_id not in cluster.absent:
            cluster.start(node_id)
    for node_id in list(cluster.damaged):
        membership.settle_damage(cluster, node_id, _STEP_S)
    voters = membership.voters(cluster)
    for node_id in voters:
        if node_id not in cluster.first_ids:
            membership.remove_member(cluster, node_id, _STEP_S)
    for node_id in cluster.ids:
        if node_id not in cluster.first_ids:
            membership.retire(cluster, node_id)
    for node_id in cluster.first_ids:
        if node_id in cluster.absent and node_id in voters:
            # Its removal was begun and may still come to be.
            membership.remove_member(cluster, node_id, _STEP_S)
        if node_id in cluster.absent or node_id not in voters:
            membership.join_member(cluster, node_id, _STEP_S)


def _wrong(cluster: CheckCluster) -> dict[str, str]:
    """What is not as it was, by node."""
    found: dict[str, str] = {}
    for node_id in cluster.first_ids:
        if not cluster.is_running(node_id):
            found[node_id] = f"does not run: {cluster.log_tail(node_id, 1)}"
        elif node_id in cluster.frozen:
            found[node_id] = "stands still"
        elif not cluster.is_ready(node_id):
            found[node_id] = "runs, and is not ready"
        elif node_id in cluster.clocks and abs(off := clock_off_s(cluster, node_id)) > CLOCK_OFF_S:
            found[node_id] = f"its clock is {off:+.0f} s off"
        elif node_id in cluster.disks and not cluster.disks[node_id].free_bytes:
            found[node_id] = "its disk is full"
    for node_id in cluster.ids:
        if node_id not in cluster.first_ids and cluster.is_running(node_id):
            found[node_id] = "was added, and runs still"
    if troubled := cluster.links.troubled:
        found["links"] = ", ".join(troubled)
    for name, target in cluster.targets.items():
        if not target.is_running():
            found[name] = "does not run"
    if not found:
        voters = membership.voters(cluster)
        if voters != dict.fromkeys(cluster.first_ids, True):
            found["members"] = ", ".join(f"{name} {'votes' if votes else 'learns'}" for name, votes in voters.items())
    return found


def clock_off_s(cluster: CheckCluster, node_id: str) -> float:
    """How far the wall clock that a node sees is off ours, by the date of its answers: to a second.

    Raises:
        OSError: it does not answer.
    """
    with urllib.request.urlopen(f"{cluster.endpoint(node_id)}/livez", timeout=5) as answer:  # noqa: S310
        date = answer.headers["Date"]
    return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
