"""Logs and hard states of several nodes side by side.

Owns: what Raft promises of any two logs (Raft §5.3, Log Matching, and State Machine Safety), and the one committed log
that they make up together. Read next: :mod:`oncegate.proof.verify.node_files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import xxhash

from oncegate.consensus import configuration
from oncegate.consensus.errors import Corrupt
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.ports import SavedPoint
from oncegate.proof.verify.findings import Difference, Report
from oncegate.proof.verify.node_files import NodeFiles


class Logs:
    """The logs of all nodes that were given; ``saved``: where the saved state of each stands.

    Attributes:
        committed: for each node, the newest entry of its log that is known to be committed.
        end: the newest entry that any node is known to have committed, in its log or its saved state.
    """

    def __init__(self, nodes: Sequence[NodeFiles], saved: Sequence[SavedPoint | None]) -> None:
        self.nodes = nodes
        self._saved = saved
        self.committed = [
            node.log.commit_index
            # A state that was installed just before a crash may be ahead of the log, or beside it.
            if point is None or node.log.term_at(point.index) != point.term
            else max(node.log.commit_index, point.index)
            for node, point in zip(nodes, saved, strict=True)
        ]
        self.end = max(*self.committed, *(point.index for point in saved if point is not None), 0)

    def check_hard_state(self) -> None:
        """Raise Difference unless all belong to one cluster, are different nodes, and know the terms they logged."""
        first = self.nodes[0]
        seen: dict[str, NodeFiles] = {}
        for node in self.nodes:
            if node.cluster != first.cluster:
                raise node.differs("raft/identity", "cluster", first.cluster, node.cluster)
            for what, value in (("node id", node.node), ("node UUID", node.uuid)):
                other = seen.setdefault(f"{what} {value}", node)
                if other is not node:
                    raise node.differs("raft/identity", what, "one of its own", f"{other.path}'s")
            if node.first_members and first.first_members and node.first_members != first.first_members:
                raise node.differs("raft/identity", "first members", first.first_members, node.first_members)
            if node.log.last_term > node.term:
                found = f"{node.term}, while the log has an entry of term {node.log.last_term}"
                raise node.differs("raft/ballot", "term", f"at least {node.log.last_term}", found)

    def check_agreement(self, report: Report) -> None:
        """Compare all entries that more than one node holds; raises Difference."""
        first = min(node.log.first_index for node in self.nodes)
        last = max(node.log.last_index for node in self.nodes)
        readers = [self._own(node) for node in self.nodes]
        for index in range(first, last + 1):
            held = [
                (at, entry)
                for at, node in enumerate(self.nodes)
                if node.log.first_index <= index <= node.log.last_index and (entry := next(readers[at])) is not None
            ]
            if held:
                report.entries += 1
                self._compare(index, held)

    def _own(self, node: NodeFiles) -> Iterator[Entry]:
        try:
            yield from node.log.read(node.log.first_index, node.log.last_index)
        except Corrupt as fault:
            raise Difference(node.node, fault.file, f"offset {fault.offset}", "an entry", fault.reason) from None

    def _compare(self, index: int, held: list[tuple[int, Entry]]) -> None:
        committed = [(at, entry) for at, entry in held if index <= self.committed[at]]
        groups = [committed, *({} if len(held) < 2 else _by_term(held)).values()]
        for group in groups:
            odd = _odd_one(group)
            if odd is None:
                continue
            usual, at = odd
            node, other = self.nodes[at], self.nodes[usual]
            entries = dict(group)
            expected, found = (_about(entries[one]) for one in (usual, at))
            who = node.node if _most(group, usual) else f"{other.node} and {node.node}"
            raise Difference(who, node.log.file_of(index), f"entry {index}", f"{expected} as on {other.node}", found)

    def check_held_by_majority(self) -> None:
        """Raise Difference if what is committed is not held by most voters, as far as all of them were given."""
        reached = [self._reached(at) for at in range(len(self.nodes))]
        at = max(range(len(self.nodes)), key=lambda one: reached[one])
        voters = self.nodes[at].log.membership.committed(self.end).voters or frozenset(self.nodes[at].first_members)
        given = {node.node: node for node in self.nodes}
        if not voters or not voters <= given.keys():
            return
        term = self._term_of(at, self.end)
        lacking = [
            node
            for one, node in enumerate(self.nodes)
            if node.node in voters and reached[one] < self.end and self._term_of(one, self.end) != term
        ]
        if 2 * (len(voters) - len(lacking)) <= len(voters):
            node = lacking[0]
            what = f"log, while {self.nodes[at].node} knows entry {self.end} to be committed"
            expected = f"entry {self.end} on more than half of {len(voters)} voters"
            found = f"it ends at entry {node.log.last_index}; {len(lacking)} voters lack the entry"
            raise node.differs("raft", what, expected, found)

    def _reached(self, at: int) -> int:
        point = self._saved[at]
        return max(self.committed[at], 0 if point is None else point.index)

    def _term_of(self, at: int, index: int) -> int | None:
        point = self._saved[at]
        return point.term if point is not None and point.index == index else self.nodes[at].log.term_at(index)

    def holds(self, at: int, first: int, last: int) -> bool:
        """Tell whether the committed entries ``first .. last`` can be read for node ``at``."""
        return all(any(True for _ in self._sources(at, index)) for index in range(first, last + 1))

    def committed_entries(self, at: int, first: int, last: int) -> Iterator[Entry]:
        """Yield committed entries for node ``at``: its own as far as it knows them to be, then another's."""
        index = first
        while index <= last:
            source = next(self._sources(at, index))
            until = min(last, self.nodes[source].log.last_index, self.committed[source])
            yield from self.nodes[source].log.read(index, until)
            index = until + 1

    def _sources(self, at: int, index: int) -> Iterator[int]:
        for one in (at, *range(len(self.nodes))):
            if self.nodes[one].log.first_index <= index <= min(self.nodes[one].log.last_index, self.committed[one]):
                yield one


def _by_term(held: list[tuple[int, Entry]]) -> dict[int, list[tuple[int, Entry]]]:
    terms: dict[int, list[tuple[int, Entry]]] = {}
    for at, entry in held:
        terms.setdefault(entry[2], []).append((at, entry))
    return terms


def _odd_one(group: list[tuple[int, Entry]]) -> tuple[int, int] | None:
    """Return (a node with what most have, a node with something else), None if all have the same."""
    if len(group) < 2 or all(entry == group[0][1] for _, entry in group):
        return None
    entries = [entry for _, entry in group]
    usual = max(group, key=lambda one: entries.count(one[1]))
    odd = next(at for at, entry in group if entry != usual[1])
    return usual[0], odd


def _most(group: list[tuple[int, Entry]], usual: int) -> bool:
    entry = dict(group)[usual]
    return 2 * sum(one == entry for _, one in group) > len(group)


def _about(entry: Entry) -> str:
    command, _, term = entry
    kind = "configuration" if configuration.is_configuration(command) else "command"
    return f"term {term}, {kind} of {len(command)} bytes, hash {xxhash.xxh3_64_hexdigest(command)}"
