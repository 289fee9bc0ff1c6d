"""All checks, in an order in which the first difference found is the one that explains the others.

Owns: that order, and which machine stands where. Read next, in the order of the checks:
:mod:`oncegate.proof.verify.logs`, :mod:`oncegate.proof.verify.states`, :mod:`oncegate.proof.verify.batches`,
:mod:`oncegate.proof.verify.store_check`.

| step | what is compared |
|---|---|
| 1 | each node's identity, ballot and log with themselves (checksums, order), then with each other |
| 2 | each saved state with its checksums, with itself, and, while the whole log is there, with a replay from nothing |
| 3 | the states of all nodes, each brought by replay to the newest entry known to be committed |
| 4 | each node's batches with what the log seals, with the flow state, with the rows, and with the other nodes' |
| 5 | the store with the batches up to a consumer's cursor |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import state_digest
from oncegate.gateway.machine.state.restore import Restored
from oncegate.proof.verify.batches import BatchCheck, Expectation
from oncegate.proof.verify.findings import Difference, NodeReport, Report, Undecided
from oncegate.proof.verify.logs import Logs
from oncegate.proof.verify.node_files import NodeFiles, Replay
from oncegate.proof.verify.states import StateCheck, first_unequal
from oncegate.proof.verify.store_check import StoreWanted, check_store


def verify(
    directories: Sequence[Path], store: StoreWanted | None = None, said: Callable[[str], None] = lambda _: None
) -> Report:
    """Check the data directories of stopped nodes of one cluster, and a store against them. Changes nothing.

    Args:
        directories: at least one, each of another node.
        store: what the flows were delivered to; None to leave it out.
        said: called with each step as it begins.

    Returns:
        The report: its difference is the first one; ``undecided`` has what could not be decided, and why.
    """
    report = Report()
    difference = None
    try:
        with ExitStack() as stack:
            _Verification(directories, store, report, said, stack).run()
    except Difference as found:
        difference = found
    except Undecided as reason:
        report.undecided.append(str(reason))
    report.settle(difference)
    return report


class _Verification:
    def __init__(
        self,
        directories: Sequence[Path],
        store: StoreWanted | None,
        report: Report,
        said: Callable[[str], None],
        stack: ExitStack,
    ) -> None:
        self._directories, self._store, self._report, self._said = directories, store, report, said
        self._stack = stack

    def run(self) -> None:
        self._said("identities, ballots, logs")
        nodes = [self._stack.enter_context(NodeFiles(path)) for path in self._directories]
        self._said("saved states")
        restored = [node.saved() for node in nodes]
        saved = [0 if one.point is None else one.point.index for one in restored]
        logs = Logs(nodes, [one.point for one in restored])
        self._report.nodes = [
            NodeReport(
                node.node, str(node.path), at, node.log.first_index, node.log.last_index, max(node.log.commit_index, at)
            )
            for node, at in zip(nodes, saved, strict=True)
        ]
        logs.check_hard_state()
        self._said("logs with each other")
        logs.check_agreement(self._report)
        logs.check_held_by_majority()
        for node, one in zip(nodes, restored, strict=True):
            _check_belongs(node, one)
        self._said("states with themselves and the log")
        ends: list[Expectation | None] = []
        for at, (node, one) in enumerate(zip(nodes, restored, strict=True)):
            self._check_saved(node, one, saved[at])
            ends.append(self._at_end(logs, at, one.machine, saved[at]))
        self._said("states with each other")
        self._compare([None if end is None else end.replay for end in ends], logs.end)
        self._said("batches")
        batches = BatchCheck(self._report)
        for about, end in zip(self._report.nodes, ends, strict=True):
            if end is not None:
                about.batches = batches.check(end)
        batches.settle()
        if self._store is not None:
            self._said("the store")
            check_store(self._store, [end.replay for end in ends if end is not None], self._report)

    def _check_saved(self, node: NodeFiles, restored: Restored, saved: int) -> None:
        if not saved:
            return
        StateCheck(node.node, node.path / "state", restored.machine, self._report).check()
        if node.log.first_index > 1 or restored.point is None or node.log.term_at(saved) != restored.point.term:
            return
        replay = Replay(node, Machine(), 0)
        replay.run(node.log.read(1, saved))
        if (unequal := first_unequal(replay.machine, restored.machine)) is not None:
            what = f"{unequal.what}, at entry {saved}"
            raise node.differs("state", what, f"{unequal.left}, as the log has it", unequal.right)

    def _at_end(self, logs: Logs, at: int, machine: Machine, saved: int) -> Expectation | None:
        """Bring a machine to the newest committed entry; None where the log to it is in no directory."""
        node = logs.nodes[at]
        if not logs.holds(at, saved + 1, logs.end):
            self._report.undecided.append(
                f"{node.node} saved its state at entry {saved}, and what follows is in no log that was given"
            )
            return None
        required = _newest(machine)
        replay = Replay(node, machine, saved)
        replay.run(logs.committed_entries(at, saved + 1, max(saved, logs.committed[at])))
        if node.log.sealed:
            required = _newest(machine)
        replay.run(logs.committed_entries(at, replay.index + 1, logs.end))
        if not saved:
            StateCheck(node.node, node.path / "raft", machine, self._report).check()
        # A kill leaves files of batches that were sealed by entries which only later ones would say are committed.
        ahead = self._ahead(node, end=logs.end)
        names = machine.flows.names()
        return Expectation(
            replay,
            {name: required.get(name, 0) for name in names},
            _oldest(machine) | ({} if ahead is None else _oldest(ahead.machine)),
            _newest(machine) | ({} if ahead is None else _newest(ahead.machine)),
            {} if ahead is None else ahead.built,
        )

    def _ahead(self, node: NodeFiles, end: int) -> Replay | None:
        """Replay the node's own log to its last entry, committed or not; None if it ends before ``end``."""
        if node.log.last_index <= end:
            return None
        restored = node.saved()
        start = 0 if restored.point is None else restored.point.index
        if not node.log.first_index <= start + 1:
            return None
        replay = Replay(node, restored.machine, start)
        replay.run(node.log.read(start + 1, node.log.last_index))
        return replay

    def _compare(self, replays: Sequence[Replay | None], index: int) -> None:
        self._report.index = index
        there = [replay for replay in replays if replay is not None]
        digests = [state_digest(replay.machine) for replay in there]
        for about, replay in zip(self._report.nodes, replays, strict=True):
            about.digest = "" if replay is None else digests[there.index(replay)]
        if len(set(digests)) < 2:
            return
        usual = max(digests, key=digests.count)
        reference = there[digests.index(usual)]
        odd = next(replay for replay, digest in zip(there, digests, strict=True) if digest != usual)
        unequal = first_unequal(reference.machine, odd.machine)
        names = (reference.node.node, odd.node.node)
        who = names[1] if 2 * digests.count(usual) > len(there) else " and ".join(names)
        place = odd.node.path / "state"
        if unequal is None:  # a part of the digest that the walk does not name
            found = digests[there.index(odd)]
            raise Difference(who, place, f"state at entry {index}", f"{usual} as on {names[0]}", found)
        what = f"{unequal.what}, at entry {index}"
        raise Difference(who, place, what, f"{unequal.left}, as on {names[0]}", unequal.right)


def _check_belongs(node: NodeFiles, restored: Restored) -> None:
    """A node would refuse to start otherwise (:func:`oncegate.consensus.core.applying.begin_at_saved`)."""
    log, point = node.log, restored.point
    if point is None:
        if log.base.index:
            raise node.differs("state", "saved state", f"one behind entry {log.base.index}", "none")
        return
    if point.index < log.base.index:
        expected = f"at least {log.base.index}, where the log begins"
        raise node.differs("state", "saved index", expected, point.index)
    if point.term > node.term:
        raise node.differs("raft/ballot", "term", f"at least {point.term}, the state's", node.term)
    term = log.term_at(point.index)
    if point.index <= log.commit_index and term is not None and term != point.term:
        raise node.differs("state", f"term of entry {point.index}", f"{term}, the log's", point.term)


def _newest(machine: Machine) -> dict[str, int]:
    return {flow.declaration.name: flow.batches.last for flow in machine.flows.all()}


def _oldest(machine: Machine) -> dict[str, int]:
    return {flow.declaration.name: flow.batches.first for flow in machine.flows.all()}
