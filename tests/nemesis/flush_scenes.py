"""What keeps acknowledged data on one disk: each writes in a process that dies at once, and all of it must be there.

``python -m tests.nemesis.flush_scenes NAME ROUND DIRECTORY`` writes; :func:`check` is asked after each power loss.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec
import pyarrow as pa

from oncegate.consensus.log.identity import begin_incarnation, open_identity
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.worker import InlineWorker
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.client.outbox_file import Head, NewEntry, OutboxFile
from oncegate.gateway.wire import Operation
from oncegate.stores.sqlite.store import SqliteStore
from oncegate.stores.tables import Clustering, Column, ColumnType, StoreTable
from tests.gateway.logs import RandomLog
from tests.gateway.state_harness import Member

ENTRIES = 40
"""Of a round; the journal's take several segments."""


class JournalScene:
    """Journal, ballot and identity of a node."""

    def __init__(self, directory: Path) -> None:
        self.storage = DirectoryStorage(directory)
        identity, self.ballot = open_identity(self.storage, cluster_id="c", node_id="n1")
        self.journal = Journal(self.storage, InlineWorker(), segment_bytes=4096, memory_bytes_max=1 << 20)
        begin_incarnation(self.storage, identity)

    def write(self, number: int) -> None:
        self.ballot.save(number + 1, "n2")
        for index in range(number * ENTRIES + 1, (number + 1) * ENTRIES + 1):
            self.journal.append(b"%d" % index * 50, index, number)
            self.journal.flush()

    def check(self, rounds: int) -> None:
        assert self.journal.last_index == rounds * ENTRIES
        assert self.journal.entry(rounds * ENTRIES)[0] == b"%d" % (rounds * ENTRIES) * 50
        assert (self.ballot.term, self.ballot.voted_for) == (rounds, "n2")
        self.close()

    def close(self) -> None:
        self.journal.abandon()
        self.storage.close()


class StateScene:
    """The replicated state: RocksDB and CURRENT."""

    def __init__(self, directory: Path) -> None:
        self.member = Member(directory, RandomLog(5))

    def write(self, number: int) -> None:
        for _ in range(3):
            self.member.apply(20)
            self.member.save()

    def check(self, rounds: int) -> None:
        assert self.member.at == rounds * 60
        assert self.member.wrong() is None
        self.member.close()


class SegmentsScene:
    """Batches of flows."""

    def __init__(self, directory: Path) -> None:
        self.store = SegmentStore(directory / "segments")

    def write(self, number: int) -> None:
        for batch in range(3):
            self.store.put(f"flow{number}", batch + 1, b"%d" % batch * 5000)

    def check(self, rounds: int) -> None:
        for number in range(rounds):
            assert [self.store.get(f"flow{number}", batch + 1) for batch in range(3)] == [
                b"%d" % batch * 5000 for batch in range(3)
            ]


class OutboxScene:
    """The outbox of a client; the directory is the caller's."""

    def __init__(self, directory: Path) -> None:
        self.file = OutboxFile(directory / "worker.outbox")

    def write(self, number: int) -> None:
        self.file.write(head=Head(client_id=7, window=512))
        for sequence in range(number * 5 + 1, number * 5 + 6):
            body = msgspec.msgpack.encode(Operation(sequence, "put", "rows", f"k{sequence}", "v" * 3000))
            self.file.write([NewEntry(sequence, body)])

    def check(self, rounds: int) -> None:
        assert [entry.sequence for entry in self.file.loaded] == list(range(1, rounds * 5 + 1))
        self.file.close()


NOTES = StoreTable(
    name="notes",
    columns=(Column("name", ColumnType.TEXT), Column("place", ColumnType.INT64), Column("note", ColumnType.TEXT)),
    partition_key=("name",),
    clustering=(Clustering("place"),),
)


class SqliteScene:
    """The embedded store of Spark's results."""

    def __init__(self, directory: Path) -> None:
        self.store = SqliteStore(directory / "deep" / "store", shards=3)
        self.store.create([NOTES])

    def write(self, number: int) -> None:
        rows = [{"name": f"{number}-{row}", "place": row, "note": "n" * 500, "write_ts": 1} for row in range(30)]
        self.store.write(NOTES, pa.RecordBatch.from_pylist(rows, schema=NOTES.schema))

    def check(self, rounds: int) -> None:
        found = {row["name"] for batch in self.store.scan(NOTES) for row in batch.to_pylist()}
        assert found == {f"{number}-{row}" for number in range(rounds) for row in range(30)}
        self.store.close()


SCENES = {
    "journal": JournalScene,
    "state": StateScene,
    "segments": SegmentsScene,
    "outbox": OutboxScene,
    "sqlite": SqliteScene,
}


def check(name: str, directory: Path, rounds: int) -> None:
    """Open what ``rounds`` processes have left and find all that they wrote."""
    SCENES[name](directory).check(rounds)


if __name__ == "__main__":
    SCENES[sys.argv[1]](Path(sys.argv[3])).write(int(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
