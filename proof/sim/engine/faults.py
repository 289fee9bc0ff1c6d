"""What can go wrong: a registry of faults, each with how it is drawn from a seed and what it does to a world.

A new kind is one class with :func:`register` on it: ``draw`` gives
plain arguments, ``apply`` acts on the world and schedules its own end, so that removing a fault from a plan removes all
of it. A kind with weight 0 runs only when it is asked for. Read next: :mod:`oncegate.proof.sim.engine.world`.
"""

from __future__ import annotations

from itertools import permutations

from oncegate.consensus.log.reserve import RESERVE_BYTES, RESERVE_FILE
from oncegate.proof.topologies import cut_for, topology

LEADER = "leader"
"""As the name of a target: whoever leads at that moment."""

REGISTRY = {}
DEFAULT_MIX = {}


def register(kind, weight):
    """Enter a fault under a name; weight is relative to the others'."""

    def enter(fault):
        REGISTRY[kind] = fault
        if weight:
            DEFAULT_MIX[kind] = weight
        return fault

    return enter


def _target(rng, names):
    return LEADER if rng.random() < 0.4 else rng.choice(names)


def _down_s(rng):
    return rng.choice((0.02, 0.2, 0.2, 1.0)) * (0.5 + rng.random())


class AtNode:
    """A fault of one node, often the leader: ``details`` draws what else there is to say, ``strike`` does it."""

    @classmethod
    def draw(cls, rng, names):
        return _target(rng, names), *cls.details(rng, names)

    @classmethod
    def apply(cls, world, target, *details):
        node = world.node(target)
        if node is not None:
            cls.strike(world, node, *details)


@register("kill", 6)
class Kill(AtNode):
    """A process dies, or its machine loses power, now or inside its n-th system call from now."""

    @staticmethod
    def details(rng, names):
        return rng.random() < 0.6, rng.choice((0, 0, 1, 2, 3, 5, 9)), _down_s(rng)

    @staticmethod
    def strike(world, node, power, after_calls, down_s):
        if not node.alive:
            return
        if after_calls:
            node.calls_left, node.kill_as = after_calls, (power, down_s)
        else:
            node.die(power=power, down_s=down_s)


@register("kill several", 2)
class KillSeveral:
    """Two or more at once."""

    @staticmethod
    def draw(rng, names):
        count = rng.randint(2, len(names))
        return tuple((name, _down_s(rng)) for name in rng.sample(names, count)), rng.random() < 0.5

    @staticmethod
    def apply(world, targets, power):
        for name, down_s in targets:
            node = world.nodes[name]
            if node.alive:
                node.die(power=power, down_s=down_s)


@register("power loss", 3)
class PowerLoss(AtNode):
    """All machines lose power at once, while the target is inside its n-th system call from now."""

    @staticmethod
    def details(rng, names):
        return rng.choice((1, 2, 3, 5, 9)), tuple(_down_s(rng) for _ in names)

    @staticmethod
    def strike(world, node, after_calls, downs_s):
        if node.alive:
            node.calls_left, node.kill_as = after_calls, downs_s


@register("stop", 1)
class Stop(AtNode):
    """An orderly stop and start."""

    @staticmethod
    def details(rng, names):
        return (_down_s(rng),)

    @staticmethod
    def strike(world, node, down_s):
        node.stop(down_s)


@register("partition", 5)
class Partition:
    """Some directions of some links stall: symmetric, one-way, a ring, the leader alone; connections may break."""

    @staticmethod
    def draw(rng, names):
        shape = rng.choice(("alone", "alone", "alone", "split", "deaf", "mute", "one way", "ring"))
        shuffled = rng.sample(names, len(names))
        return (
            shape,
            _target(rng, names),
            tuple(shuffled),
            rng.uniform(0.1, 2.0),
            rng.random() < 0.6,
            rng.uniform(0.05, 0.6),
        )

    @staticmethod
    def pairs(shape, target, order):
        everything = set(permutations(order, 2))
        match shape:
            case "alone":
                return {pair for pair in everything if target in pair}
            case "deaf":
                return {pair for pair in everything if pair[1] == target}
            case "mute":
                return {pair for pair in everything if pair[0] == target}
            case "split":
                side = order[: len(order) // 2]
                return {(a, b) for a, b in everything if (a in side) != (b in side)}
            case "one way":
                return {order[:2]}
        return set(cut_for(topology(shape, order), order))

    @staticmethod
    def apply(world, shape, target, order, seconds, breaks, break_after_s):
        node = world.node(target)
        pairs = sorted(Partition.pairs(shape, node.name if node else order[0], order))
        world.counts["partitions"] += 1
        world.network.block(pairs)
        world.scheduler.after(seconds, world.network.unblock, pairs)
        if breaks:
            for a, b in sorted({tuple(sorted(pair)) for pair in pairs}):
                world.scheduler.after(min(seconds, break_after_s), world.network.cut, a, b)


@register("topology", 2)
class Topology:
    """For a while a cluster is connected in part: only the links of a star, a bridge or a chain are left."""

    @staticmethod
    def draw(rng, names):
        shape = rng.choice(("star", "bridge", "chain"))
        return shape, tuple(rng.sample(names, len(names))), rng.uniform(0.5, 2.5), rng.random() < 0.6

    @staticmethod
    def apply(world, shape, order, seconds, breaks):
        Partition.apply(world, shape, order[0], order, seconds, breaks, 0.1)


@register("break", 6)
class Break:
    """A connection, or several, breaks and comes back."""

    @staticmethod
    def draw(rng, names):
        links = [pair for pair in permutations(names, 2) if pair[0] < pair[1]]
        return (tuple(rng.sample(links, rng.choice((1, 1, 2, len(links))))),)

    @staticmethod
    def apply(world, links):
        for a, b in links:
            world.network.cut(a, b)


@register("slow link", 3)
class SlowLink:
    """Messages in one direction take longer."""

    @staticmethod
    def draw(rng, names):
        return tuple(rng.sample(names, 2)), rng.choice((0.01, 0.1, 0.5)), rng.uniform(0.2, 2.0)

    @staticmethod
    def apply(world, pair, delay_s, seconds):
        world.network.delay(*pair, delay_s)
        world.scheduler.after(seconds, world.network.delay, *pair, 0.0)


@register("slow disk", 2)
class SlowDisk(AtNode):
    """Flushes take longer."""

    @staticmethod
    def details(rng, names):
        return rng.choice((0.01, 0.05, 0.4)), rng.uniform(0.1, 1.5)

    @staticmethod
    def strike(world, node, flush_s, seconds):
        node.flush_s = flush_s
        world.scheduler.after(seconds, setattr, node, "flush_s", world.plan.flush_s)


@register("flush error", 1)
class FlushError(AtNode):
    """The next flush fails; what is on the disk then is anybody's guess, and the process must end."""

    @staticmethod
    def details(rng, names):
        return ()

    @staticmethod
    def strike(world, node):
        if node.alive:
            node.disk.fail_syncs = 1


@register("freeze", 3)
class Freeze(AtNode):
    """A process does not run for a while; its clock goes on, or stands still with it."""

    @staticmethod
    def details(rng, names):
        return rng.choice((0.05, 0.4, 2.0)) * (0.5 + rng.random()), rng.random() < 0.4

    @staticmethod
    def strike(world, node, seconds, clock_stops):
        world.counts["freezes"] += 1
        node.freeze(seconds, clock_stops=clock_stops)


@register("clock", 2)
class Clock(AtNode):
    """A monotonic clock jumps forward, and goes at another rate from then on."""

    @staticmethod
    def details(rng, names):
        return rng.choice((0.0, 0.3, 5.0, 86400.0)), rng.choice((0.8, 0.98, 1.02, 1.25))

    @staticmethod
    def strike(world, node, jump_s, rate):
        if node.alive and not node.frozen:
            world.counts["clock jumps"] += 1
            node.clock.jump(jump_s)
            node.clock.set_rate(rate)
            node.wake(0.0)


@register("flip", 2)
class Flip:
    """A bit changes on the disk of a node that is down; it must refuse to start, or be right.

    At most a minority is lost this way.
    """

    @staticmethod
    def draw(rng, names):
        return (
            rng.choice(names),
            rng.random() < 0.3,
            rng.choice(("any", "journal", "ballot")),
            rng.random(),
            rng.randrange(8),
        )

    @classmethod
    def apply(cls, world, name, power, which, where, bit):
        node = world.nodes[name]
        if node.alive and not node.busy and world.may_lose(name):
            node.die(power=power, down_s=0.3)
            cls.flip(world, node, which, where, bit)

    @staticmethod
    def flip(world, node, which, where, bit):
        names = [known for known in node.disk.names() if which in ("any", known.partition("-")[0])]
        if not names:
            return
        file = names[int(where * 997) % len(names)]
        data = node.disk.bytes_of(file)
        # As often in what is used as in the zeros behind it.
        size = len(data) if bit % 2 else max(1, len(data.rstrip(b"\0")))
        if data:
            world.damage(node.name)
            node.disk.flip(file, int(where * size), bit)


@register("flip last batch", 2)
class FlipLastBatch(Flip):
    """A bit changes in the batch that was flushed last, which no later record proves to have been flushed."""

    @staticmethod
    def flip(world, node, which, where, bit):
        last = node.disk.last_batch()
        if last is not None:
            file, start, end = last
            world.damage(node.name)
            world.counts["flips in the last batch"] += 1
            node.disk.flip(file, start + int(where * (end - start)), bit)


@register("transfer", 3)
class Transfer:
    """Leadership is handed over, to one that is named or to the one that is furthest."""

    @staticmethod
    def draw(rng, names):
        return rng.choice((None, *names)), rng.choice((0.05, 0.3, 1.0))

    @staticmethod
    def apply(world, target, timeout_s):
        node = world.node(LEADER)
        if node is not None:
            node.transfer(target, timeout_s)


@register("members", 3)
class Members:
    """A machine is added to the cluster, or a member removed, a dead one before others."""

    @staticmethod
    def draw(rng, names):
        return rng.choice(("add", "add", "remove")), rng.random()

    @staticmethod
    def apply(world, what, which):
        node = world.node(LEADER)
        if node is not None:
            node.change_members(what, which)


@register("full disk", 2)
class FullDisk(AtNode):
    """Somebody else takes all the space for a while, but for what the node has set aside."""

    @staticmethod
    def details(rng, names):
        return (rng.uniform(0.2, 2.0),)

    @staticmethod
    def strike(world, node, seconds):
        world.counts["full disks"] += 1
        node.disk.fill(RESERVE_FILE, RESERVE_BYTES)
        world.scheduler.after(seconds, setattr, node.disk, "capacity", None)
