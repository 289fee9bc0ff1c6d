"""An archive and the flow that it is of against a dictionary of batches: what either gives, and what their join says.

Batches are sealed, archived in files that may overlap, and dropped by retention, at any time in the life of a reader.
Every batch that flow or archive has comes back as it was sealed; one that neither has is refused; a gateway that is
not to be reached is told, and the archive never stands in for it. An entry says what its file holds.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from oncegate.spark_sink.archived_flow import ArchivedFlow
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_client import FlowState
from oncegate.stores.archive import VERSION, ArchivedFile, FlowArchive
from oncegate.stores.errors import StoreCode, StoreError

CLUSTER, OTHER = "c" * 32, "d" * 32


class Gateway:
    """The flow in its cluster: batches ``first`` .. ``last``."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.first, self.last, self.down = dice, 1, 0, False
        self.sealed: dict[int, pa.RecordBatch] = {}

    def seal(self) -> None:
        self.last += 1
        items = [(f"k{self.dice.randint(0, 9)}", self.dice.randint(0, 9)) for _ in range(self.dice.randint(1, 4))]
        begun = self.sealed[self.last - 1].column("commit")[-1].as_py() if self.sealed else 0
        rows = FlowBatch.of(*items, number=self.last, first_commit=begun + self.dice.randint(1, 3)).items
        # Cluster time stands still for a while now and then, and clocks of an earlier build went back.
        times = pa.array([self.dice.randint(0, 1000) for _ in items], pa.int64())
        self.sealed[self.last] = rows.set_column(
            rows.schema.get_field_index("time_ms"), rows.schema.field("time_ms"), times
        )

    def _answers(self) -> None:
        if self.down:
            raise SinkError(StoreCode.STORE_UNAVAILABLE, "no node answers")

    def state(self) -> FlowState:
        self._answers()
        return FlowState(self.first, self.last, {}, CLUSTER)

    def batch(self, number: int) -> pa.RecordBatch:
        self._answers()
        if number < self.first:
            raise SinkError(StoreCode.RETENTION_EXCEEDED, "dropped")
        if number > self.last:
            raise SinkError(StoreCode.FLOW_REFUSED, "not sealed")
        return self.sealed[number]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_each_batch_comes_from_whoever_has_it_and_the_join_leaves_no_hole(
    seed: int, tmp_path: Path, *, named: bool
) -> None:
    dice = random.Random(seed)
    gateway: Any = Gateway(dice)
    url, held, begins = f"file://{tmp_path}", set[int](), list[int]()
    writer = FlowArchive(url, CLUSTER, "f")
    FlowArchive(url, OTHER, "f").append(1, [FlowBatch.of(("other", 1)).items])
    # A reader that is told whose archive it is does not ask the gateway.
    reader = ArchivedFlow(gateway, url, "f", CLUSTER if named else "")
    alone = ArchivedFlow(None, url, "f", CLUSTER)
    # One that only reads has to find by itself what was archived since it looked.
    often = dice.choice((0.7, 0.05))
    for _ in range(40):
        gateway.down = False
        match dice.choice(("seal", "seal", "archive", "drop")):
            case "seal":
                gateway.seal()
            case "archive" if gateway.first <= gateway.last:
                through = max(held, default=0)
                first = max(gateway.first, min(gateway.last, through + dice.choice((0, 1, 1, 1, 3))))
                if begins and begins[-1] >= gateway.first and dice.random() < 0.3:
                    first = begins[-1]  # a file grew while another process archived, too
                last = dice.randint(first, gateway.last)
                begins.append(first)
                entry = writer.append(first, [gateway.sealed[number] for number in range(first, last + 1)])
                _tells_of_its_file(entry, [gateway.sealed[number] for number in range(first, last + 1)])
                held |= set(range(first, last + 1))
            case "drop" if gateway.last:
                gateway.first = dice.randint(gateway.first, gateway.last + 1)
        begun, end = min(held, default=1), min(held, default=1) - 1
        while end + 1 in held:
            end += 1
        assert (writer.first_batch, writer.last_batch) == (begun, end)
        if dice.random() < often:
            found = reader.state()
            joined = begun < gateway.first <= end + 1
            assert (found.first_batch, found.last_batch) == (begun if joined else gateway.first, gateway.last)
            whole = alone.state()
            assert (whole.first_batch, whole.last_batch) == (begun, end)
        number = dice.randint(1, gateway.last + 1)
        gateway.down = dice.random() < 0.2
        rows, code = _asked(reader, number)
        if code is None:
            assert rows.equals(gateway.sealed[number])
            assert not gateway.down or number < gateway.first, "what it has the gateway gives itself"
        elif gateway.down:
            assert code is StoreCode.STORE_UNAVAILABLE or (number < gateway.first and number not in held)
        elif number > gateway.last:
            assert code is StoreCode.FLOW_REFUSED
        else:
            assert code is StoreCode.RETENTION_EXCEEDED
            assert number < gateway.first
            assert number not in held


def _asked(reader: ArchivedFlow, number: int) -> tuple[Any, StoreCode | None]:
    try:
        return reader.batch(number), None
    except StoreError as refused:
        return None, refused.code


def _tells_of_its_file(entry: ArchivedFile, batches: list[pa.RecordBatch]) -> None:
    times = [time for batch in batches for time in batch.column("time_ms").to_pylist()]
    assert (entry.first_time_ms, entry.last_time_ms) == (min(times), max(times))
    assert entry.items == [batch.num_rows for batch in batches]
    assert entry.last_commits == [batch.column("commit")[-1].as_py() for batch in batches]


ANOTHER: dict[str, tuple[dict[str, Any], StoreCode]] = {
    "cluster": ({"cluster": OTHER}, StoreCode.BAD_BATCH),
    "flow": ({"flow": "g"}, StoreCode.BAD_BATCH),
    "first": ({"first_batch": 2}, StoreCode.BAD_BATCH),
    "last": ({"last_batch": 3}, StoreCode.BAD_BATCH),
    "too few": ({"items": [2]}, StoreCode.BAD_BATCH),
    "too many": ({"items": [2, 1, 1]}, StoreCode.BAD_BATCH),
    "later": ({"version": VERSION + 1}, StoreCode.STORE_MISMATCH),
    "earlier": ({"version": VERSION - 1}, StoreCode.STORE_MISMATCH),
}
"""What an entry says that is another file's, moved or copied there by hand, or of another version: it is not read."""
WRONG = ANOTHER | {
    "items": ({"items": [2, 2]}, StoreCode.BAD_BATCH),
    "commits": ({"last_commits": [2, 4]}, StoreCode.BAD_BATCH),
    "size": ({"size_bytes": 1}, StoreCode.BAD_BATCH),
    "sum": ({"sha256": "0" * 64}, StoreCode.BAD_BATCH),
}


@pytest.mark.parametrize("what", WRONG)
def test_no_batch_is_given_of_a_file_that_is_not_what_its_entry_says(what: str, tmp_path: Path) -> None:
    batches = [FlowBatch.of(("a", 1), ("b", 2)).items, FlowBatch.of(("c", 3), first_commit=3).items]
    entry = FlowArchive(f"file://{tmp_path}", CLUSTER, "f").append(1, batches)
    whole = FlowArchive(f"file://{tmp_path}", CLUSTER, "f")
    assert whole.batch(2).equals(batches[1])
    assert [one.last_batch for one in whole.entries()] == [2]
    changes, code = WRONG[what]
    (place,) = (tmp_path / CLUSTER / "f" / "manifest").iterdir()
    place.write_bytes(msgspec.json.encode(msgspec.structs.replace(entry, **changes)))
    with pytest.raises(StoreError) as refused:
        FlowArchive(f"file://{tmp_path}", CLUSTER, "f").batch(2)
    assert refused.value.code is code
    if what in ANOTHER:
        with pytest.raises(StoreError) as refused:
            FlowArchive(f"file://{tmp_path}", CLUSTER, "f").entry(1)
        assert refused.value.code is code
