"""The configurations of one log, by the index of the entry that carries each; pure.

The newest one in the log is in force from the moment it is appended, committed or not (Raft thesis §4.1): then any two
majorities that may decide at the same time share a node, as long as one change at a time is appended. A truncation
takes a configuration back, a replay of the journal finds them again. Knows nothing of quorums or connections.
Read next: :mod:`oncegate.consensus.configuration`, :mod:`oncegate.consensus.core.reconfiguration` for the leader's
side.
"""

from __future__ import annotations

import msgspec

from oncegate.consensus.configuration import Configuration, decode, encode
from oncegate.consensus.errors import SafetyViolation

_FIRST_INDEX = 1
"""Of the log's first entry, the same on every node; the initial configuration is in force from there."""


class Membership:
    """The base configuration, and those appended after it that are not compacted."""

    def __init__(self) -> None:
        self._base = Configuration({})
        self._base_index = 0
        self._later: list[tuple[int, Configuration]] = []
        self.current = self._base
        """The configuration in force."""
        self.current_index = 0
        """Index of the entry that carries it, or of the base."""
        self.voters: frozenset[str] = frozenset()
        """Of the current configuration, for those who ask at every message."""
        self.learners: frozenset[str] = frozenset()
        self.indexes: frozenset[int] = frozenset()
        """Of the log's entries that carry a configuration: they are no commands."""
        self.version = 0
        """Raised each time :attr:`current` is replaced."""

    def begin(self, initial: Configuration) -> None:
        """Give the configuration in force before the log's first change; without effect where a base is known."""
        if self._base_index == 0:
            self._base, self._base_index = initial, _FIRST_INDEX
            self._choose()

    def rebase(self, index: int, command: bytes) -> None:
        """Start from a saved point: ``command`` was in force at ``index``, and what came before is gone.

        Raises:
            SafetyViolation: the bytes are no configuration.
        """
        self._base, self._base_index = _read(index, command), index
        self._later = [entry for entry in self._later if entry[0] > index]
        self._choose()

    def appended(self, index: int, command: bytes) -> None:
        """Take note of an entry that begins with ``configuration.MAGIC``: it is in force now.

        Raises:
            SafetyViolation: it is none. Nobody but a leader's own code appends such an entry.
        """
        self._later.append((index, _read(index, command)))
        self._choose()

    def truncated(self, index: int) -> None:
        """Entries from ``index`` on are gone, and their configurations with them."""
        if self._later and self._later[-1][0] >= index:
            self._later = [entry for entry in self._later if entry[0] < index]
            self._choose()

    def compact(self, index: int) -> None:
        """Entries up to ``index`` leave the log: what is in force there becomes the base."""
        if index > self._base_index:
            self.rebase(index, self.at(index))

    def known_at(self, index: int) -> bool:
        """The log says who was a member at ``index``: to a node that joins not before its first configuration entry."""
        return bool(self._base.members) or (bool(self._later) and self._later[0][0] <= index)

    def at(self, index: int) -> bytes:
        """Encoded configuration in force at ``index``; equal bytes on every node that has the same log.

        Raises:
            SafetyViolation: the log does not know it any more.
        """
        if index < self._base_index:
            raise SafetyViolation(f"the configuration at entry {index} is compacted; the base is {self._base_index}")
        found = self._base
        for appended_at, configuration in self._later:
            if appended_at > index:
                break
            found = configuration
        return encode(found)

    def committed(self, commit_index: int) -> Configuration:
        """The newest configuration that is known to be committed."""
        found = self._base
        for appended_at, configuration in self._later:
            if appended_at <= commit_index:
                found = configuration
        return found

    def _choose(self) -> None:
        self.current_index, self.current = self._later[-1] if self._later else (self._base_index, self._base)
        self.voters, self.learners = self.current.voters, self.current.learners
        self.indexes = frozenset(index for index, _ in self._later)
        self.version += 1


def _read(index: int, command: bytes) -> Configuration:
    try:
        return decode(command)
    except msgspec.DecodeError as error:
        raise SafetyViolation(f"entry {index} begins as a configuration and is none: {error}") from error
