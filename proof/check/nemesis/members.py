"""Members of a checked cluster: how an operator changes them, repeated until it is done, and the faults that do so.

Owns: asking for the change, waiting for it, and what becomes of the node's process and files. Read next:
:mod:`oncegate.proof.check.cluster`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, get_json, send_json
from oncegate.gateway.local.waiting import wait_for
from oncegate.gateway.node.settings import MemberAddress
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.errors import CheckError
from oncegate.proof.check.nemesis.fault import Fault, Injection, PlanView, Random, any_damageable, fault

CHANGE_S: Final = 30.0
RECOVERY_S: Final = 4.0
"""A node starts, receives the log and is promoted."""
READ_STATE_S: Final = 5.0
REPAIR_LOOK_S: Final = 0.2
NO_QUORUM: Final = (CheckError, OSError, RequestRefused, Unreachable)
"""Errors of a step as long as there is no quorum; the step is repeated after them."""


def voters(cluster: CheckCluster, among: Sequence[str] | None = None) -> dict[str, bool]:
    """The members as a ready node, one of these, knows them, and whether each votes."""
    state = get_json(f"{cluster.asked(among)}/v1/cluster")
    if state is None:
        raise CheckError("no node says who is a member")
    return {member["id"]: bool(member["voter"]) for member in state["members"]}


def remove_member(cluster: CheckCluster, node_id: str, timeout_s: float = CHANGE_S) -> None:
    """Take a node out of the configuration, end its process and empty its directory; done twice, done once.

    Raises TimeoutError if it is a member still.
    """
    with cluster.lock:
        cluster.absent.add(node_id)

    def gone() -> bool:
        rest = [other for other in cluster.meant if other != node_id]
        if node_id not in voters(cluster, rest):
            return True
        send_json("DELETE", f"{cluster.asked(rest)}/v1/cluster/members/{node_id}", None, timeout_s)
        return False

    wait_for(gone, timeout_s, f"{node_id} is no member any more", despite=NO_QUORUM)
    retire(cluster, node_id)


def join_member(cluster: CheckCluster, node_id: str, timeout_s: float = CHANGE_S) -> None:
    """Start a node that is no member on an empty directory, add it, and wait until it votes; done twice, done once.

    Raises TimeoutError if it does not vote yet.
    """
    new = cluster.begin_joining(node_id)

    def votes() -> bool:
        return _announced(cluster, new, timeout_s)

    wait_for(votes, timeout_s, f"{node_id} votes", despite=NO_QUORUM)


def announce_absent(cluster: CheckCluster, node_id: str, timeout_s: float = CHANGE_S) -> None:
    """Add a learner that does not run."""
    with cluster.lock:
        new = cluster.expand(node_id)
        cluster.absent.add(node_id)
    wait_for(
        lambda: _announced(cluster, new, 0.2) is not None and node_id in voters(cluster),
        timeout_s,
        f"{node_id} is announced",
        despite=NO_QUORUM,
    )


def retire(cluster: CheckCluster, node_id: str) -> None:
    """End a node that is no member, and forget that it was to be one."""
    with cluster.lock:
        cluster.absent.add(node_id)
        cluster.kill(node_id)
        cluster.wipe(node_id)


def settle_damage(cluster: CheckCluster, node_id: str, timeout_s: float) -> str:
    """Wait until a damaged node refuses or serves, and replace one that refuses; returns what it did.

    A node that ended without naming the damaged file is noted in :attr:`CheckCluster.crashes`.

    Raises TimeoutError if it does neither, or cannot be replaced in time.
    """
    spoiled = cluster.damaged.get(node_id)
    if spoiled is None:
        return "replaced"
    wait_for(
        lambda: _has_decided(cluster, node_id),
        timeout_s,
        f"{node_id} refuses or serves",
        state=lambda: cluster.log_tail(node_id, 3),
    )
    if cluster.is_running(node_id):
        cluster.damaged.pop(node_id, None)
        return "serves"
    said = cluster.log_tail(node_id, 1)
    named = spoiled in said
    if not named:
        cluster.crashes[node_id] = f"refused without naming {spoiled}: {said}"
    remove_member(cluster, node_id, timeout_s)
    join_member(cluster, node_id, timeout_s)
    return f"{'refused by name' if named else 'ended'}, and was replaced"


def read_state(cluster: CheckCluster, node_id: str) -> None:
    """Have a node save its state and read every block of it, as for a backup.

    Raises RequestRefused: it is damaged, or the cluster cannot say what is the newest. Unreachable.
    """
    snapshots = f"{cluster.endpoint(node_id)}/v1/snapshots"
    taken = send_json("POST", snapshots, None, READ_STATE_S)
    send_json("DELETE", f"{snapshots}/{taken['id']}", None, READ_STATE_S)


def repair_state(cluster: CheckCluster, node_id: str, timeout_s: float) -> str:
    """Wait until a node whose state was spoiled has a sound one, all of it read; returns what was done to it.

    Raises TimeoutError if it has none yet.
    """
    done = "serves: what was damaged has been replaced"

    def sound() -> bool:
        nonlocal done
        cluster.start(node_id)
        damage = (cluster.state(node_id) or {}).get("damage")
        if damage:
            done = f"{damage}, repaired from a peer"
            send_json("POST", f"{cluster.endpoint(node_id)}/v1/cluster/members/{node_id}/repair", None, READ_STATE_S)
            return False
        read_state(cluster, node_id)
        return True

    wait_for(sound, timeout_s, f"{node_id} has a sound state", despite=NO_QUORUM, every_s=REPAIR_LOOK_S)
    cluster.spoiled.discard(node_id)
    return done


def _has_decided(cluster: CheckCluster, node_id: str) -> bool:
    """Whether a damaged node is ready or has ended by itself; one that another fault ended is started again."""
    with cluster.lock:
        if not cluster.is_running(node_id) and cluster.ended_by_itself(node_id) is None:
            cluster.start(node_id)
            return False
    return not cluster.is_running(node_id) or cluster.is_ready(node_id)


def _announced(cluster: CheckCluster, new: MemberAddress, timeout_s: float) -> bool:
    """Ask for a new member unless it is one; returns whether it votes."""
    rest = [other for other in cluster.meant if other != new.node_id]
    votes = voters(cluster, rest).get(new.node_id)
    if votes is None:
        peer_port = cluster.links.port(new.node_id)
        asked = {"id": new.node_id, "host": new.host, "http_port": new.http_port, "peer_port": peer_port}
        with contextlib.suppress(Unreachable):  # it goes on catching up
            send_json("POST", f"{cluster.asked(rest)}/v1/cluster/members", asked, timeout_s)
    return bool(votes)


def _doing(change: Callable[[CheckCluster, str], None], said: str) -> Callable[[Injection, CheckCluster], str]:
    """Return a strike, or a heal, that changes the one member it befalls and says so."""

    def done(one: Injection, cluster: CheckCluster) -> str:
        change(cluster, one.targets[0])
        return said

    return done


def _replace(one: Injection, cluster: CheckCluster) -> str:
    remove_member(cluster, one.targets[0])
    join_member(cluster, one.targets[0])
    return "replaced: removed, added, and votes"


def _next_id(random: Random, view: PlanView) -> tuple[str, ...]:
    return (f"n{len(view.nodes) + 1}",)


_change = partial(Fault, group="members", excludes="members", recovery_s=RECOVERY_S, seconds=(1.0, 5.0))
_addition = partial(_change, whom=_next_id, heal=_doing(remove_member, "removed"))
_loss = partial(_change, whom=any_damageable, persistent=True)

# A node joins, learns, is promoted to a voter when it has caught up, and is removed in the end.
fault(_addition("member_added", strike=_doing(join_member, "joined as a learner, and votes")))
# A node is announced and stays away: a learner that never catches up must not count in any majority.
fault(_addition("learner_added", strike=_doing(announce_absent, "announced, and not there")))
# A member, maybe the leader, is removed alive; in the end it joins again, with an empty directory.
fault(
    _loss(
        "member_removed",
        strike=_doing(remove_member, "removed, its directory emptied"),
        heal=_doing(join_member, "joined again, and votes"),
    )
)
# A node dies with its disk; an operator removes the dead member and adds a new one in its place.
fault(_loss("member_replaced", strike=_doing(retire, "killed, its directory emptied"), heal=_replace))
