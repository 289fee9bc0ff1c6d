"""The promises of the cluster, each a checker that is fed with observations and knows nothing of the implementation.

Sources: Raft figure 3 for the five safety properties; docs/guarantees.md for the others. Each has a test with a good
and a bad history of its own (test_checkers.py). Read next: :mod:`oncegate.proof.sim.engine.observe`.
"""

from __future__ import annotations

from collections.abc import Collection

from oncegate.proof.sim.engine.observe import IN_SNAPSHOT, Checker, Logs, digest


class ElectionSafety(Checker):
    """At most one leader a term (Raft figure 3)."""

    name = "election safety"

    def __init__(self):
        self.leaders = {}

    def leads(self, node, term):
        known = self.leaders.setdefault(term, node)
        if known != node:
            self.fail(f"{known} and {node} lead term {term}")


class OneVoteATerm(Checker):
    """A node votes once a term, and its terms never go back; also across restarts (Raft §5.2)."""

    name = "one vote a term"

    def __init__(self):
        self.given = {}
        self.latest = {}
        self.terms = {}

    def votes(self, node, candidate, term):
        known = self.given.setdefault((node, term), candidate)
        if known != candidate:
            self.fail(f"{node} votes for {known} and for {candidate} in term {term}")
        if term < self.latest.get(node, 0):
            self.fail(f"{node} votes in term {term} after term {self.latest[node]}")
        self.latest[node] = term

    def ticked(self, node, term, commit):
        if term < max(self.terms.get(node, 0), self.latest.get(node, 0)):
            self.fail(f"{node} is in term {term} after term {max(self.terms.get(node, 0), self.latest.get(node, 0))}")
        self.terms[node] = term


class LogMatching(Checker):
    """Two logs with an entry of the same index and term are the same up to it (Raft figure 3).

    By induction it is enough that index and term determine the command and the term of the entry before.
    """

    name = "log matching"

    def __init__(self, logs: Logs):
        self.logs = logs
        self.entries = {}

    def appended(self, node, index, term, command):
        self._check(node, index, term, command, self.logs.term_at(node, index - 1))

    def started(self, node, log, term, base=0, configuration=None):
        before = IN_SNAPSHOT if log and log[0][1] > 1 else None
        for command, index, entry_term in log:
            self._check(node, index, entry_term, command, before)
            before = entry_term

    def _check(self, node, index, term, command, before):
        if before == IN_SNAPSHOT:
            return
        found = (digest(command), before)
        known = self.entries.setdefault((index, term), found)
        if known != found:
            self.fail(f"{node} has another entry {index} of term {term} than a node before it")
        if before is not None and before > term:
            self.fail(f"{node} has term {term} at {index} after term {before}")


class LeaderCompleteness(Checker):
    """What was committed in an earlier term is in the log of every later leader (Raft figure 3)."""

    name = "leader completeness"

    def __init__(self, logs: Logs):
        self.logs = logs
        self.committed = []
        """Term of the entry, and the term in which it was first seen committed, from index 1."""
        self.known = set()

    def ticked(self, node, term, commit):
        while len(self.committed) < commit:
            index = len(self.committed) + 1
            self.committed.append((self.logs.term_at(node, index), term))

    def leads(self, node, term):
        if (node, term) in self.known:
            return
        self.known.add((node, term))
        for index, (entry_term, seen_term) in enumerate(self.committed, 1):
            if (
                seen_term < term
                and entry_term != IN_SNAPSHOT
                and self.logs.term_at(node, index) not in (entry_term, IN_SNAPSHOT)
            ):
                self.fail(
                    f"{node} leads term {term} without entry {index} of {entry_term}, committed by term {seen_term}"
                )


class CommitDurability(Checker):
    """What is said to be committed is on the disks of a majority at that moment."""

    name = "commit durability"

    def __init__(self, logs: Logs):
        self.logs = logs
        self.commit = 0

    def ticked(self, node, term, commit):
        while self.commit < commit:
            self.commit += 1
            entry_term = self.logs.term_at(node, self.commit)
            if entry_term == IN_SNAPSHOT:
                continue
            holders = self.logs.holders(self.commit, entry_term)
            deciding = self.logs.deciding(self.commit)
            if not any(2 * len(voters.intersection(holders)) > len(voters) for voters in deciding):
                self.fail(f"{node} takes entry {self.commit} for committed, which only {holders} have on disk")


class FlushedIsKept(Checker):
    """What a node had flushed is in its log when it starts again."""

    name = "flushed is kept"

    def __init__(self, logs: Logs):
        self.logs = logs
        self.before = {}

    def stopped(self, node):
        self.before[node] = self.logs.terms.get(node, [])[: self.logs.durable.get(node, 0)]

    def started(self, node, log, term, base=0, configuration=None):
        before = self.before.get(node, [])
        found = self.logs.terms[node]
        kept = [now if IN_SNAPSHOT in (was, now) else was for was, now in zip(before, found, strict=False)]
        if found[: len(before)] != kept or (len(found) < len(before) and before[-1] != IN_SNAPSHOT):
            self.fail(f"{node} had flushed {len(before)} entries and starts with {len(log)}, or with others")


class CommitMonotone(Checker):
    """A node's commit index never goes back in one life, nor past the end of its log."""

    name = "commit index monotone"

    def __init__(self, logs: Logs):
        self.logs = logs
        self.commits = {}

    def started(self, node, log, term, base=0, configuration=None):
        self.commits[node] = 0

    def ticked(self, node, term, commit):
        if commit < self.commits[node]:
            self.fail(f"{node} takes back its commit index, {self.commits[node]} to {commit}")
        if commit > len(self.logs.terms[node]):
            self.fail(f"{node} has commit index {commit} and {len(self.logs.terms[node])} entries")
        self.commits[node] = commit


class StateMachineSafety(Checker):
    """No two nodes apply different commands at an index, none twice or out of order (Raft figure 3)."""

    name = "state machine safety"

    def __init__(self):
        self.commands = {}
        self.indexes = {}
        self.last = {}

    def started(self, node, log, term, base=0, configuration=None):
        self.last[node] = 0

    def applied(self, node, index, term, command):
        known = self.commands.setdefault(index, command)
        if known != command:
            self.fail(f"{node} applies {command[:20]!r} at {index}, where {known[:20]!r} was applied")
        if self.indexes.setdefault(command, index) != index:
            self.fail(f"{node} applies {command[:20]!r} at {self.indexes[command]} and at {index}")
        if index <= self.last[node]:
            self.fail(f"{node} applies entry {index} after entry {self.last[node]}")
        self.last[node] = index


class AcknowledgedIsKept(Checker):
    """An acknowledged command was applied where the client was told, and is in the state of every node at the end."""

    name = "acknowledged is kept"

    def __init__(self):
        self.commands = {}
        self.indexes = {}

    def applied(self, node, index, term, command):
        if self.commands.get(index, command) != command:
            self.fail(f"entry {index} was acknowledged as {self.commands[index][:20]!r} and is {command[:20]!r}")

    def acknowledged(self, command, index):
        if command in self.indexes or index in self.commands:
            self.fail(f"{command[:20]!r} is acknowledged at {index}, after {self.indexes.get(command)}")
        self.commands[index] = command
        self.indexes[command] = index

    def ended(self, applied):
        for node, commands in applied.items():
            lost = sorted(index for index, command in self.commands.items() if commands.get(index) != command)
            if lost:
                self.fail(f"{node} lacks {len(lost)} acknowledged commands, the first at {lost[0]}")


class LinearizableReads(Checker):
    """A read reflects everything acknowledged, and everything read, before it began."""

    name = "linearizable reads"

    def __init__(self):
        self.floor = 0
        self.reads = 0

    def acknowledged(self, command, index):
        self.floor = max(self.floor, index)

    def read(self, floor, point, seen):
        self.reads += 1
        if point < floor:
            self.fail(f"a read got point {point}; {floor} was acknowledged or read before it began")
        if seen < point:
            self.fail(f"a read of point {point} saw the state of {seen}")
        self.floor = max(self.floor, seen)


class StateEqualsReplay(Checker):
    """The state after an index is the same wherever and however it was reached."""

    name = "state equals replay"

    def __init__(self):
        self.digests = {}

    def state(self, node, index, digest):
        if self.digests.setdefault(index, digest) != digest:
            self.fail(f"{node} has another state after {index} than a node before it")


class SnapshotEqualsReplay(Checker):
    """A state that was read from disk or received is what applying the log up to its index makes."""

    name = "snapshot equals replay"

    def __init__(self):
        self.commands = {}

    def applied(self, node, index, term, command):
        self.commands.setdefault(index, command)

    def loaded(self, node, index, commands):
        replayed = [(at, self.commands[at]) for at in sorted(self.commands) if at <= index]
        if replayed != [tuple(command) for command in commands]:
            self.fail(f"{node} has a state at {index} of {len(commands)} commands, not the {len(replayed)} of the log")


class ConfigurationsAgree(Checker):
    """The configuration at a committed index is the same on every node (Raft thesis §4.1)."""

    name = "configurations agree"

    def __init__(self):
        self.at = {}

    def configured(self, node, index, configuration):
        if self.at.setdefault(index, configuration) != configuration:
            self.fail(f"{node} has another configuration at entry {index} than a node before it")


class Liveness(Checker):
    """When faults stop and a majority lives, new commands are acknowledged and all nodes get them, within a bound."""

    name = "liveness"

    def __init__(self, bound_s: float):
        self.bound_s = bound_s
        self.quiet_since = None

    def faults_stopped(self, now: float) -> None:
        self.quiet_since = now

    def waiting(self, now: float, what: str) -> None:
        """Still not there."""
        if self.quiet_since is not None and now > self.quiet_since + self.bound_s:
            self.fail(f"{self.bound_s} s after the last fault {what}")


class EverybodyIsAnswered(Checker):
    """Every proposal ends with a result or an error in the life of its node."""

    name = "everybody is answered"

    def __init__(self):
        self.open = {}

    def proposed(self, node: str, token: object) -> None:
        self.open.setdefault(node, set()).add(token)

    def answered(self, node: str, token: object) -> None:
        if token not in self.open.get(node, ()):
            self.fail(f"{node} answers twice, or something it was not asked")
        self.open[node].discard(token)

    def shut_down(self, node: str) -> None:
        """An orderly stop has answered whoever waited."""
        if self.open.get(node):
            self.fail(f"{node} stops and never answers {len(self.open[node])}")

    def stopped(self, node):
        self.open.pop(node, None)

    def ended(self, applied):
        for node, tokens in self.open.items():
            if tokens:
                self.fail(f"{node} never answers {len(tokens)} proposals")


def all_checkers(voters: Collection[str], *, liveness_s: float) -> list[Checker]:
    """A fresh set, in the order in which they must see things."""
    logs = Logs(voters)
    return [
        logs,
        CommitMonotone(logs),
        StateMachineSafety(),
        AcknowledgedIsKept(),
        LeaderCompleteness(logs),
        CommitDurability(logs),
        FlushedIsKept(logs),
        ElectionSafety(),
        OneVoteATerm(),
        LogMatching(logs),
        LinearizableReads(),
        StateEqualsReplay(),
        SnapshotEqualsReplay(),
        ConfigurationsAgree(),
        Liveness(liveness_s),
        EverybodyIsAnswered(),
    ]
