"""How a leader makes an entry of the commands that wait: when, with which stamp, in which form. Pure.

Owns: the rule of group commit, the mapping from a node's monotonic clock to cluster time, and which operations of a
request travel in columns. Times come in as values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, cast

import msgspec

from oncegate.gateway.machine import commands as c

SMALL_BYTES: Final = 16 * 1024
"""Waiting commands of fewer bytes, together, wait for what is under way."""
SILENCE_MS_MAX: Final = 200
"""Readings further apart mean that the node slept. The node reads its clock every few milliseconds while it leads, and
consensus excuses what it slept beyond two heartbeats: a leader that stays leader has its clock held back by as much."""
RUN_MIN: Final = 6
"""Fewer puts cost less one by one."""
_PUT: Final = c.OpKind.PUT.value
_Part: TypeAlias = c.Op | c.Transaction | c.Puts


def leaves_now(waiting_bytes: int, entries_under_way: int) -> bool:
    """Tell whether what waits is proposed now.

    An entry costs three nodes what twenty to fifty small commands in it do: it is encoded, sent, flushed,
    acknowledged, committed and applied once, however many it holds. Commands of independent clients come one by one, so
    a leader that proposes what one turn of its loop has brought makes entries of a few; while one of them is on its way
    the next ones wait, and share the next entry. Nobody waits for a timer, a lone command for nothing, and none longer
    than the entries that were under way when it came. A request of many operations is an entry by itself: its flush and
    its way to the followers overlap with those of the one before, which is what few clients with large requests live
    on.

    Args:
        waiting_bytes: of the commands that wait, together.
        entries_under_way: proposed, and neither applied nor given up.
    """
    return not entries_under_way or waiting_bytes >= SMALL_BYTES


class ClusterClock:
    """Gives stamps that never go back. One per node; used only while it leads.

    A new leader starts from the cluster time of the last entry it applied and adds what has passed on its own monotonic
    clock since, so no two machines' clocks are ever compared, a wall clock that is a day off changes nothing, and time
    in which no leader could renew a lease does not pass at all: neither an outage nor a leader that sleeps (a frozen
    process, a paused machine) expires anybody (SEMANTICS, *The apply rule*).
    """

    __slots__ = ("_base_ms", "_base_s", "_last_ms", "_read_s", "_silence_s_max")

    def __init__(self, silence_ms_max: int = SILENCE_MS_MAX) -> None:
        """``silence_ms_max``: of a longer time between two readings, only this much counts."""
        self._silence_s_max = silence_ms_max / 1000
        self._base_ms = 0
        self._base_s = self._read_s = 0.0
        self._last_ms = 0

    def lead_from(self, applied_ms: int, monotonic_s: float) -> None:
        """Start a leadership: ``applied_ms`` is the cluster time of the newest applied entry."""
        self._base_ms = self._last_ms = applied_ms
        self._base_s = self._read_s = monotonic_s

    def stamp_ms(self, monotonic_s: float) -> int:
        """Return cluster time now, at least the stamp before."""
        slept_s = monotonic_s - self._read_s - self._silence_s_max
        if slept_s > 0:
            self._base_s += slept_s
        if monotonic_s > self._read_s:
            self._read_s = monotonic_s
        now_ms = self._base_ms + int((monotonic_s - self._base_s) * 1000)
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        return self._last_ms


def in_columns(command: c.Command) -> c.Command:
    """Return a request with its runs of plain puts as columns, if they are half of it or more; else as it is.

    They mean the same; a run whose puts are all new (:func:`oncegate.rifl.rule.is_new_run`) is executed at once, by
    :func:`oncegate.gateway.machine.effects.write_run`.
    """
    if type(command) is not c.Operate or len(command.parts) < RUN_MIN or command.in_order:
        return command
    parts: list[c.Op | c.Transaction | c.Puts] = []
    in_runs = 0
    for run in _runs(command.parts):
        if len(run) < RUN_MIN:
            parts += run
            continue
        in_runs += len(run)
        puts = cast(list[c.Op], run)
        prints = struct.pack(f">{len(puts)}Q", *[op.fingerprint for op in puts])
        values = [op.value or b"null" for op in puts]
        parts.append(c.Puts(puts[0].sequence, puts[0].table, prints, [op.key for op in puts], values))
    return command if 2 * in_runs < len(command.parts) else msgspec.structs.replace(command, parts=parts)


def _runs(parts: Sequence[_Part]) -> Iterator[Sequence[_Part]]:
    """Cut at each part but a plain put that goes on where the one before it ends: on its table, under the next number.

    What is no plain put is alone.
    """
    table: str | None = None
    start = following = 0
    for at, one in enumerate(parts):
        if type(one) is c.Op and one.kind == _PUT and not one.test and one.options is None:
            if one.table == table and one.sequence == following:
                following += 1
                continue
            before, table, following = start, one.table, one.sequence + 1
        else:
            before, table = start, None
        if at:
            yield parts[before:at]
        start = at
    yield parts[start:]
