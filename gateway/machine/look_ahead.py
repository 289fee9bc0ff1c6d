"""What the commands of an entry will look up, so that it is read in one go before they are applied.

Owns: which rows and idempotency keys are named. It changes no result, only what the look-ups cost: a row that is left
out is read when its turn comes, and one too many is read for nothing. Pure, part of the state machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.key_records import name_of
from oncegate.rifl.key_table import KeyTable

# Looking into a union of classes costs more than into a tuple.
_SINGLES: Final = (c.Operate, c.OperateMixed)


class Named(NamedTuple):
    """What commands name: keys of rows by table, and idempotency keys with their tenants; in order, some repeatedly."""

    rows: Mapping[str, list[str]]
    under: list[str]


def named(commands: Iterable[c.Command]) -> Named:
    """Return what these commands will look up: the rows that they write or read, and the keys that they come under."""
    rows: defaultdict[str, list[str]] = defaultdict(list)
    under: list[str] = []
    for command in commands:
        if isinstance(command, _SINGLES):
            for op in c.writes_of(command.ops):
                rows[op.table].append(op.key)
        elif isinstance(command, c.OperateRuns):
            for part in command.parts:
                if type(part) is c.Puts:
                    rows[part.table] += part.keys
                else:
                    for op in part.ops:
                        rows[op.table].append(op.key)
        elif isinstance(command, c.UNDER_KEYS):
            under += [name_of(command.tenant, item.key) for item in command.ops]
            for op in c.writes_of(c.operations_of(command)):
                rows[op.table].append(op.key)
    return Named(rows, under)


def look_ahead(commands: Iterable[c.Command], tables: Mapping[str, Table], keys: KeyTable) -> None:
    """Read ahead what commands will look up: the rows of each resident table, unless it is one, and the keys."""
    rows, under = named(commands)
    for name, wanted in rows.items():
        table = tables.get(name)
        if table is not None and table.kind == "resident" and len(wanted) > 1:
            table.rows.look_ahead(wanted)
    if under:
        keys.look_ahead(under)
