"""Adds the customer's country to each order: the newest state of every order, and none for a deleted one."""

import csv
import os
from functools import cache

from oncegate.spark import Column, ColumnType, FlowBatch, StoreTable, main

ORDERS = StoreTable(
    name="orders_with_country",
    columns=(*(Column(name, ColumnType.TEXT) for name in ("order_id", "customer", "country")),),
    partition_key=("order_id",),
)


@cache
def countries() -> dict[str, str]:
    with open(os.environ["CUSTOMERS"], newline="") as file:
        return {row["customer"]: row["country"] for row in csv.DictReader(file)}


def orders_with_country(batch: FlowBatch):
    for item in batch:
        if item.value is None:
            yield item.delete(ORDERS, order_id=item.key)
        else:
            customer = item.json()["customer"]
            yield item.upsert(ORDERS, order_id=item.key, customer=customer, country=countries()[customer])


if __name__ == "__main__":
    raise SystemExit(main(orders_with_country, [ORDERS]))
