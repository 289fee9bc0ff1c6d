"""What the commands of an entry will look up, so that it is read in one go before they are applied.

Owns: which rows and idempotency keys are named. It changes no result, only what the look-ups cost: a row that is left
out is read when its turn comes, and one too many is read for nothing. Pure, part of the state machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.key_records import name_of
from oncegate.rifl.key_table import KeyTable


def look_ahead(commands: Iterable[c.Command], tables: Mapping[str, Table], keys: KeyTable) -> None:
    """Read ahead what commands will look up: of each resident table the rows, unless it is one, and the keys."""
    rows: dict[str, list[str]] = {}
    under: list[str] = []
    for command in commands:
        if type(command) is c.Operate:
            parts: Sequence[c.Op | c.Transaction | c.Puts] = command.parts
        elif type(command) is c.Keyed:
            under += [name_of(command.tenant, item.key) for item in command.ops]
            parts = [item.op for item in command.ops]
        else:
            continue
        for part in parts:
            if isinstance(part, c.Puts):
                rows.setdefault(part.table, []).extend(part.keys)
                continue
            for op in part.writes if isinstance(part, c.Transaction) else (part,):
                if op.table in rows:
                    rows[op.table].append(op.key)
                else:  # most often there is one, which costs no call
                    rows[op.table] = [op.key]
    for name, wanted in rows.items():
        table = tables.get(name)
        if table is not None and table.kind == "resident" and len(wanted) > 1:
            table.rows.look_ahead(wanted)
    if under:
        keys.look_ahead(under)
