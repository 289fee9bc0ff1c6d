"""Keeps the seats that are held in each show: a hold ends by itself, and one that is given back is deleted."""

from oncegate.spark import Clustering, Column, ColumnType, FlowBatch, StoreTable, main

HELD = StoreTable(
    name="seats_held",
    columns=(
        Column("show", ColumnType.TEXT),
        *(Column(name, ColumnType.INT64) for name in ("row", "seat")),
        Column("guest", ColumnType.TEXT),
        Column("until", ColumnType.TIMESTAMP, nullable=True),
    ),
    partition_key=("show",),
    clustering=(Clustering("row"), Clustering("seat")),
    expires="until",
)


def seats_held(batch: FlowBatch):
    for item in batch:
        show, row, seat = item.key.split("/")
        if item.value is None:
            yield item.delete(HELD, show=show, row=int(row), seat=int(seat))
        else:
            guest, until = item.json()["guest"], item.json()["at_ms"] + 15 * 60_000
            yield item.upsert(HELD, show=show, row=int(row), seat=int(seat), guest=guest, until=until)


if __name__ == "__main__":
    raise SystemExit(main(seats_held, [HELD]))
