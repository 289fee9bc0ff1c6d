"""The file of the durable outbox: what was written is read back, anything else is refused by name, and a session that
cannot write to it sends nothing."""

from __future__ import annotations

import os
import pickle
import sqlite3
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate import Client, Outcome, OutcomeUnknown, RequestId, Resolution, Transaction, WriteResult
from oncegate.gateway.client.outbox_file import FORMAT, Head, NewEntry, OutboxDamaged, OutboxFile
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ClientId, SequenceNumber
from oncegate.testing import FakeGateway
from tests.client.answers import fails

OWNER = 1234


def entry(sequence: int, value: object = 1) -> NewEntry:
    return NewEntry(sequence, msgspec.msgpack.encode(Operation(sequence, "put", "rows", f"k{sequence}", value)))


def made(path: Path, count: int = 20) -> None:
    file = OutboxFile(path)
    file.write(head=Head(client_id=OWNER, window=512))
    file.write([entry(n, "v" * 50) for n in range(1, count + 1)])
    file.close()


def read(path: Path) -> dict[int, tuple[object, bool]]:
    file = OutboxFile(path)
    try:
        return {found.sequence: (found.operation.value, found.doubted) for found in file.loaded}
    finally:
        file.close()


steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 12), st.integers()), max_size=4),
        st.lists(st.integers(1, 12), max_size=4),
        st.lists(st.integers(1, 12), max_size=4),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_file_reads_back_as_a_dictionary_of_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[tuple[int, int]], list[int], list[int]]]
) -> None:
    path = tmp_path_factory.mktemp("outbox") / "o"
    model: dict[int, tuple[object, bool]] = {}
    file = OutboxFile(path)
    file.write(head=Head(client_id=OWNER, window=512))
    for at, (added, dropped, doubted) in enumerate(steps):
        file.write(
            [entry(n, value % 2**60) for n, value in dict(added).items()],
            [(OWNER, n) for n in dropped],
            [(OWNER, n) for n in doubted],
        )
        for n in dropped:
            model.pop(n, None)
        model.update({n: (model[n][0], True) for n in doubted if n in model})
        model.update({n: (value % 2**60, False) for n, value in dict(added).items()})
        for n in (1, 12):
            found = file.entry(OWNER, n)
            assert (None if found is None else (found.operation.value, found.doubted)) == model.get(n)
        if at % 3 == 2:
            assert {found.sequence for found in file.reload()} == set(model)
        assert len(file) == len(model)
        assert file.bytes == sum(len(entry(n, value).body) for n, (value, _) in model.items())
    file.close()
    assert read(path) == model


numbers = st.sets(st.integers(1, 6), max_size=4)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=8))
def test_fate_of_an_entry_stays_until_the_entry_goes_whatever_is_noted_with_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[set[int], set[int], set[int], set[int]]]
) -> None:
    path = tmp_path_factory.mktemp("outbox") / "o"
    model: dict[int, Resolution | None] = {}
    file = OutboxFile(path)
    file.write(head=Head(client_id=OWNER, window=512))
    for commit, (added, dropped, doubted, learned) in enumerate(steps, 1):
        ids = {n: RequestId(ClientId(OWNER), SequenceNumber(n)) for n in learned}
        fates = {
            n: Resolution("applied", WriteResult(*one, True, commit, commit, None, False, 0)) for n, one in ids.items()
        }
        file.write(
            [*map(entry, added)],
            [(OWNER, n) for n in dropped],
            [(OWNER, n) for n in doubted],
            [(ids[n], fate) for n, fate in fates.items()],
        )
        model.update({n: model[n] or fate for n, fate in fates.items() if n in model})
        for n in dropped:
            model.pop(n, None)
        model.update(dict.fromkeys(added))
        assert (len(file), file.unsettled) == (len(model), list(model.values()).count(None))
    file.close()
    again = OutboxFile(path)
    assert {found.sequence: found.fate for found in again.loaded} == model
    assert {found.operation.value for found in again.loaded} <= {1}
    assert again.head.format == FORMAT
    again.close()


def test_new_file_is_flushed_with_its_name_whatever_sqlite_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.fstat(fd).st_ino))
    OutboxFile(tmp_path / "outbox").close()
    assert flushed == [tmp_path.stat().st_ino]


def test_new_file_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made(tmp_path / "outbox")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_transaction_cut_off_by_a_crash_is_undone_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "o"
    made(path, 3)
    before = path.read_bytes()
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=DELETE")
    database.execute("PRAGMA cache_spill=1")
    database.execute("PRAGMA cache_size=1")
    database.execute("BEGIN")
    database.executemany(
        "INSERT INTO entry VALUES (?, ?, 0, 0, ?, 0)", [(OWNER, n, b"torn" * 200) for n in range(10, 200)]
    )
    torn, journal = path.read_bytes(), Path(f"{path}-journal").read_bytes()
    database.execute("ROLLBACK")
    database.close()
    assert torn != before
    path.write_bytes(torn)
    Path(f"{path}-journal").write_bytes(journal)
    assert list(read(path)) == [1, 2, 3]


def test_every_flipped_byte_that_matters_is_refused_by_name(tmp_path: Path) -> None:
    path, damaged = tmp_path / "o", tmp_path / "damaged"
    made(path)
    whole = path.read_bytes()
    good = read(path)
    refused = 0
    for at in range(0, len(whole), 13):
        flipped = bytearray(whole)
        flipped[at] ^= 0x20
        damaged.write_bytes(flipped)
        refused += _refused_by_name(damaged, good)
    assert refused > len(whole) // 13 // 20


def _refused_by_name(path: Path, good: object) -> bool:
    try:
        found = read(path)
    except OutboxDamaged as fault:
        return str(path) in str(fault)
    assert found == good  # padding and counters of SQLite: nothing of ours
    return False


def test_missing_entry_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "o"
    made(path)
    database = sqlite3.connect(path)
    database.execute("DELETE FROM entry WHERE sequence = 7")
    database.commit()
    database.close()
    with pytest.raises(OutboxDamaged, match="19 entries are there and 20 were written"):
        OutboxFile(path)


def test_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "o"
    path.write_bytes(b"not an outbox at all" * 100)
    with pytest.raises(OutboxDamaged) as refused:
        OutboxFile(path)
    assert pickle.loads(pickle.dumps(refused.value)).path == str(path)


def test_reader_needs_no_lock_and_writer_has_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "o"
    with fails(Code.NOT_FOUND):
        OutboxFile(path, read_only=True)
    made(path)
    owner = OutboxFile(path)
    with fails(Code.CONFLICT):
        OutboxFile(path)
    reader = OutboxFile(path, read_only=True)
    assert len(reader) == 20
    reader.close()
    owner.close()
    assert len(read(path)) == 20


async def test_second_process_with_the_same_file_is_refused(fake: FakeGateway, tmp_path: Path) -> None:
    async with Client(fake.endpoints) as client, client.session(outbox=tmp_path / "o"):
        with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
            await client.session(outbox=tmp_path / "o").__aenter__()


async def test_full_outbox_refuses_writes_that_have_not_travelled(
    fake: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncegate.gateway.client.durable_outbox.BYTES_MAX", 200)
    async with Client(fake.endpoints) as client, client.session(outbox=tmp_path / "o") as session:
        await session.put("rows", "k", 0, position=1)
        with fails(Code.QUOTA, Outcome.NOT_APPLIED):
            await session.put("rows", "k", "x" * 300, position=2)
        assert (await session.put("rows", "k", 1)).applied
        assert session.position == 1, "what was not taken in does not count as read"


async def test_outbox_that_cannot_be_written_ends_the_session(
    fake: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: OutboxFile, *args: object, **how: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async with Client(fake.endpoints) as client, client.session(outbox=tmp_path / "o") as session:
        await session.put("rows", "a", 1)
        monkeypatch.setattr(OutboxFile, "write", fail)
        with pytest.raises(OutcomeUnknown):
            await session.put("rows", "b", 1)
        with fails(outcome=Outcome.NOT_APPLIED):
            await session.put("rows", "c", 1)
        assert session.lost.is_set()
    assert [write.key for write in fake.executed] == ["a"]


def test_outbox_is_read_whole_while_its_owner_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that came between reading the head and reading the entries was told as damage."""
    path = tmp_path / "o"
    owner = OutboxFile(path)
    owner.write(head=Head(client_id=OWNER, window=512))
    connect = OutboxFile._connect

    class Beside:
        """A connection whose reader is overtaken by the owner before it reads the entries, if it can be."""

        def __init__(self, database: sqlite3.Connection) -> None:
            self._database = database
            self.close = database.close

        def execute(self, statement: str) -> sqlite3.Cursor:
            if statement.startswith("SELECT * FROM entry"):
                wait([pool.submit(owner.write, [entry(1)])], timeout=0.2)
            return self._database.execute(statement)

    monkeypatch.setattr(OutboxFile, "_connect", lambda file, read_only: Beside(connect(file, read_only=read_only)))
    with ThreadPoolExecutor(1) as pool:
        beside = OutboxFile(path, read_only=True)
        assert beside.loaded == []
        beside.close()
    assert len(owner) == 1
    owner.close()


def test_transaction_in_an_outbox_is_named_by_its_first_write(tmp_path: Path) -> None:
    two = Transaction().put("receipts", "o1", 1).increment("shop", "sold").operation
    file = OutboxFile(tmp_path / "o")
    file.write(head=Head(client_id=OWNER, window=512))
    file.write([NewEntry(1, msgspec.msgpack.encode(two))])
    (found,) = file.reload()
    file.close()
    assert (found.op, found.table, found.key) == ("transaction", "receipts", "o1")
