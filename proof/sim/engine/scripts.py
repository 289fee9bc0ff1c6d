"""Faults that are a small script of their own: sequences which chance finds too seldom.

Weight 0: they run where a test or a planted bug asks for them. Read next: :mod:`oncegate.proof.sim.engine.faults`.
"""

from __future__ import annotations

from itertools import permutations

from oncegate.proof.sim.engine.faults import LEADER, fault
from oncegate.proof.sim.engine.observe import Violation

ELECTED_WITHIN_S = 2.0
"""With the election time-outs of the default settings."""


def _cut_off(world, side):
    """Block what goes between these nodes and the others; returns the names of those, and the links."""
    others = [name for name in world.nodes if name not in side]
    out = [(a, b) for a in side for b in others]
    pairs = out + [(b, a) for a, b in out]
    world.network.block(pairs)
    return others, pairs


@fault(
    "script: left behind",
    0,
    lambda rng, names: (LEADER if rng.random() < 0.5 else rng.choice(names), rng.uniform(2.0, 4.0)),
)
def left_behind(world, target, seconds_max):
    """A node, often the leader, is cut off until the others have forgotten what it needs: it gets a snapshot."""
    node = world.node(target)
    if node is None:
        return
    others, pairs = _cut_off(world, [node.name])
    for other in others:
        world.network.cut(node.name, other)
    until = world.now + seconds_max

    def watch():
        leader = world.node(LEADER)
        forgotten = leader not in (None, node) and leader.engine.log.base.index > world.last_index(node.name)
        if forgotten or world.now > until:
            world.counts["left behind"] += forgotten
            world.network.unblock(pairs)
        else:
            world.scheduler.after(0.02, watch)

    watch()


@fault("script: removals in a minority", 0, lambda rng, names: (rng.random(),))
def removals_in_minority(world, which):
    """A leader that is cut off with one follower is asked to remove all others, before it notices."""
    leader = world.node(LEADER)
    if leader is None:
        return
    followers = [name for name in world.nodes if name != leader.name]
    others, pairs = _cut_off(world, [leader.name, followers[int(which * len(followers))]])
    world.scheduler.after(5.0, world.network.unblock, pairs)
    for number, other in enumerate(others, 1):
        world.scheduler.after(0.05 * number, leader.remove_member, other)


@fault("script: acks held back", 0, lambda rng, names: (rng.random(), rng.uniform(0.02, 0.2)))
def acks_held_back(world, which, late_s):
    """A leader reaches one follower only, whose answers stall; another leads, hands leadership back, and they arrive.

    So the returned leader gets acknowledgements of entries that were replaced meanwhile.
    """
    first = world.node(LEADER)
    if first is None:
        return
    later, network = world.scheduler.after, world.network
    others = [name for name in world.nodes if name != first.name]
    follower = others.pop(int(which * len(others)))
    back, out = [(follower, first.name)], [(first.name, other) for other in others]
    network.block(back + out)
    began, muted, term = world.scheduler.now, True, first.term

    def watch():
        nonlocal muted
        second = world.node(LEADER)
        if world.scheduler.now > began + 6.0 or (first.leads and first.term > term):
            if muted:
                network.unblock(out)
            for other in (follower, *(name for name in others if name != quick)):
                network.delay(first.name, other, 0.4)
                later(1.0, network.delay, first.name, other, 0.0)
            later(late_s, network.unblock, back)
            return
        if second is not None and second is not first and second.term > term:
            if muted:
                muted = False
                network.unblock(out)
            second.transfer(first.name)
        later(0.01, watch)

    quick = others[0]
    watch()


def _drawn_leader_dies_in_topology(rng, names):
    others = len(names) - 1
    return tuple((0, other) for other in range(1, others)), rng.random() < 0.5


@fault("script: leader dies, others connected in part", 0, _drawn_leader_dies_in_topology)
def leader_dies_in_topology(world, links, breaks):
    """The leader is gone for good, and only some of the others reach each other; one of them reaches a majority.

    ``links`` are pairs of places in the others' list. A leader of a later term must be ready within
    ``ELECTED_WITHIN_S``.
    """
    dead = world.node(LEADER)
    if dead is None or not dead.engine.leading.ready:
        world.scheduler.after(0.05, leader_dies_in_topology, world, links, breaks)
        return
    others = [name for name in world.plan.names if name != dead.name]
    linked = {frozenset((others[a], others[b])) for a, b in links}
    apart = [pair for pair in permutations(others, 2) if frozenset(pair) not in linked]
    world.network.block(apart)
    for a, b in apart:
        if breaks and a < b:
            world.network.cut(a, b)
    term, began = dead.term, world.scheduler.now
    dead.die(power=False, down_s=60.0)

    def watch():
        leader, waited = world.node(LEADER), world.scheduler.now - began
        if leader is not None and leader.term > term and leader.engine.leading.ready:
            world.counts["elected in a topology"] += 1
            world.counts["milliseconds until then"] = int(waited * 1000)
        elif waited > ELECTED_WITHIN_S:
            raise Violation("election", f"nobody leads {waited:.1f} s after {dead.name} died; links {sorted(links)}")
        else:
            world.scheduler.after(0.01, watch)

    watch()
