"""Faults that are a small script of their own: sequences which chance finds too seldom.

Weight 0: they run where a test or a planted bug asks for them. Read next: :mod:`oncegate.proof.sim.engine.faults`.
"""

from __future__ import annotations

from itertools import permutations

from oncegate.proof.sim.engine.faults import LEADER, register
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


@register("script: left behind", 0)
class LeftBehind:
    """A node, often the leader, is cut off until the others have forgotten what it needs: it gets a snapshot."""

    @staticmethod
    def draw(rng, names):
        return LEADER if rng.random() < 0.5 else rng.choice(names), rng.uniform(2.0, 4.0)

    @staticmethod
    def apply(world, target, seconds_max):
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


@register("script: removals in a minority", 0)
class RemovalsInMinority:
    """A leader that is cut off with one follower is asked to remove all others, before it notices."""

    @staticmethod
    def draw(rng, names):
        return (rng.random(),)

    @staticmethod
    def apply(world, which):
        leader = world.node(LEADER)
        if leader is None:
            return
        followers = [name for name in world.nodes if name != leader.name]
        others, pairs = _cut_off(world, [leader.name, followers[int(which * len(followers))]])
        world.scheduler.after(5.0, world.network.unblock, pairs)
        for number, other in enumerate(others, 1):
            world.scheduler.after(0.05 * number, leader.remove_member, other)


@register("script: acks held back", 0)
class AcksHeldBack:
    """A leader reaches one follower only, whose answers stall; another leads, hands leadership back, and they arrive.

    So the returned leader gets acknowledgements of entries that were replaced meanwhile.
    """

    @staticmethod
    def draw(rng, names):
        return rng.random(), rng.uniform(0.02, 0.2)

    @staticmethod
    def apply(world, which, late_s):
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


@register("script: leader dies, others connected in part", 0)
class LeaderDiesInTopology:
    """The leader is gone for good, and only some of the others reach each other; one of them reaches a majority.

    ``links`` are pairs of places in the others' list. A leader of a later term must be ready within
    ``ELECTED_WITHIN_S``.
    """

    @staticmethod
    def draw(rng, names):
        others = len(names) - 1
        return tuple((0, other) for other in range(1, others)), rng.random() < 0.5

    @staticmethod
    def apply(world, links, breaks):
        dead = world.node(LEADER)
        if dead is None or not dead.engine.leading.ready:
            world.scheduler.after(0.05, LeaderDiesInTopology.apply, world, links, breaks)
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
                raise Violation(
                    "election", f"nobody leads {waited:.1f} s after {dead.name} died; links {sorted(links)}"
                )
            else:
                world.scheduler.after(0.01, watch)

        watch()
