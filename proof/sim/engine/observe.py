"""What can be seen of a cluster from outside, and how it reaches the checkers.

Owns the names of the observations (the methods of :class:`Checker`) and the shadow of every node's log, built from
what the node was seen to write. No protocol state is looked at. Read next: :mod:`oncegate.proof.sim.engine.checkers`.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence

from oncegate.consensus.configuration import decode, is_configuration

Entry = tuple[bytes, int, int]
"""Command, index, term."""


IN_SNAPSHOT = -1
"""Stands for the term of an entry that a snapshot has replaced."""


class Violation(BaseException):
    """A promise is broken; not an Exception, so nothing under test survives it."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text


class Checker:
    """One property. Every method is an observation; a checker overrides those it needs and raises on a breach."""

    name = "checker"

    def fail(self, text: str) -> None:
        raise Violation(self.name, text)

    def started(
        self, node: str, log: Sequence[Entry], term: int, base: int = 0, configuration: bytes | None = None
    ) -> None:
        """A life begins with this log read from disk, behind entry ``base``, and ``configuration`` in force there."""

    def stopped(self, node: str) -> None:
        """It ended, in whatever way."""

    def appended(self, node: str, index: int, term: int, command: bytes) -> None:
        """An entry was added to the log; not flushed yet."""

    def truncated(self, node: str, index: int) -> None:
        """Entries from ``index`` on were removed."""

    def installed(self, node: str, index: int, configuration: bytes | None = None) -> None:
        """The log was emptied and begins at ``index``; what came before is in a snapshot."""

    def loaded(self, node: str, index: int, commands: Sequence[tuple[int, bytes]]) -> None:
        """The state up to ``index`` was read from disk, or came from the leader: these commands, by index."""

    def configured(self, node: str, index: int, configuration: bytes) -> None:
        """What the node takes for the configuration that is committed at ``index``."""

    def flushed(self, node: str) -> None:
        """All of the log is on disk."""

    def votes(self, node: str, candidate: str, term: int) -> None:
        """A vote left the node, for itself or another."""

    def leads(self, node: str, term: int) -> None:
        """The node sent an append of this term, or says that it leads in it."""

    def ticked(self, node: str, term: int, commit: int) -> None:
        """What the node knows after a tick."""

    def applied(self, node: str, index: int, term: int, command: bytes) -> None:
        """A command reached the state machine."""

    def state(self, node: str, index: int, digest: int) -> None:
        """Digest of the state after ``index``, however it was reached (replay, apply, snapshot)."""

    def acknowledged(self, command: bytes, index: int) -> None:
        """A client was told that its command is done."""

    def read(self, floor: int, point: int, seen: int) -> None:
        """A read that began when ``floor`` was known got a point, and the state up to ``seen``."""

    def ended(self, applied: dict[str, dict[int, bytes]]) -> None:
        """Faults are over and the cluster has settled: what the nodes that live have applied, in their last life."""


HOOKS = [name for name in vars(Checker) if not name.startswith("_") and name not in ("name", "fail")]


class Observations:
    """Hands each observation to the checkers that want it."""

    def __init__(self, checkers: Iterable[Checker]) -> None:
        self.checkers = list(checkers)
        for hook in HOOKS:
            wanted = [
                getattr(checker, hook)
                for checker in self.checkers
                if getattr(type(checker), hook) is not vars(Checker)[hook]
            ]
            setattr(self, hook, _fan_out(wanted))

    def find(self, kind: type) -> Checker:
        """The checker of a class."""
        return next(checker for checker in self.checkers if type(checker) is kind)


def _fan_out(wanted):
    if len(wanted) == 1:
        return wanted[0]

    def call(*args):
        for method in wanted:
            method(*args)

    return call


class Logs(Checker):
    """Every node's log as seen from outside; goes before the checkers that read it."""

    name = "logs"

    def __init__(self, voters: Collection[str]) -> None:
        self.first_voters = frozenset(voters)
        self.terms: dict[str, list[int]] = {}
        """Term of each entry, from index 1."""
        self.durable: dict[str, int] = {}
        """Entries of the log that are on disk for certain."""
        self.voters: dict[str, list[tuple[int, frozenset[str]]]] = {}
        """Who votes from which entry of the log on, oldest first."""

    def started(self, node, log, term, base=0, configuration=None):
        before = log[0][1] - 1 if log else base
        self.terms[node] = [IN_SNAPSHOT] * before + [entry[2] for entry in log]
        self.durable[node] = len(self.terms[node])
        self.voters[node] = [(before, self._voters(configuration))]
        for command, index, _ in log:
            self._configured(node, index, command)

    def installed(self, node, index, configuration=None):
        self.terms[node] = [IN_SNAPSHOT] * (index - 1)
        self.durable[node] = index - 1
        self.voters[node] = [(index - 1, self._voters(configuration))]

    def _voters(self, configuration):
        return self.first_voters if configuration is None else decode(configuration).voters

    def _configured(self, node, index, command):
        if is_configuration(command):
            self.voters[node].append((index, decode(command).voters))

    def appended(self, node, index, term, command):
        terms = self.terms[node]
        if index != len(terms) + 1:
            self.fail(f"{node} appends entry {index} after entry {len(terms)}")
        terms.append(term)
        self._configured(node, index, command)

    def truncated(self, node, index):
        del self.terms[node][index - 1 :]
        self.durable[node] = min(self.durable[node], index - 1)
        self.voters[node] = [known for known in self.voters[node] if known[0] < index] or self.voters[node][:1]

    def flushed(self, node):
        self.durable[node] = len(self.terms[node])

    def term_at(self, node: str, index: int) -> int | None:
        terms = self.terms.get(node, ())
        return terms[index - 1] if 0 < index <= len(terms) else None

    def holders(self, index: int, term: int) -> list[str]:
        """Nodes with this entry on disk."""
        return [
            node
            for node, durable in self.durable.items()
            if durable >= index and self.terms[node][index - 1] in (term, IN_SNAPSHOT)
        ]

    def deciding(self, index: int) -> set[frozenset[str]]:
        """The voters that may have committed ``index``: of those in force there, or appended behind it."""
        found = set()
        for node, known in self.voters.items():
            if len(self.terms[node]) < index:
                continue
            at = max((one for one in known if one[0] <= index), key=lambda one: one[0], default=None)
            found |= {voters for _, voters in ([at] if at else []) + [one for one in known if one[0] > index]}
        return found - {frozenset()}


def digest(command: bytes) -> int:
    """A short stand-in for a command."""
    return zlib.crc32(command)
