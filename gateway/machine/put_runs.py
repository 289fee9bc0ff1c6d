"""Runs of plain puts: what travels in columns. Pure.

Owns: which operations of a request become columns in the log entry (:class:`oncegate.gateway.machine.commands.Puts`).
They mean the same; a run whose puts are all new (:func:`oncegate.rifl.rule.is_new_run`) is executed at once, by
:func:`oncegate.gateway.machine.effects.write_run`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, cast

import msgspec

from oncegate.gateway.machine import commands as c

RUN_MIN: Final = 6
"""Fewer puts cost less one by one."""
_PUT: Final = c.OpKind.PUT.value
_Part: TypeAlias = c.Op | c.Transaction | c.Puts


def in_columns(command: c.Command) -> c.Command:
    """Return a request with its runs of plain puts as columns, if they are half of it or more; else as it is."""
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
