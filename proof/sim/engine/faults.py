"""What can go wrong: a registry of faults, each with how it is drawn from a seed and what it does to a world.

A new kind is one function with :func:`fault` on it, which acts on the world and schedules its own end, so that removing
a fault from a plan removes all of it; ``draw`` gives its plain arguments. A kind with weight 0 runs only when it is
asked for. Read next: :mod:`oncegate.proof.sim.engine.world`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import NamedTuple

from oncegate.consensus.log.reserve import RESERVE_BYTES, RESERVE_FILE
from oncegate.proof.topologies import cut_for, topology

LEADER = "leader"
"""As the name of a target: whoever leads at that moment."""

REGISTRY = {}
DEFAULT_MIX = {}


class Kind(NamedTuple):
    """One kind of fault: what draws its arguments, and what acts on the world with them."""

    draw: Callable
    strike: Callable


def fault(kind, weight, draw):
    """Enter a kind under a name; weight is relative to the others', ``draw`` gets the dice and the machines' names."""

    def enter(strike):
        REGISTRY[kind] = Kind(draw, strike)
        if weight:
            DEFAULT_MIX[kind] = weight
        return strike

    return enter


def at_node(kind, weight, details):
    """Enter a kind that befalls one node, often the leader; ``details`` draws what else there is to say."""

    def enter(strike):
        def at(world, target, *drawn):
            node = world.node(target)
            if node is not None:
                strike(world, node, *drawn)

        fault(kind, weight, lambda rng, names: (_target(rng, names), *details(rng, names)))(at)
        return strike

    return enter


def _target(rng, names):
    return LEADER if rng.random() < 0.4 else rng.choice(names)


def _down_s(rng):
    return rng.choice((0.02, 0.2, 0.2, 1.0)) * (0.5 + rng.random())


@at_node("kill", 6, lambda rng, names: (rng.random() < 0.6, rng.choice((0, 0, 1, 2, 3, 5, 9)), _down_s(rng)))
def kill(world, node, power, after_calls, down_s):
    """A process dies, or its machine loses power, now or inside its n-th system call from now."""
    if not node.alive:
        return
    if after_calls:
        node.calls_left, node.kill_as = after_calls, (power, down_s)
    else:
        node.die(power=power, down_s=down_s)


def _several(rng, names):
    count = rng.randint(2, len(names))
    return tuple((name, _down_s(rng)) for name in rng.sample(names, count)), rng.random() < 0.5


@fault("kill several", 2, _several)
def kill_several(world, targets, power):
    """Two or more at once."""
    for name, down_s in targets:
        node = world.nodes[name]
        if node.alive:
            node.die(power=power, down_s=down_s)


def _call_and_downs(rng, names):
    return rng.choice((1, 2, 3, 5, 9)), tuple(_down_s(rng) for _ in names)


@at_node("power loss", 3, _call_and_downs)
def power_loss(world, node, after_calls, downs_s):
    """All machines lose power at once, while the target is inside its n-th system call from now."""
    if node.alive:
        node.calls_left, node.kill_as = after_calls, downs_s


@at_node("stop", 1, lambda rng, names: (_down_s(rng),))
def stop(world, node, down_s):
    """An orderly stop and start."""
    node.stop(down_s)


def _partition(rng, names):
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


def _pairs(shape, target, order):
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


@fault("partition", 5, _partition)
def partition(world, shape, target, order, seconds, breaks, break_after_s):
    """Some directions of some links stall: symmetric, one-way, a ring, the leader alone; connections may break."""
    node = world.node(target)
    pairs = sorted(_pairs(shape, node.name if node else order[0], order))
    world.counts["partitions"] += 1
    world.network.block(pairs)
    world.scheduler.after(seconds, world.network.unblock, pairs)
    if breaks:
        for a, b in sorted({tuple(sorted(pair)) for pair in pairs}):
            world.scheduler.after(min(seconds, break_after_s), world.network.cut, a, b)


def _topology(rng, names):
    shape = rng.choice(("star", "bridge", "chain"))
    return shape, tuple(rng.sample(names, len(names))), rng.uniform(0.5, 2.5), rng.random() < 0.6


@fault("topology", 2, _topology)
def connected_in_part(world, shape, order, seconds, breaks):
    """For a while a cluster is connected in part: only the links of a star, a bridge or a chain are left."""
    partition(world, shape, order[0], order, seconds, breaks, 0.1)


def _links(rng, names):
    links = [pair for pair in permutations(names, 2) if pair[0] < pair[1]]
    return (tuple(rng.sample(links, rng.choice((1, 1, 2, len(links))))),)


@fault("break", 6, _links)
def break_links(world, links):
    """A connection, or several, breaks and comes back."""
    for a, b in links:
        world.network.cut(a, b)


@fault(
    "slow link",
    3,
    lambda rng, names: (tuple(rng.sample(names, 2)), rng.choice((0.01, 0.1, 0.5)), rng.uniform(0.2, 2.0)),
)
def slow_link(world, pair, delay_s, seconds):
    """Messages in one direction take longer."""
    world.network.delay(*pair, delay_s)
    world.scheduler.after(seconds, world.network.delay, *pair, 0.0)


@at_node("slow disk", 2, lambda rng, names: (rng.choice((0.01, 0.05, 0.4)), rng.uniform(0.1, 1.5)))
def slow_disk(world, node, flush_s, seconds):
    """Flushes take longer."""
    node.flush_s = flush_s
    world.scheduler.after(seconds, setattr, node, "flush_s", world.plan.flush_s)


@at_node("flush error", 1, lambda rng, names: ())
def flush_error(world, node):
    """The next flush fails; what is on the disk then is anybody's guess, and the process must end."""
    if node.alive:
        node.disk.fail_syncs = 1


@at_node("freeze", 3, lambda rng, names: (rng.choice((0.05, 0.4, 2.0)) * (0.5 + rng.random()), rng.random() < 0.4))
def freeze(world, node, seconds, clock_stops):
    """A process does not run for a while; its clock goes on, or stands still with it."""
    world.counts["freezes"] += 1
    node.freeze(seconds, clock_stops=clock_stops)


@at_node("clock", 2, lambda rng, names: (rng.choice((0.0, 0.3, 5.0, 86400.0)), rng.choice((0.8, 0.98, 1.02, 1.25))))
def clock(world, node, jump_s, rate):
    """A monotonic clock jumps forward, and goes at another rate from then on."""
    if node.alive and not node.frozen:
        world.counts["clock jumps"] += 1
        node.clock.jump(jump_s)
        node.clock.set_rate(rate)
        node.wake(0.0)


def _bit(rng, names):
    return (
        rng.choice(names),
        rng.random() < 0.3,
        rng.choice(("any", "journal", "ballot")),
        rng.random(),
        rng.randrange(8),
    )


def _lost(world, name, power):
    """Return a node that died for its disk to be damaged; None if it may not: at most a minority is lost this way."""
    node = world.nodes[name]
    if not node.alive or node.busy or not world.may_lose(name):
        return None
    node.die(power=power, down_s=0.3)
    return node


@fault("flip", 2, _bit)
def flip(world, name, power, which, where, bit):
    """A bit changes on the disk of a node that is down; it must refuse to start, or be right."""
    node = _lost(world, name, power)
    names = [] if node is None else [known for known in node.disk.names() if which in ("any", known.partition("-")[0])]
    if not names:
        return
    file = names[int(where * 997) % len(names)]
    data = node.disk.bytes_of(file)
    # As often in what is used as in the zeros behind it.
    size = len(data) if bit % 2 else max(1, len(data.rstrip(b"\0")))
    if data:
        world.damage(node.name)
        node.disk.flip(file, int(where * size), bit)


@fault("flip last batch", 2, _bit)
def flip_last_batch(world, name, power, which, where, bit):
    """A bit changes in the batch that was flushed last, which no later record proves to have been flushed."""
    node = _lost(world, name, power)
    last = None if node is None else node.disk.last_batch()
    if last is not None:
        file, start, end = last
        world.damage(node.name)
        world.counts["flips in the last batch"] += 1
        node.disk.flip(file, start + int(where * (end - start)), bit)


@fault("transfer", 3, lambda rng, names: (rng.choice((None, *names)), rng.choice((0.05, 0.3, 1.0))))
def transfer(world, target, timeout_s):
    """Leadership is handed over, to one that is named or to the one that is furthest."""
    node = world.node(LEADER)
    if node is not None:
        node.transfer(target, timeout_s)


@fault("members", 3, lambda rng, names: (rng.choice(("add", "add", "remove")), rng.random()))
def members(world, what, which):
    """A machine is added to the cluster, or a member removed, a dead one before others."""
    node = world.node(LEADER)
    if node is not None:
        node.change_members(what, which)


@at_node("full disk", 2, lambda rng, names: (rng.uniform(0.2, 2.0),))
def full_disk(world, node, seconds):
    """Somebody else takes all the space for a while, but for what the node has set aside."""
    world.counts["full disks"] += 1
    node.disk.fill(RESERVE_FILE, RESERVE_BYTES)
    world.scheduler.after(seconds, setattr, node.disk, "capacity", None)
