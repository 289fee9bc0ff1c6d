"""What verification has to say: the first difference, why it could not tell, and what it looked at.

Owns: these shapes. Read next: :mod:`oncegate.proof.verify.verifier`.
"""

from __future__ import annotations

from typing import Final

import msgspec

SHOWN_CHARACTERS_MAX: Final = 200


class Difference(Exception):
    """Two things that must be equal are not.

    Attributes:
        node: id of the node that has it, or ids joined by `` and `` where nothing says which of them is right.
        place: file or directory.
        what: index, commit number, batch or key.
        expected, found: in words, each cut to ``SHOWN_CHARACTERS_MAX``.
    """

    def __init__(self, node: str, place: object, what: str, expected: object, found: object) -> None:
        self.node = node
        self.place = str(place)
        self.what = what
        self.expected = shown(expected)
        self.found = shown(found)
        super().__init__(f"{node}: {self.place}: {what}: expected {self.expected}, found {self.found}")


class Undecided(Exception):
    """Nothing differs so far, and the rest cannot be looked at; the text says why."""


class DifferenceFound(msgspec.Struct, frozen=True):
    """A :class:`Difference` as it is printed."""

    node: str
    place: str
    what: str
    expected: str
    found: str


class NodeReport(msgspec.Struct):
    """What was looked at on one node.

    Attributes:
        saved_index: the log index of its saved state, 0 without one.
        log_first, log_last: entries its log holds.
        commit_index: the newest entry that it is known to have committed.
        digest: of the state at :attr:`Report.index`, empty if it was not brought there.
        batches: segment files compared.
    """

    node: str
    directory: str
    saved_index: int = 0
    log_first: int = 0
    log_last: int = 0
    commit_index: int = 0
    digest: str = ""
    batches: int = 0


class Report(msgspec.Struct):
    """The outcome: ``equal``, ``different`` or ``unknown``.

    Attributes:
        index: log index at which the states were compared.
        entries, rows, records, items, store_rows: how many were looked at.
        difference: the first one.
        undecided: what could not be decided, and why.
        notes: what is not as usual and not wrong.
    """

    verdict: str = "equal"
    index: int = 0
    entries: int = 0
    rows: int = 0
    records: int = 0
    items: int = 0
    store_rows: int = 0
    nodes: list[NodeReport] = []
    difference: DifferenceFound | None = None
    undecided: list[str] = []
    notes: list[str] = []

    def settle(self, difference: Difference | None) -> None:
        """Decide the verdict."""
        if difference is not None:
            self.difference = msgspec.convert(difference, DifferenceFound, from_attributes=True)
        self.verdict = "different" if self.difference else "unknown" if self.undecided else "equal"


def shown(value: object) -> str:
    """Return a value as text of bounded length."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"
