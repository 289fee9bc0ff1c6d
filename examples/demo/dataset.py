"""The real messages that the demo sends: one private message a line, with a sender, a receiver and a time.

Owns: the file's form, the keys and values under which a message travels, and what is published about the whole file.
Must not know the gateway, Spark or a store. Source: ``examples/README.md``. Read next: :mod:`examples.demo.plan`.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from examples.demo.errors import CouldNotRun

Int64s = npt.NDArray[np.int64]

DATA_FILE: Final = Path(__file__).resolve().parents[1] / "collegemsg.txt.gz"
MESSAGES_ALL: Final = 59_835
EDGES_ALL: Final = 20_296
ROWS_ALL: Final = 3_576_505
"""Rows that all messages fan out to: the published count that the recount must reach on the whole file."""

_HEADER: Final = "sender receiver unix_time_s"


class DatasetError(CouldNotRun):
    """The file is missing or is not the one that the demo knows."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The first lines of the file as columns of int64, equally long; message ``i`` is line ``i + 1``.

    Attributes:
        sender: who wrote, 1..1899.
        receiver: who was written to.
        sent_at: Unix time in seconds.
        edges: shape (edges, 2), (sender, contact), distinct and ascending, of the whole file however many lines were
            asked for: a shorter run sends fewer posts to the same contacts.
    """

    sender: Int64s
    receiver: Int64s
    sent_at: Int64s
    edges: Int64s

    def __len__(self) -> int:
        return len(self.sender)

    @property
    def is_whole(self) -> bool:
        """Whether these are all messages of the published file."""
        return len(self) == MESSAGES_ALL

    def fan_out(self) -> Int64s:
        """Return for each message the number of contacts it goes to: what progress is measured in."""
        contacts = np.bincount(self.edges[:, 0], minlength=int(self.sender.max(initial=0)) + 1)
        return contacts[self.sender].astype(np.int64)

    def value(self, number: int) -> dict[str, int]:
        """Return the value that line ``number`` travels with."""
        at = number - 1
        # In the order that canonical JSON has, so that a copy by hand is the same text byte for byte.
        return {"receiver": int(self.receiver[at]), "sender": int(self.sender[at]), "sent_at": int(self.sent_at[at])}


def key_of(number: int) -> str:
    """Return the key of line ``number``, from 1: identical lines are different messages."""
    return f"m{number:07d}"


def load(path: Path = DATA_FILE, *, limit: int | None = None) -> Messages:
    """Read the messages.

    Args:
        path: gzip-compressed text, one header line.
        limit: how many lines are sent, from the first; all by default, and at most as many as there are.

    Raises:
        DatasetError: it cannot be read, or its lines are not three integers.
    """
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            header = file.readline().rstrip("\n")
            if header != _HEADER:
                raise DatasetError(f"{path.name} starts with {header[:60]!r}, not {_HEADER!r}")
            table = np.loadtxt(file, dtype=np.int64, ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as fault:
        raise DatasetError(f"cannot read {path.name}: {fault}") from fault
    if table.shape[1:] != (3,):
        raise DatasetError(f"{path.name} does not hold three numbers a line")
    edges = np.unique(table[:, :2], axis=0)
    lines = table if limit is None else table[:limit]
    sender, receiver, sent_at = (np.ascontiguousarray(lines[:, column]) for column in range(3))
    return Messages(sender, receiver, sent_at, edges)
