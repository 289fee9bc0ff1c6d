"""Commands on their way: waiting to be appended, then waiting to be applied; pure bookkeeping with bounds.

Every token that goes in comes out once: with a result, or with an error that says whether the command may
still be applied. Read next: :mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from oncegate.consensus.config import COMMAND_BYTES_MIN, ReplicaConfig
from oncegate.consensus.configuration import MAGIC
from oncegate.consensus.errors import (
    CommandRefused,
    CommandReserved,
    ConsensusError,
    LeadershipLost,
    NotLeader,
    Overloaded,
)
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES
from oncegate.consensus.log.wal import Journal

Token = TypeVar("Token")


class Proposals(Generic[Token]):
    """The commands of one leader."""

    def __init__(
        self,
        config: ReplicaConfig,
        on_result: Callable[[Token, object], None],
        on_failure: Callable[[Token, ConsensusError], None],
    ) -> None:
        self._config = config
        self._reserve_bytes = config.reserve_bytes
        self._on_result = on_result
        self._on_failure = on_failure
        self._queued: list[tuple[bytes, Token]] = []
        self._queued_bytes = 0
        self._appended: dict[int, tuple[Token, int]] = {}
        self._appended_bytes = 0

    @property
    def queued(self) -> bool:
        """Commands wait to be appended."""
        return bool(self._queued)

    @property
    def load(self) -> tuple[int, int, int, int]:
        """Commands and bytes that wait to be appended, then those appended and not applied."""
        return len(self._queued), self._queued_bytes, len(self._appended), self._appended_bytes

    def add(self, command: bytes, token: Token, journal_bytes: int, room_bytes: int | None = None) -> None:
        """Queue a command; ``room_bytes`` is what the log has room for, None while the disk is not full.

        Raises:
            CommandRefused, CommandReserved, Overloaded: nothing was queued.
            TypeError: the command is not ``bytes``.
        """
        if type(command) is not bytes:
            # What cannot be written would be found out only inside a tick, which ends the process.
            raise TypeError(f"a command is bytes, not {type(command).__name__}")
        size = len(command)
        config = self._config
        if not COMMAND_BYTES_MIN <= size <= config.command_bytes_max:
            raise CommandRefused(size, COMMAND_BYTES_MIN, config.command_bytes_max)
        if not command[0] and command.startswith(MAGIC):
            raise CommandReserved("a command does not begin like a configuration entry")
        if self._queued_bytes + self._appended_bytes + size > config.uncommitted_bytes_max:
            raise Overloaded("uncommitted_bytes_max", config.uncommitted_bytes_max)
        # One segment is always being prepared, and counts.
        if journal_bytes + self._queued_bytes + size + config.journal_segment_bytes > config.journal_bytes_max:
            raise Overloaded("journal_bytes_max", config.journal_bytes_max)
        if room_bytes is not None:
            queued_bytes = self._queued_bytes + size + (len(self._queued) + 1) * RECORD_HEADER_BYTES
            if queued_bytes + self._reserve_bytes > room_bytes:
                raise Overloaded("journal_room_bytes", room_bytes)
        self._queued_bytes += size
        self._queued.append((command, token))

    def append_to(self, journal: Journal, term: int) -> None:
        """Append everything queued; not flushed yet. What a full disk has no room for fails as ``Overloaded``."""
        if not self._queued:
            return
        queued, self._queued = self._queued, []
        reserve_bytes = self._reserve_bytes
        for number, (command, token) in enumerate(queued):
            if not journal.has_room(RECORD_HEADER_BYTES + len(command), reserve_bytes=reserve_bytes):
                self._refuse(queued[number:], journal.room_bytes)
                break
            index = journal.last_index + 1
            journal.append(command, index, term)
            self._appended[index] = (token, len(command))
        self._appended_bytes += self._queued_bytes
        self._queued_bytes = 0

    def _refuse(self, queued: list[tuple[bytes, Token]], room_bytes: int) -> None:
        for command, token in queued:
            self._queued_bytes -= len(command)
            self._on_failure(token, Overloaded("journal_room_bytes", room_bytes))

    def applied(self, index: int, result: object) -> None:
        """An entry was applied; most of a follower's have nobody waiting."""
        waiting = self._appended.pop(index, None)
        if waiting is not None:
            self._appended_bytes -= waiting[1]
            self._on_result(waiting[0], result)

    def refuse_queued(self, leader_id: str | None) -> None:
        """What was not appended never will be."""
        queued, self._queued = self._queued, []
        self._queued_bytes = 0
        for _, token in queued:
            self._on_failure(token, NotLeader(leader_id))

    def abandon_appended(self) -> None:
        """What was appended may be committed by somebody else, or not."""
        appended, self._appended = self._appended, {}
        self._appended_bytes = 0
        for token, _ in appended.values():
            self._on_failure(token, LeadershipLost("leadership was lost before the entry was applied"))
