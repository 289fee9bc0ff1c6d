"""The file of a durable outbox: writes whose results have not arrived, kept before they travel.

Owns: the file's layout, its lock, and what counts as damage. Must not know asyncio or HTTP. Used from one thread at a
time, by :mod:`oncegate.gateway.client.durable_outbox` and by ``oncegate outbox ls``.

Layout, version 3: a SQLite database with a rollback journal (a commit cut off by a crash is undone as a whole).

| table | columns |
|---|---|
| ``entry`` | ``client_id``, ``sequence``, ``doubted``, ``taken_ms``, ``body`` (msgpack), ``crc`` |
| ``head`` | one row: ``body`` (msgpack of :class:`Head`), ``entries``, ``seal``, ``crc`` |

``doubted`` is 0 or 1, and ``body`` the operation; or 2, and ``body`` is :class:`Learned`.

``crc`` is CRC-32 over the row's other columns. ``entries`` and ``seal`` are the number of entries and the exclusive or
of their checksums, written in the same transaction: an entry that is changed, missing or too many is noticed.

A write-ahead log would be quicker and is not used: SQLite takes a bit flipped in it for the end of the log, and would
drop the transactions behind it without a word.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown
from oncegate.gateway.client.results import Resolution
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId, RequestId, SequenceNumber

FORMAT: Final = 3
_LEARNED: Final = 2
ENTRIES_MAX: Final = 65_536
BYTES_MAX: Final = 256 * 2**20
POSITION_BYTES_MAX: Final = 1024
_BUSY_S: Final = 5.0
_OF_ENTRY: Final = "FROM entry WHERE client_id = ? AND sequence = ?"

_TABLES: Final = """
CREATE TABLE entry (client_id INTEGER NOT NULL, sequence INTEGER NOT NULL, doubted INTEGER NOT NULL,
  taken_ms INTEGER NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (client_id, sequence)) WITHOUT ROWID;
CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL, entries INTEGER NOT NULL,
  seal INTEGER NOT NULL, crc INTEGER NOT NULL);
"""


class OutboxDamaged(OutcomeUnknown):
    """The file is not what was written: nothing of it is used, and nothing was sent.

    Attributes:
        path: which file.
    """

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(Code.INTERNAL, f"outbox {path} is damaged: {detail}", outcome=Outcome.UNKNOWN)
        self.path = path
        self._damage = detail

    def __reduce__(self) -> tuple[object, ...]:
        return (OutboxDamaged, (self.path, self._damage))


class Head(msgspec.Struct, frozen=True):
    """The session of these writes.

    Attributes:
        format: version of the layout.
        nonce: of the open under way; with no client id yet, the open is repeated with it.
        client_id, lease_ms, window: the session's, or 0.
        position: the application's newest position in its input, stored in the transaction of its write.
        cluster: identity of the cluster that they are for, empty while it is not known.
    """

    format: int = FORMAT
    nonce: str = ""
    client_id: int = 0
    lease_ms: int = 0
    window: int = 0
    position: Any = None
    cluster: str = ""


class OutboxEntry(msgspec.Struct, frozen=True):
    """One write without a result.

    Attributes:
        client_id: its session.
        sequence: its number there.
        op: ``put``, ``delete``, ``increment``, ``append``, ``get`` or ``transaction``.
        table, key: the row; of a transaction, that of its first write.
        operation: what travels.
        doubted: whether its caller was told that the outcome is unknown.
        taken_ms: when it was taken in, milliseconds of this machine's wall clock since 1970; for people only.
        fate: what became of it, learned after its caller was told that the outcome is unknown; None: not known.
    """

    client_id: ClientId
    sequence: SequenceNumber
    op: str
    table: str
    key: str
    operation: Operation
    doubted: bool
    taken_ms: int
    fate: Resolution | None = None

    @property
    def request_id(self) -> RequestId:
        """The id under which it travels, always the same."""
        return RequestId(self.client_id, self.sequence)


class Learned(msgspec.Struct, frozen=True, array_like=True):
    """A write whose caller was told that the outcome is unknown, with the fate that was learned since."""

    operation: msgspec.Raw
    fate: Resolution


class NewEntry(msgspec.Struct, frozen=True, gc=False):
    """A write about to travel: its number, and its operation as msgpack."""

    sequence: int
    body: bytes


class OutboxFile:
    """An open outbox. Exactly one process at a time holds it, unless it only reads.

    Args:
        path: the file; made if it is not there, with its lock beside it (``path.lock``).
        read_only: look without owning it: takes no lock, changes nothing.

    Raises:
        OutboxDamaged: it is not what was written.
        OperationFailed: CONFLICT while another process holds it; NOT_FOUND if there is none to read.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path = str(path)
        self._lock = -1
        self._held: dict[tuple[int, int], tuple[int, int]] = {}
        """Checksum and size of each entry."""
        self._settled: set[tuple[int, int]] = set()
        """Entries whose fate is known."""
        self.bytes = 0
        """Bytes of the operations in it."""
        self._seal = 0
        self.head = Head()
        if read_only and not Path(path).exists():
            raise OperationFailed(Code.NOT_FOUND, f"there is no outbox {path}", outcome=Outcome.NOT_APPLIED)
        if not read_only:
            self._lock = _locked(self.path)
        with ExitStack() as undo:
            undo.callback(self._unlock)
            self._database = self._connect(read_only=read_only)
            undo.callback(self._database.close)  # a transaction of it would keep the next one out while it is open
            self.loaded = self._load()
            undo.pop_all()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def unsettled(self) -> int:
        """Number of entries whose fate is not known."""
        return len(self._held) - len(self._settled)

    def _connect(self, *, read_only: bool) -> sqlite3.Connection:
        uri = f"{Path(self.path).absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        try:
            if not read_only:  # It holds payloads: nobody else's to read. SQLite gives its journal the same mode.
                os.close(os.open(self.path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_S, check_same_thread=False)
        except (sqlite3.DatabaseError, OSError) as fault:
            raise OutboxDamaged(self.path, str(fault)) from fault
        try:
            if not read_only:
                database.execute("PRAGMA journal_mode=TRUNCATE")
                database.execute("PRAGMA synchronous=FULL")
        except sqlite3.DatabaseError as fault:
            database.close()
            raise OutboxDamaged(self.path, str(fault)) from fault
        return database

    def _load(self) -> list[OutboxEntry]:
        """Read and check everything; returns the entries in the order in which they were numbered."""
        try:
            if not self._database.execute("SELECT 1 FROM sqlite_master").fetchone():
                self._create()
            verdict = self._database.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if verdict != "ok":
                raise OutboxDamaged(self.path, verdict)
            self._database.execute("BEGIN")  # an owner that writes between the two would look like damage
            head, count, seal, crc = self._database.execute("SELECT body, entries, seal, crc FROM head").fetchone()
            rows = self._database.execute("SELECT * FROM entry ORDER BY client_id, sequence").fetchall()
            self._database.execute("COMMIT")
        except (sqlite3.DatabaseError, OSError, TypeError, ValueError) as fault:
            raise OutboxDamaged(self.path, str(fault)) from fault
        try:
            if crc != _head_crc(head, count, seal):
                raise OutboxDamaged(self.path, "the head does not match its checksum")
            self.head = msgspec.msgpack.decode(head, type=Head)
            entries = [self._read(*row) for row in rows]
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as fault:
            raise OutboxDamaged(self.path, str(fault)) from fault
        if self.head.format != FORMAT:
            raise OutboxDamaged(self.path, f"its format is {self.head.format}, this is {FORMAT}")
        if (count, seal) != (len(entries), self._seal):
            raise OutboxDamaged(self.path, f"{len(entries)} entries are there and {count} were written")
        return entries

    def reload(self) -> list[OutboxEntry]:
        """Read and check everything again; returns the entries as they are now."""
        self._held.clear()
        self._settled.clear()
        self._seal = self.bytes = 0
        return self._load()

    def entry(self, client_id: int, sequence: int) -> OutboxEntry | None:
        """Return one entry, or None if it is not there."""
        if (client_id, sequence) not in self._held:
            return None
        row = self._database.execute(f"SELECT * {_OF_ENTRY}", (client_id, sequence)).fetchone()
        self._release((client_id, sequence))  # reading it counts it again
        return self._read(*row)

    def forked(self) -> None:
        """Close this process's copy of the lock, which a child inherits: it would outlive the parent."""
        self._unlock()

    def _create(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            self._database.execute(statement)
        self._write_head(self.head)
        # The file's name must survive a power loss as well as its content; first: once this is committed, nobody who
        # opens it asks for that again.
        directory = os.open(Path(self.path).absolute().parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._database.execute("COMMIT")

    def _read(self, client_id: int, sequence: int, doubted: int, taken_ms: int, body: bytes, crc: int) -> OutboxEntry:
        if crc != _entry_crc(client_id, sequence, doubted, taken_ms, body):
            raise OutboxDamaged(self.path, f"entry {client_id:016x}/{sequence} does not match its checksum")
        fate = None
        self._hold((client_id, sequence), crc, len(body))
        if doubted == _LEARNED:
            learned = msgspec.msgpack.decode(body, type=Learned)
            body, fate = bytes(learned.operation), learned.fate
            self._settled.add((client_id, sequence))
        operation = msgspec.msgpack.decode(body, type=Operation)
        operation.sequence = sequence
        row = operation.writes[0] if operation.writes else operation
        named = (operation.op, row.table, row.key, operation)
        return OutboxEntry(ClientId(client_id), SequenceNumber(sequence), *named, bool(doubted), taken_ms, fate)

    def write(
        self,
        added: Sequence[NewEntry] = (),
        dropped: Sequence[tuple[int, int]] = (),
        doubted: Sequence[tuple[int, int]] = (),
        learned: Sequence[tuple[RequestId, Resolution]] = (),
        *,
        head: Head | None = None,
        now_ms: int = 0,
    ) -> None:
        """Change the outbox in one transaction; returns when it is on disk.

        Args:
            added: writes of the current session; one with a number that is there already takes its place.
            dropped: ``(client_id, sequence)`` of entries that are settled; unknown ones are ignored.
            doubted: the same of entries whose callers were told that the outcome is unknown.
            learned: fates of entries; those of unknown ones are ignored.
            head: the new head, or None to leave it.
            now_ms: wall time, kept for people.

        Raises:
            sqlite3.Error: it may or may not have been written; nothing more may be written by this process.
        """
        if not (added or dropped or doubted or learned) and (head is None or head == self.head):
            return
        owner = (head or self.head).client_id
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        for request, fate in learned:  # first: what is told in the same transaction is dropped
            if request in self._held and request not in self._settled:
                body = database.execute(f"SELECT body {_OF_ENTRY}", request).fetchone()[0]
                self._mark(request, _LEARNED, msgspec.msgpack.encode(Learned(msgspec.Raw(body), fate)))
                self._settled.add(request)
        for key in dropped:
            if self._release(key):
                database.execute(f"DELETE {_OF_ENTRY}", key)
        for key in doubted:
            if key in self._held and key not in self._settled:
                self._mark(key, 1)
        rows = []
        for entry in added:
            crc = _entry_crc(owner, entry.sequence, 0, now_ms, entry.body)
            self._release((owner, entry.sequence))
            self._hold((owner, entry.sequence), crc, len(entry.body))
            rows.append((owner, entry.sequence, 0, now_ms, entry.body, crc))
        if rows:
            database.executemany("REPLACE INTO entry VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._write_head(head or self.head)
        database.execute("COMMIT")
        self.head = head or self.head

    def _mark(self, key: tuple[int, int], doubted: int, body: bytes | None = None) -> None:
        """Change what is known of an entry."""
        taken_ms, old = self._database.execute(f"SELECT taken_ms, body {_OF_ENTRY}", key).fetchone()
        body = old if body is None else body
        crc = _entry_crc(*key, doubted, taken_ms, body)
        self._release(key)
        self._hold(key, crc, len(body))
        self._database.execute(
            "UPDATE entry SET doubted = ?, body = ?, crc = ? WHERE client_id = ? AND sequence = ?",
            (doubted, body, crc, *key),
        )

    def _write_head(self, head: Head) -> None:
        body = msgspec.msgpack.encode(head)
        row = (body, len(self._held), self._seal, _head_crc(body, len(self._held), self._seal))
        self._database.execute("REPLACE INTO head VALUES (1, ?, ?, ?, ?)", row)

    def _hold(self, key: tuple[int, int], crc: int, size: int) -> None:
        self._held[key] = crc, size
        self._seal ^= crc
        self.bytes += size

    def _release(self, key: tuple[int, int]) -> bool:
        crc, size = self._held.pop(key, (None, 0))
        if crc is None:
            return False
        self._settled.discard(key)
        self._seal ^= crc
        self.bytes -= size
        return True

    def close(self) -> None:
        """Close the file and let others have it."""
        self._database.close()
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _locked(path: str) -> int:
    """Take the lock beside the file; it ends with the process, however that ends."""
    try:
        lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise OperationFailed(Code.BAD_REQUEST, f"outbox {path}: {fault.strerror}") from fault
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as held:
        os.close(lock)
        raise OperationFailed(
            Code.CONFLICT, f"outbox {path} is in use by another process", outcome=Outcome.NOT_APPLIED
        ) from held
    return lock


def _entry_crc(client_id: int, sequence: int, doubted: int, taken_ms: int, body: bytes) -> int:
    fixed = b"".join(part.to_bytes(8, "big") for part in (client_id, sequence, doubted, taken_ms))
    return zlib.crc32(body, zlib.crc32(fixed))


def _head_crc(body: bytes, entries: int, seal: int) -> int:
    return zlib.crc32(body, zlib.crc32(entries.to_bytes(8, "big") + seal.to_bytes(8, "big")))
