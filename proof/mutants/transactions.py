"""Planted bugs of transactions. Read next: :mod:`oncegate.proof.mutants.mutant`,
:mod:`oncegate.gateway.machine.transactions`.
"""

from __future__ import annotations

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import transactions
from oncegate.gateway.machine.flow_state import FlowTable
from oncegate.gateway.machine.row_rule import holds, refused, row_after
from oncegate.proof.mutants.forgotten import executes
from oncegate.proof.mutants.mutant import Mutant, enter, plants
from oncegate.rifl import rule as rule_module
from oncegate.rifl.rule import Replay

_KILLS = {"kill": 8, "power loss": 4, "transfer": 6}
_write_together = transactions.write_together
_trial = transactions._trial

enter(
    Mutant(
        "transaction-without-dedup",
        "a transaction that is sent again moves the money again",
        "ledger",
        ((rule_module, "decide", executes(Replay)),),
    )
)


@plants("half-applied-transaction", "ledger", (transactions, "write_together"))
def _half(machine, first, writes, client_id, sequence, traceparent="", cause=""):
    """The last write of a transaction is left out."""
    _write_together(machine, first, writes[:-1], client_id, sequence, traceparent, cause)


@plants("condition-on-the-state-after", "ledger", (transactions, "_failed_condition"))
def _judged_after(machine, client_id, tracker, transaction):
    """Conditions see what the transaction itself writes."""
    effects = []
    _trial(machine, client_id, transaction, machine.commit + 1, effects)
    after = {(table.name, key): row for _, table, key, _, row, _ in effects}
    for at, one in enumerate(transaction.conditions):
        place = one.table, one.key
        row = after[place] if place in after else machine.tables[one.table].rows.get(one.key)
        if not holds(one.test, one.operand, row):
            return transactions._stopped(refused("CONDITION_FAILED", row), f"conditions[{at}]")
    return None


@plants("floor-judged-before", "ledger", (transactions, "row_after"))
def _overdraws(op, row, commit, life=None):
    """The overdraft guard looks at the balance before the withdrawal."""
    floor = None if op.options is None else op.options.floor
    if floor is not None and row is not None and int(row.value) >= floor:
        op = c.with_options(op, floor=None)
    return row_after(op, row, commit, life)


@plants("straddled-batch", "ledger", (FlowTable, "append_group"))
def _cuts_anywhere(flows, table, items, time_ms, client_id, sequence, traceparent=""):
    """A batch may end between two items of a transaction."""
    for commit, key, value in items:
        flows.append_one(table, commit, key, value, time_ms, client_id, sequence, traceparent)


@plants("refused-transaction-not-undone", "ledger", (transactions, "_trial"))
def _keeps_what_went_before(machine, client_id, transaction, first, effects):
    """What a transaction wrote before the write that refuses it stays."""
    done = _trial(machine, client_id, transaction, first, effects)
    if isinstance(done, transactions.Transacted) and done.refusal is not None:
        for commit, table, key, before, after, _ in effects:
            table.change(key, before, after, commit)
    return done
