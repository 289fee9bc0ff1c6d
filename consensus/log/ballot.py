"""Current term and vote, durable before anything is said that depends on them (Raft §5.1, §5.2).

Owns the file ``ballot``. A ballot that cannot be read means the node may have voted without knowing it,
so it refuses to start. Read next: :mod:`oncegate.consensus.log.sealed_file`.
"""

from __future__ import annotations

import msgspec

from oncegate.consensus.errors import Corrupt
from oncegate.consensus.log.reserve import write_small
from oncegate.consensus.log.sealed_file import read_sealed_struct
from oncegate.consensus.log.storage import Storage

BALLOT_FILE = "ballot"
_MAGIC = b"OGBALLT1"


class _Record(msgspec.Struct, array_like=True, frozen=True):
    term: int
    voted_for: str | None


class Ballot:
    """The term this node is in and whom it voted for in that term."""

    def __init__(self, storage: Storage, term: int, voted_for: str | None) -> None:
        self._storage = storage
        self._term = term
        self._voted_for = voted_for

    @classmethod
    def create(cls, storage: Storage) -> Ballot:
        """Write the ballot of a node that has never taken part."""
        ballot = cls(storage, 0, None)
        ballot._write()
        return ballot

    @classmethod
    def load(cls, storage: Storage) -> Ballot:
        """Read the ballot; raises :class:`Corrupt` when it is missing, empty or changed."""
        if BALLOT_FILE not in storage.names():
            raise Corrupt(storage.label(BALLOT_FILE), 0, "the ballot is missing")
        record = read_sealed_struct(storage, BALLOT_FILE, _MAGIC, _Record)
        return cls(storage, record.term, record.voted_for)

    @property
    def term(self) -> int:
        """Latest term seen; never goes back."""
        return self._term

    @property
    def voted_for(self) -> str | None:
        """Candidate that got this node's vote in :attr:`term`."""
        return self._voted_for

    def save(self, term: int, voted_for: str | None) -> None:
        """Make term and vote durable before returning; raises ``OSError`` when that fails."""
        if (term, voted_for) == (self._term, self._voted_for):
            return
        self._term = term
        self._voted_for = voted_for
        self._write()

    def _write(self) -> None:
        payload = msgspec.msgpack.encode(_Record(self._term, self._voted_for))
        write_small(self._storage, BALLOT_FILE, _MAGIC, payload)
