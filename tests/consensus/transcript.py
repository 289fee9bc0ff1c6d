"""Nodes of the core driven by a text: what happens to them, and below each line what they decide.

A transcript is a list of scenarios. A scenario begins with ``#`` and a sentence, the property it proves; a line with
``>`` in front is a command; the lines below are what came of it, in order. ``ONCEGATE_REWRITE=1`` writes down what
comes now, for somebody to read. Time passes where a command says so, and messages wait until they are delivered.

    nodes n1 n2 [of n1 n2 n3] [+n4] [SETTING=..]    start these members (+: one that joins); the test plays the others
    wait 150 | tick n1 [150]            let ms pass; tick one node (after so many ms)
    timeout n1 | run 500 | due n1       tick when it is due; tick all when due, for ms (no heartbeats shown); ms left
    lead n1                             have it elected, by those that are played too, and print the end of that
    deliver [n1->n2]                    carry what waits there, or everywhere until nothing does
    cut n1 | heal n1 | up n1 n2         connections of a node are lost; are made again; one is made anew
    crash n1 | restart n1 | stop n1     lose power; start from the disk; stop in good order
    n2->n1 KIND(field=value ..) ..      played messages come; ``n2->n1@1``: by the first connection
    propose n1 aa bb | read n1 a | transfer n1 [n2 [MS]] | add n1 n4 | remove n1 n3
    age n1 | status                     ms since the state was known to be all; a line of each node

It prints messages that leave, flushes of log and ballot, entries applied, roles, results and refusals.
"""

from __future__ import annotations

import math
import re

from oncegate.consensus.errors import ConsensusError, SafetyViolation
from oncegate.consensus.messages import (
    Ack,
    Append,
    PreVoteReply,
    PreVoteRequest,
    ReadProbe,
    ReadProbeAck,
    VoteReply,
    VoteRequest,
)
from oncegate.proof.sim.engine.fake_disk import FakeDisk
from tests.consensus.one_engine import OneEngine
from tests.consensus.transcript_text import MEMBER, read, said, shortened, shown, written

HEARTBEAT = re.compile(r"entries=\[\]|Ack\(term|wants no tick")
PLAYED = re.compile(r"(\w+)->(\w+)(?:@(\d+))? (\w+\(.*)")


def agreement(message):
    """Answer a candidate, or a leader, whatever it wants."""
    match message:
        case PreVoteRequest():
            return PreVoteReply(message.term - 1, message.attempt, True)
        case VoteRequest():
            return VoteReply(message.term)
        case Append():
            return Ack(message.term, 1, True, message.prev_index + len(message.entries), message.prev_index)
    return None


class Node(OneEngine):
    """One node of a scenario; it tells what it does."""

    def __init__(self, script, name, members, joining, disk=None, **settings):
        self.script, self.name, self.quiet = script, name, True
        disk = disk or FakeDisk()
        disk.on_call = self.called
        peers = tuple(peer for peer in members if peer != name)
        super().__init__(
            () if name not in members and not joining else peers,
            disk=disk,
            machine=self,
            node_id=name,
            joining=joining,
            **settings,
        )
        self.results = self.failures = self
        self.quiet = False

    now = property(lambda self: self.script.now, lambda self, now: None)

    def tell(self, what):
        if not self.quiet:
            self.script.out.append(f"{self.name} {what}")

    def apply(self, index, term, command):
        self.tell(f"applies {index}:{written(command)}")
        return index

    def called(self, call, name):
        if call == "sync" and name.endswith(".segment") and getattr(self, "engine", None):
            self.tell("flushes its log")
        elif call == "rename" and name.endswith(" ballot"):
            self.tell("flushes its vote")

    def sends(self, peer_id, message):
        self.script.out.append(f"{self.name}->{peer_id} {shown(message)}")
        self.script.waiting.setdefault((self.name, peer_id), []).append(message)

    def role_changes(self, change):
        ready = " ready" if change.ready else ""
        follows = f" leader={change.leader_id}" if change.leader_id not in (None, self.name) else ""
        self.tell(f"is {change.role.value}{ready} term={change.term}{follows} ({change.reason})")

    def append(self, ended):
        """A command, a read or a change has ended."""
        token, outcome = ended
        self.tell(f"ends {token}: {type(outcome).__name__ if isinstance(outcome, Exception) else outcome}")

    def hears(self, peer, epoch, *heard):
        """Messages come, and a tick if something may follow from them."""
        for message in heard:
            if isinstance(message, ReadProbe):
                self.engine.receive_probe(peer, message)
            elif isinstance(message, ReadProbeAck):
                self.engine.receive_probe_ack(peer, message)
            else:
                self.engine.receive(peer, epoch, message)
                if not self.engine.inbox.tick_wanted:
                    self.tell("wants no tick")
        if self.engine.inbox.tick_wanted:
            self.tick_all()

    def tick_all(self):
        assert not all(self.engine.tick() for _ in range(1000)), "a node has always more to do"


class Script:
    """The nodes, the clock and the connections of one scenario."""

    def __init__(self):
        self.now = 100.0
        self.nodes, self.down, self.waiting, self.epochs, self.out = {}, {}, {}, {}, []
        self.started = {}

    def run(self, command):
        """Do what a line says, and return what came of it."""
        self.out = []
        try:
            if played := PLAYED.fullmatch(command):
                peer, name, epoch, text = played.groups()
                self.nodes[name].hears(peer, int(epoch or self.epochs.get((peer, name), 1)), *said(text))
            else:
                what, *arguments = command.split()
                do = getattr(self, f"do_{what}", None)
                do(*arguments) if do else self.asked(what, *arguments)
        except (ConsensusError, SafetyViolation) as error:
            leads = f", {error.leader_id} leads" if getattr(error, "leader_id", None) else ""
            again = ", retryable" if getattr(error, "retryable", False) else ""
            self.out.append(
                f"refused: {type(error).__name__} ({getattr(error, 'outcome', 'the node ends')}{again}{leads})"
            )
        return shortened(self.out)

    def do_nodes(self, *words):
        settings = {key: int(value) for key, value in (word.split("=") for word in words if "=" in word)}
        names = [word for word in words if "=" not in word]
        own = names[: names.index("of")] if "of" in names else names
        members = [name for name in names if name != "of" and not name.startswith("+")]
        members = tuple(dict.fromkeys(members))
        for name in own:
            self.start(name.strip("+"), members, name.startswith("+"), settings)

    def start(self, name, members, joining, settings, disk=None):
        self.started[name] = (members, joining, settings)
        self.nodes[name] = Node(self, name, members, joining, disk, **settings)

    def do_wait(self, ms):
        self.now += int(ms) / 1000

    def do_tick(self, name, ms=0):
        self.do_wait(ms)
        self.nodes[name].tick_all()

    def do_timeout(self, name):
        """Let the time pass in which a node hears nobody, tick by tick, until it asks for votes or steps down."""
        engine, said = self.nodes[name].engine, len(self.out)
        for _ in range(1000):
            if len(self.out) > said:
                return
            self.now = max(self.now, engine.deadline())
            engine.tick()

    def do_lead(self, name):
        """Have a node elected, and the no-op of its term committed."""
        self.do_timeout(name)
        while links := [pair for pair, waiting in self.waiting.items() if waiting]:
            for pair in links:
                if pair[1] in self.nodes:
                    self.carry(pair)
                elif pair[1] in self.nodes[pair[0]].engine.membership.voters:
                    agreed = filter(None, map(agreement, self.waiting[pair]))
                    self.waiting[pair] = []
                    self.nodes[pair[0]].hears(pair[1], self.epochs.get(pair, 1), *agreed)
        assert "is leader ready" in self.out[-1], self.out
        self.out = self.out[-1:]

    def do_run(self, ms):
        """Let nodes tick whenever they are due, and carry messages at once; heartbeats are not told."""
        end = self.now + int(ms) / 1000
        while (due := min(node.engine.deadline() for node in self.nodes.values())) <= end:
            self.now = max(self.now + 0.001, due)
            for node in self.nodes.values():
                node.tick_all()
            self.do_deliver()
        self.now = max(self.now, end)
        self.out = [line for line in self.out if not HEARTBEAT.search(line)]

    def do_due(self, name):
        self.out.append(f"{(self.nodes[name].engine._election.deadline - self.now) * 1000:.0f} ms")

    def do_deliver(self, link=None):
        if link is not None:
            self.carry(tuple(link.split("->")))
            return
        while links := [pair for pair, waiting in self.waiting.items() if waiting and pair[1] in self.nodes]:
            for pair in links:
                self.carry(pair)

    def carry(self, pair):
        if now := self.waiting.pop(pair, []):
            self.nodes[pair[1]].hears(pair[0], self.epochs.get(pair, 1), *now)

    def do_cut(self, name):
        for other in {*self.nodes, *self.started[name][0]} - {name}:
            self.part(name, other)

    def part(self, one, other):
        for pair in ((one, other), (other, one)):
            self.waiting.pop(pair, None)
            if pair[0] in self.nodes:
                self.nodes[pair[0]].engine.peer_down(pair[1])

    def do_heal(self, name):
        for other in sorted(set(self.nodes) - {name}):
            self.do_up(name, other)

    def do_up(self, one, other):
        epoch = self.epochs.get((one, other), 1) + 1
        for pair in ((one, other), (other, one)):
            self.waiting.pop(pair, None)
            self.epochs[pair] = epoch
            if pair[0] in self.nodes:
                self.nodes[pair[0]].engine.peer_up(pair[1], epoch)

    def do_crash(self, name, how=lambda node: node.disk.kill()):
        self.do_cut(name)
        node = self.nodes.pop(name)
        how(node)
        self.down[name] = node.disk

    def do_stop(self, name):
        self.do_crash(name, lambda node: (node.engine.stop(), node.engine.log.close()))

    def do_restart(self, name):
        self.start(name, *self.started[name], self.down.pop(name))
        self.do_heal(name)

    def asked(self, what, name, *arguments):
        """Ask a node for something, and let it tick."""
        engine = self.nodes[name].engine
        match what, *arguments:
            case "propose", *commands:
                for command in commands:
                    engine.leading.propose(read(command), command)
            case "read", token:
                engine.leading.read(token)
            case "transfer", *rest:
                target, ms = *rest, *(None, 5000)[len(rest) :]
                engine.transfer(target, "transfer", int(ms) / 1000)
            case "add", member:
                engine.add_member(member, MEMBER, f"add {member}")
            case "remove", member:
                engine.remove_member(member, f"remove {member}")
        self.nodes[name].tick_all()

    def do_age(self, name):
        age_s = self.nodes[name].engine.age_s
        self.out.append("never" if math.isinf(age_s) else f"{age_s * 1000:.0f} ms")

    def do_status(self):
        for name, node in self.nodes.items():
            engine = node.engine
            voters, learners = sorted(engine.membership.voters), sorted(engine.membership.learners)
            members = " ".join([*voters, *(f"({learner})" for learner in learners)])
            raft = engine.raft
            indexes = f"log={engine.log.base.index}..{engine.log.last_index} commit={raft.commit_index()}"
            self.out.append(f"{name} {raft.role().value} term={raft.term()} {indexes} members: {members}")
