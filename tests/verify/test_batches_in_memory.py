"""Each damage of a node's batches is named, and what is not wrong is not: a machine in memory, and files in a dict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import google_crc32c
import msgspec
import pyarrow as pa
import pytest

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine import commands as c
from oncegate.gateway.testing.state import SharedState
from oncegate.proof.verify import store_check
from oncegate.proof.verify.batches import BatchCheck, Expectation
from oncegate.proof.verify.findings import Difference, Report
from oncegate.proof.verify.node_files import Built, NodeFiles, Replay
from oncegate.proof.verify.store_check import StoreWanted
from oncegate.rifl.ids import Fingerprint, SequenceNumber
from oncegate.stores import WRITE_TS, Column, ColumnType, StoreTable

BATCHES, ITEMS = 4, 3


class Scene:
    """A resident table whose flow has four batches and an open item, and the files of a node."""

    def __init__(self, node: str = "n1") -> None:
        self.state = SharedState()
        self.state.declare("t")
        declared = FlowDeclaration(name="f", source="t")
        self.state.apply(c.DeclareFlow(msgspec.json.encode(declared)))
        session = self.state.apply(c.OpenSession("n", 60_000, 512)).body
        self.client_id = int(session.client_id, 16)
        self.sequence = 0
        for number in range(1, BATCHES + 1):
            for _ in range(ITEMS):
                self.put(f"k{self.sequence % 4}")
            self.state.apply(c.Seal("f", number))
        self.put("k0")
        self.payloads = {number: self.state._batches.get("f", number) for number in range(1, BATCHES + 1)}
        self.node, self.first_index, self.was_reset = node, 1, False
        self.retained_from, self.required, self.newest = 1, BATCHES, BATCHES
        self.built = {("f", number): _built(payload) for number, payload in self.payloads.items()}
        self.tail = dict[tuple[str, int], Built]()

    def put(self, key: str) -> None:
        self.sequence += 1
        number, told = SequenceNumber(self.sequence), Fingerprint(self.sequence)
        op = c.Op(number, c.OpKind.PUT, "t", key, told, b"%d" % self.sequence)
        self.state.apply(c.Operate(self.client_id, 1, SequenceNumber(1), [op]))

    def check(self, one: BatchCheck) -> int:
        path = Path(f"/{self.node}")
        files = SimpleNamespace(
            node=self.node,
            path=path,
            batch=lambda flow, number: self.payloads.get(number),
            log=SimpleNamespace(first_index=self.first_index, was_reset=self.was_reset),
            segments=SimpleNamespace(
                list=lambda flow: sorted(self.payloads), path=lambda flow, number: path / f"{flow}-{number}"
            ),
            differs=lambda place, what, expected, found: Difference(self.node, path / place, what, expected, found),
        )
        replay = Replay(cast(NodeFiles, files), self.state.machine, 1)
        replay.built = self.built
        bounds = ({"f": self.required}, {"f": self.retained_from}, {"f": self.newest})
        return one.check(Expectation(replay, *bounds, self.tail))


def _built(payload: bytes) -> Built:
    return Built(len(payload), google_crc32c.value(payload), 7)


def _row(scene: Scene, change: Callable[[Any], Any]) -> None:
    rows = scene.state.machine.tables["t"].rows
    row = rows.get("k1")
    assert row is not None
    scene.state.machine.tables["t"].change("k1", row, change(row), scene.state.machine.commit)


def _later(row: Any) -> Any:
    return type(row)(row.version + 1, row.value)


def _lost(scene: Scene, number: int) -> None:
    del scene.payloads[number]


def _unknown(scene: Scene) -> None:
    scene.built = {}
    scene.payloads[2] = scene.payloads[3]


def _of_the_tail(scene: Scene) -> None:
    scene.newest, scene.tail = BATCHES + 1, {("f", BATCHES + 1): _built(b"sealed")}
    scene.payloads[BATCHES + 1] = b"other"


def _before_the_one_before(scene: Scene) -> None:
    batches = scene.state.machine.flows.get("f").batches
    batches._first_commits[2] = batches._last_commits[1]


def _remembered(scene: Scene, sequence: int, first_incomplete: int) -> None:
    """One of the operations has another commit number where it is remembered."""
    known = {sequence: SimpleNamespace(commit=99)}
    tracker = SimpleNamespace(first_incomplete=first_incomplete, find=known.get)
    scene.state.machine.trackers = cast(Any, {scene.client_id: tracker})


DAMAGED: dict[str, tuple[Callable[[Scene], object], str]] = {
    "a file is gone": (lambda scene: _lost(scene, 2), "batch 2 of f: expected 3 items, commits 4..6, found no file"),
    "a file that nothing seals": (
        lambda scene: scene.payloads.update({BATCHES + 1: b"x"}),
        "batch 5 of f: expected no file, the log seals batches up to 4, found a file",
    ),
    "no stream": (lambda scene: scene.payloads.update({3: b"x"}), "batch 3 of f: expected an Arrow stream"),
    "a batch in another's place": (_unknown, "batch 2 of f: expected "),
    "other bytes than the log sealed": (
        lambda scene: scene.built.update({("f", 2): _built(b"x")}),
        "batch 2 of f: expected 1 bytes, ",
    ),
    "other bytes than an entry sealed that may be committed": (_of_the_tail, "batch 5 of f: expected 6 bytes"),
    "batches that overlap": (
        _before_the_one_before,
        "batch 3 of f: expected a first commit above 6",
    ),
    "an operation that is remembered otherwise": (
        lambda scene: _remembered(scene, 5, 5),
        "batch 2 of f: expected commit 99 for ",
    ),
    "a row of another version": (lambda scene: _row(scene, _later), "row t/k1: expected "),
    "a row that is gone": (lambda scene: _row(scene, lambda row: None), "row t/k1: expected "),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damage_is_named(what: str) -> None:
    damage, words = DAMAGED[what]
    scene = Scene()
    damage(scene)
    with pytest.raises(Difference) as found:
        scene.check(BatchCheck(Report()))
    assert words in str(found.value)
    assert found.value.node == "n1"


def _not_required(scene: Scene) -> None:
    _lost(scene, BATCHES)
    scene.required = BATCHES - 1


def _let_go(scene: Scene) -> None:
    _lost(scene, 1)
    scene.retained_from = 2


def _sealed_in_the_tail(scene: Scene) -> None:
    scene.newest, scene.payloads[BATCHES + 1] = BATCHES + 1, b"sealed"
    scene.tail = {("f", BATCHES + 1): _built(b"sealed")}


WHOLE: dict[str, tuple[Callable[[Scene], object], int]] = {
    "all files": (lambda scene: None, BATCHES),
    "a file that can be made again": (_not_required, BATCHES - 1),
    "a file that an entry of the log lets go": (_let_go, BATCHES - 1),
    "a file of an entry that may be committed": (_sealed_in_the_tail, BATCHES),
    "an operation that is acknowledged": (lambda scene: _remembered(scene, 5, 6), BATCHES),
    "files of a log without its beginning": (lambda scene: scene.built.clear(), BATCHES),
}


@pytest.mark.parametrize("what", WHOLE)
def test_what_is_not_wrong_is_counted(what: str) -> None:
    change, files = WHOLE[what]
    scene, report = Scene(), Report()
    change(scene)
    one = BatchCheck(report)
    assert scene.check(one) == files
    assert report.items == ITEMS * files
    one.settle()
    assert (report.notes, report.undecided) == ([], [])


@pytest.mark.parametrize("beginning", ["first_index", "was_reset"])
def test_batch_that_a_node_may_yet_fetch_is_told_and_by_whether_another_has_it(beginning: str) -> None:
    report = Report()
    one, lacks, other = BatchCheck(report), Scene("n1"), Scene("n2")
    setattr(lacks, beginning, 2)
    _lost(lacks, 2)
    _lost(lacks, 3)
    _lost(other, 3)
    other.first_index = 2
    assert (lacks.check(one), other.check(one)) == (2, 3)
    one.settle()
    assert report.notes == ["n1 lacks batch 2 of f and can fetch it from n2"]
    assert [text.partition(";")[0] for text in report.undecided] == [
        "n1 lacks batch 3 of f",
        "n2 lacks batch 3 of f",
    ]


def test_nodes_with_other_bytes_are_both_named() -> None:
    one, node, other = BatchCheck(Report()), Scene("n1"), Scene("n2")
    node.check(one)
    other.built = {}
    # The same items in another batch's name are no damage of its own: an Arrow stream may be written in two ways.
    payload = other.payloads[2]
    other.payloads[2] = payload + bytes(8)
    with pytest.raises(Difference) as found:
        other.check(one)
    assert (found.value.node, found.value.what) == ("n1 and n2", "batch 2 of f")


SEATS = StoreTable("seats", (Column("seat", ColumnType.TEXT), Column("guest", ColumnType.TEXT)), ("seat",))
EXPECTED = {"seat": "a", "guest": "ann", WRITE_TS: 5}


@pytest.mark.parametrize(
    ("found", "is_there"),
    [
        (EXPECTED, True),
        (EXPECTED | {"guest": "bob", WRITE_TS: 6}, True),
        (EXPECTED | {"guest": "bob"}, False),
        (EXPECTED | {WRITE_TS: 4}, False),
        (None, False),
    ],
)
def test_row_in_the_store_is_the_one_derived_or_of_a_later_commit(found: Any, *, is_there: bool) -> None:
    report, wanted = Report(), StoreWanted("sqlite:///s", "f", "job", None)
    asked = list[Any]()

    def look(table: StoreTable, key: Any) -> Any:
        asked.append(dict(key))
        return found

    rows = pa.RecordBatch.from_pylist([EXPECTED], schema=SEATS.schema)
    if is_there:
        store_check._check_rows(wanted, look, SEATS, rows, 2, report)
    else:
        with pytest.raises(Difference, match="batch 2 of f, commit 5"):
            store_check._check_rows(wanted, look, SEATS, rows, 2, report)
    assert (asked, report.store_rows) == ([{"seat": "a"}], 1)
