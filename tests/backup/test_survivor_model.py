"""A data directory of a node that is left against the log that it was made of: what is known, loaded and built again.

A node saves its state somewhere in a random log, writes some of the batches as files, forgets the begin of its log, and
stops. What is made of the directory has to be what a machine is that applied the log, whatever of it lies where.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.consensus.configuration import Configuration, decode, encode, is_configuration
from oncegate.consensus.log.identity import open_identity
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.ports import SavedPoint
from oncegate.flows import segment
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.backup import survivor
from oncegate.gateway.backup.survivor import SurvivorOrigin
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import in_columns
from oncegate.gateway.machine.state import MachineState, state_digest
from oncegate.rifl.ids import SequenceNumber
from oncegate.stores.errors import StoreCode, StoreError
from tests.gateway.logs import RandomLog

LAST = 90
BEGAN_S = 1_700_000_000
Batch = tuple[str, int]


def members(*nodes: str) -> bytes:
    return encode(Configuration.of_addresses(dict.fromkeys(nodes, ("127.0.0.1", 1))))


def _ops(first: int, count: int) -> list[c.Op]:
    kind = c.OpKind.PUT
    return [c.Op(SequenceNumber(first + at), kind, "t", f"k{at}", at, b"1") for at in range(count)]


def counted(dice: random.Random) -> tuple[list[c.Command], int]:
    """Return commands of nobody's session, and how many operations of clients they are."""
    made, count = list[c.Command](), 0
    for _ in range(dice.randint(0, 3)):
        many = dice.randint(1, 10)
        one = SequenceNumber(1)
        made.append(
            dice.choice(
                (
                    c.Operate(999, 1, one, _ops(1, many)),
                    in_columns(c.Operate(999, 1, one, _ops(1, many))),
                    c.Operate(999, 1, one, [c.Transaction(one, 1, [], _ops(1, many))]),
                    c.Keyed(500, [c.KeyedOp(f"nobody{at}", -(10**6), op) for at, op in enumerate(_ops(1, many))]),
                    c.Range(999, 1, one, "s", one, b"12345678" * many, b""),
                    c.Cascade("nowhere", "x", 1, 1, 1, True, 7, _ops(1, many)),
                )
            )
        )
        count += many
        if dice.random() < 0.3:
            made.append(c.ForgetKeys())
    return made, count


class Left:
    """A data directory, and what a machine knows that has applied all of its log."""

    def __init__(self, seed: int, path: Path) -> None:
        self.dice, self.path = random.Random(seed), path
        log, dice, taken = RandomLog(seed), self.dice, 0
        self.entries, self.terms, self.counts = [b""], [0], [0]
        self.voters = [members("n1", "n2")]
        for at in range(1, LAST + 1):
            entry, count = b"\0", 0
            if at > 1 and dice.random() < 0.05:
                entry = members("n1", *dice.sample(["n2", "n3", "n4"], 2))
            elif at > LAST - 12:
                commands, count = counted(dice)
                entry = c.encode_entry(log.now_ms, commands)
            elif at > 1 and dice.random() < 0.97:
                taken += 1
                entry = log.at(taken)
            self.entries.append(entry)
            self.counts.append(count)
            self.terms.append(self.terms[-1] + (at == 1 or dice.random() < 0.05))
            self.voters.append(entry if is_configuration(entry) else self.voters[-1])
        self.sealed: dict[Batch, bytes] = {}
        self.sealed_at: dict[Batch, int] = {}

    def is_command(self, at: int) -> bool:
        return len(self.entries[at]) > 1 and not is_configuration(self.entries[at])

    def apply(self, machine: Machine, first: int, last: int) -> None:
        """Apply entries as a node does, which leaves the log's own ones out."""
        for at in range(first, last + 1):
            if self.is_command(at):
                apply(machine, at, self.terms[at], self.entries[at])
                for batch in machine.flows.take_sealed():
                    place = batch.flow, batch.number
                    self.sealed[place] = segment.build(batch.chunks, batch.flow, batch.table, batch.number)
                    self.sealed_at[place] = at
                machine.flows.take_dropped()

    def point(self, at: int) -> SavedPoint:
        return SavedPoint(at, self.terms[at], self.voters[at])

    def save(self, at: int) -> None:
        """Write the state as it was behind an entry; 0: nothing was ever saved."""
        with closing(MachineState(self.path / "state")) as state:
            if at:
                self.apply(state.machine, 1, at)
                state.begin_save(self.point(at))
                assert state.wait_saved(20), state.broken

    def write(self, last: int, committed: int, *, base: int = 0, segment_bytes: int = 1 << 20) -> None:
        """Write the log up to an entry, begun anew behind ``base``."""
        storage = DirectoryStorage(self.path / "raft")
        _, ballot = open_identity(storage, cluster_id="old", node_id="n1", first_members=["n1", "n2"])
        with ThreadPoolExecutor(1) as worker:
            log = LibraryLog(storage, worker, ballot, segment_bytes=segment_bytes, memory_bytes_max=1 << 20)
            ballot.save(self.terms[last], None)
            if base:
                log.reset_to(self.point(base))
            for at in range(base + 1, last + 1):
                log.append(self.entries[at], at, self.terms[at])
            log.flush()
            log.setRaftCommitIndex(max(1, committed))
            log.close()
        storage.close()
        self.log_files = sorted((self.path / "raft").iterdir())
        for age_s, file in enumerate(self.dice.sample(self.log_files, len(self.log_files))):
            os.utime(file, (BEGAN_S - age_s, BEGAN_S - age_s))


@pytest.mark.parametrize("ahead", [False, True], ids=["log ahead", "state ahead"])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_node_left_is_made_the_state_behind_its_last_entry(seed: int, tmp_path: Path, *, ahead: bool) -> None:
    left = Left(seed, tmp_path)
    dice = left.dice
    saved = dice.choice((0, dice.randint(2, LAST), dice.randint(LAST - 12, LAST))) if not ahead else LAST
    written = LAST if not ahead else dice.randint(2, LAST - 1)
    base = dice.choice((0, dice.randint(0, min(saved, written))))
    committed = dice.randint(max(base, 1), written)
    left.save(saved)
    left.write(written, committed, base=base)
    reference = Machine()
    left.apply(reference, 1, max(saved, written))
    (tmp_path / "segments").mkdir()
    store, files = SegmentStore(tmp_path / "segments"), set()
    for place, payload in left.sealed.items():
        if dice.random() < 0.5:
            files.add(place)
            store.put(*place, payload)
    with SurvivorOrigin(tmp_path) as origin:
        known = origin.known
        assert (known.last, known.term) == (max(saved, written), left.terms[max(saved, written)])
        assert known.committed == max(committed, saved)
        newest = left.voters[written if written >= base + 1 else base]
        assert (known.node, origin.cluster) == ("n1", "old")
        assert known.members == sorted(decode(newest).members), "as its log has them"
        assert origin.age_ms(BEGAN_S * 1000 + 77) == 77
        with closing(MachineState(tmp_path / "new")) as state:
            point = origin.load(state)
            assert (point.index, point.term) == (known.last, known.term)
            assert state_digest(state.machine) == state_digest(reference)
        for flow in reference.flows.all():
            name = flow.declaration.name
            for number in range(flow.batches.first, flow.batches.last + 1):
                place = name, number
                is_there = place in files or left.sealed_at[place] > saved
                assert origin.batch(name, number) == (left.sealed[place] if is_there else None), place
        retained = {(flow.declaration.name, flow.batches.first) for flow in reference.flows.all()}
        firsts = dict(retained)
        assert all(number >= firsts.get(name, 0) for name, number in origin._built), "what was dropped is let go"
        assert not files & set(origin._built), "what is a file is not held in memory"


@pytest.mark.parametrize("seed", range(6))
def test_operations_behind_the_newest_entry_that_is_known_to_be_committed_are_counted(
    seed: int, tmp_path: Path
) -> None:
    """One by one, those of a transaction, range or cascade, too; behind the saved state where that is newer."""
    left = Left(seed, tmp_path)
    tail = range(LAST - 11, LAST + 1)
    saved, committed = (left.dice.choice((0, *tail)) for _ in range(2))
    committed = committed or LAST - 12
    left.save(saved)
    left.write(LAST, committed)
    with SurvivorOrigin(tmp_path) as origin:
        assert origin.known.committed == max(committed, saved)
        assert origin.known.uncertain == sum(left.counts[max(committed, saved) + 1 :])


@pytest.mark.parametrize("saved", [0, 20])
@pytest.mark.parametrize("base", [20, 21, 40])
@pytest.mark.parametrize("more", [0, 3])
def test_entries_that_neither_state_nor_log_holds_are_never_left_out(
    saved: int, base: int, more: int, tmp_path: Path
) -> None:
    left = Left(0, tmp_path)
    left.save(saved)
    left.write(base + more, base, base=base)
    with SurvivorOrigin(tmp_path) as origin, closing(MachineState(tmp_path / "new")) as state:
        if base <= saved:
            assert origin.load(state).index == max(saved, base + more)
            return
        with pytest.raises(StoreError, match=f"entries {saved + 1} to {base} are missing") as refused:
            origin.load(state)
        assert refused.value.code is StoreCode.BAD_BACKUP


@pytest.mark.parametrize(
    ("written", "damaged", "code"),
    [(1, False, StoreCode.BAD_OPTION), (30, True, StoreCode.BAD_BACKUP), (2, False, None)],
)
def test_directory_that_holds_nothing_or_damage_is_refused_and_given_back(
    written: int, damaged: bool, code: StoreCode | None, tmp_path: Path
) -> None:
    """Entry 1 is no command, and is the same on every node."""
    left = Left(1, tmp_path)
    left.save(0)
    left.write(written, 1)
    if damaged:
        (log,) = (tmp_path / "raft").glob("*-*1.*")
        data = bytearray(log.read_bytes())
        data[100] ^= 1
        log.write_bytes(data)
    if code is None:
        with SurvivorOrigin(tmp_path) as origin:
            assert origin.known.last == written
            assert origin.known.members == ["n1", "n2"], "those it began with, where its log names none"
    else:
        with pytest.raises(StoreError) as refused:
            SurvivorOrigin(tmp_path)
        assert refused.value.code is code
    for name in ("raft", "state"):
        again = DirectoryStorage(tmp_path / name)
        again.lock()
        again.close()


class Log:
    """Entries of which each seals or drops what a list says of it."""

    first_index, last_index = 1, 60

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.sealed: dict[int, list[Batch]] = {}
        self.dropped: dict[int, list[Batch]] = {}
        newest = dict.fromkeys("fgh", 0)
        for at in range(1, self.last_index + 1):
            flow = dice.choice("fffggh")  # some come further than others
            newest[flow] += 1
            self.sealed[at] = [(flow, newest[flow])]
            flow = dice.choice("fgh")
            self.dropped[at] = [(flow, dice.randint(0, newest[flow]))] if dice.random() < 0.2 else []
        self.files = {one for sealed in self.sealed.values() for one in sealed if dice.random() < 0.3}

    def read(self, first: int, last: int) -> Iterator[tuple[bytes, int, int]]:
        return ((bytes(20), at, 1) for at in range(first, last + 1))

    def kept(self) -> set[Batch]:
        """What has to be held in memory behind the last entry: sealed, no file, and not dropped since."""
        drops = [one for dropped in self.dropped.values() for one in dropped]
        gone = {(flow, number) for flow, through in drops for number in range(through + 1)}
        return {one for sealed in self.sealed.values() for one in sealed} - gone - self.files


@pytest.mark.parametrize("seed", range(10))
def test_of_each_flow_is_let_go_what_was_dropped_of_it_and_nothing_of_another(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, now = Log(seed), [0]
    monkeypatch.setattr(segment, "build", lambda chunks, flow, table, number: f"{flow}{number}".encode())
    batches = {
        at: [SimpleNamespace(flow=flow, number=number, chunks=[], table="t") for flow, number in sealed]
        for at, sealed in log.sealed.items()
    }
    flows = SimpleNamespace(take_dropped=lambda: log.dropped[now[0]], take_sealed=lambda: batches[now[0]])
    monkeypatch.setattr(survivor, "apply", lambda machine, at, term, entry: now.__setitem__(0, at))
    machine = SimpleNamespace(flows=flows)
    origin: Any = object.__new__(SurvivorOrigin)
    origin._path, origin._saved, origin._point, origin._built = Path(), None, SavedPoint(0, 0, b""), {}
    origin._log, origin.known = log, SimpleNamespace(last=log.last_index, term=1)
    origin._store = SimpleNamespace(has=lambda flow, number: (flow, number) in log.files)
    origin.load(SimpleNamespace(machine=machine))
    assert origin._built == {(flow, n): f"{flow}{n}".encode() for flow, n in log.kept()}
