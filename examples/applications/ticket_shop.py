"""A ticket shop: an order is sold whole or not at all, no seat twice, nobody spends more than there is.

oncegate dev --nodes 3 &
python -m examples.applications.ticket_shop orders.jsonl till-1.outbox     # kill -9 it, start it again

A line of the file is an order: {"order": "o-1", "seat": "14C", "customer": "ann", "cents": 4500}. Each customer begins
with 100 euros. A second till has an outbox of its own; it may be given the same orders. What a till has told, it does
not tell again: started once more, it says nothing. `curl localhost:7400/v1/tables/receipts/rows` shows what was sold.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from oncegate import Client, OutboxEntry, OutcomeUnknown, Transaction, WriteResult

LEASE_MS = 3_600_000
Order = dict[str, Any]


async def open_shop(client: Client, balances: dict[str, int]) -> None:
    """Declare the tables, and give each customer a balance once, however often this is called."""
    for table in ("receipts", "seats", "balances", "shop"):
        await client.declare_table(table)
    for customer, cents in balances.items():
        # The condition, because a key is remembered for a day: a later start would fill the balance up again.
        await client.put("balances", customer, cents, if_absent=True, idempotency_key=f"opening of {customer}")


def sale(order: Order) -> Transaction:
    """Return what it is to sell: a receipt, the seat, the money, the count."""
    bought = Transaction().insert("receipts", order["order"], order).insert("seats", order["seat"], order["order"])
    return bought.increment("balances", order["customer"], -order["cents"], floor=0).increment("shop", "sold")


def tell(order: str, result: WriteResult) -> None:
    """Say what became of an order: whether it was sold, before or by another till, or why not."""
    why = {"writes[0]": "sold before", "writes[1]": "refused: seat taken", "writes[2]": "refused: too little money"}
    what = "sold" if result.applied else why.get(result.failed or "", "refused")
    print(f"{order} {what}\n", end="", flush=True)  # in one piece: a kill leaves no half of a line


async def sell(client: Client, orders: list[Order], outbox: Path, lease_ms: int = LEASE_MS) -> None:
    """Sell the orders that no earlier process has taken in."""

    async def settle(entry: OutboxEntry) -> None:
        # The session was lost before the answer came. To sell once more is safe: if it was sold, there is a receipt.
        order = next(order for order in orders if order["order"] == entry.key)
        await client.transact(sale(order), idempotency_key=f"again {entry.key}")

    async with client.session(outbox=outbox, lease_ms=lease_ms, renew_lost=True, on_unknown=settle) as session:
        for old in session.recovered:
            if old.result is not None:
                tell(old.entry.key, old.result)
        done = session.position if isinstance(session.position, int) else 0
        for at, order in enumerate(orders[done:], done + 1):
            with suppress(OutcomeUnknown):  # it is in the outbox: it goes to `settle`, or the next start sends it
                tell(order["order"], await session.transact(sale(order), position=at))


async def main() -> None:
    orders = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    async with Client() as client:
        await open_shop(client, {order["customer"]: 10_000 for order in orders})
        await sell(client, orders, Path(sys.argv[2]))


if __name__ == "__main__":
    asyncio.run(main())
