"""Transfers between accounts of two tables, each a transaction with an overdraft guard and a receipt, and an audit.

Deposits and transfers are retried, copied to several nodes and cut off like any operation. In the end the balances are
what the receipts add up to, no account is overdrawn, every acknowledged transfer has its receipt and no refused one
has, and the items of a transfer are in one batch. Read next: :mod:`oncegate.gateway.machine.transactions`.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from oncegate.flows.chunks import int64s_from_bytes
from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.workloads import Habits, Workload, text

HERE, THERE = "t", "u"
FLOW = "moves"


def _add(table, key, by, floor=None):
    return c.Op(0, int(c.OpKind.INCREMENT), table, key, 0, by=by, options=c.Options(floor=floor))


def transaction(conditions, writes):
    """Return a transaction without its number."""
    return c.Transaction(0, c.fingerprint_transaction(conditions, writes), conditions, writes)


class Ledger(Workload):
    """Deposits, and transfers that an overdraft refuses."""

    name = "ledger"
    habits = Habits(read_share=0.0, copies_share=0.4, hand_over_s=(0.4, 1.5), resolve_share=0.2)
    tables = ((HERE, "resident"), (THERE, "resident"))

    def __init__(self, world, rng):
        super().__init__(world, rng)
        self.flows = [FlowDeclaration(name=FLOW, source=HERE, max_items=rng.choice((2, 3, 5)), linger_ms=50)]
        self.ends = {}
        """By receipt: whether it was a deposit, and how it ended."""

    def write(self, rng, seen):
        number = self.unique()
        receipt, account, amount = f"r{number}", rng.choice(self.keys), rng.randint(1, 9)
        deposit = rng.random() < 0.4
        moves = {f"{HERE}/{account}": amount}
        if not deposit:
            moves = {f"{HERE}/{account}": -amount, f"{THERE}/{rng.choice(self.keys)}": amount}
        writes = [_add(*place.split("/"), by, 0 if by < 0 else None) for place, by in moves.items()]
        writes.insert(rng.randint(0, len(writes)), _add(HERE, "moves", 1))
        writes.append(c.Op(0, int(c.OpKind.PUT), THERE, receipt, 0, text(moves)))
        own = c.Condition(THERE, receipt, int(c.Test.ABSENT))
        return "deposit" if deposit else "transfer", receipt, moves, transaction([own], writes)

    def result(self, f, argument, result):
        return argument if result.status == "applied" else {"refused": result.failed}

    def ended(self, seen, f, key, argument, ended):
        self.ends[key] = f == "deposit", ended

    def finish(self):
        return []

    def check(self, world):
        machine = next(iter(world.living())).gateway.machine
        rows = {
            f"{name}/{key}": msgspec.json.decode(row.value)
            for name in (HERE, THERE)
            for key, row in machine.tables[name].rows.items()
        }
        receipts = {place[2:]: rows.pop(place) for place in [*rows] if place.startswith(f"{THERE}/r")}
        found = []
        wanted = {f"{HERE}/moves": len(receipts)} if receipts else {}
        for moves in receipts.values():
            for place, by in moves.items():
                wanted[place] = wanted.get(place, 0) + by
        if rows != wanted:
            found.append(("audit", f"the accounts are {rows}, their receipts come to {wanted}"))
        if any(value < 0 for value in rows.values()):
            found.append(("audit", f"an account is overdrawn: {rows}"))
        for receipt, (deposit, ended) in self.ends.items():
            applied = ended.status == "ok" and ended.result.status == "applied"
            if applied and receipt not in receipts:
                found.append(("audit", f"{receipt} was acknowledged and is nowhere"))
            if not applied and ended.status != "info" and receipt in receipts:
                found.append(("audit", f"{receipt} was refused and is there"))
            if deposit and ended.status == "ok" and not applied:
                found.append(("audit", f"deposit {receipt} was refused: {ended.result.failed}"))
        return found + list(_straddled(machine, world))


def _straddled(machine, world):
    last = machine.flows.get(FLOW).batches.last
    ends = [_ends(world.batches[FLOW, number]) for number in range(1, last + 1)]
    for number, ((_, before), (after, _)) in enumerate(pairwise(ends), 1):
        if before == after:
            yield "batches", f"the items of request {before} are in batches {number} and {number + 1}"


def _ends(batch):
    """The request ids of a batch's first and last item."""
    first, last = batch.chunks[0], batch.chunks[-1]
    return (
        (int64s_from_bytes(first.client_ids)[0], int64s_from_bytes(first.sequences)[0]),
        (int64s_from_bytes(last.client_ids)[-1], int64s_from_bytes(last.sequences)[-1]),
    )
