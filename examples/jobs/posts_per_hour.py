"""Counts the posts of each author and hour: one partial count a batch, added up when it is read."""

from collections import Counter

from oncegate.spark import Clustering, Column, ColumnType, FlowBatch, StoreTable, main

HOURLY = StoreTable(
    name="posts_per_hour",
    columns=(
        Column("author", ColumnType.TEXT),
        Column("hour", ColumnType.INT64),
        Column("batch", ColumnType.INT64),
        Column("posts", ColumnType.INT64),
    ),
    partition_key=("author",),
    clustering=(Clustering("hour"), Clustering("batch")),
)


def posts_per_hour(batch: FlowBatch):
    posts = Counter((post["author"], post["at"] // 3600) for post in (item.json() for item in batch))
    for (author, hour), count in posts.items():
        yield batch.upsert(HOURLY, author=author, hour=hour, batch=batch.number, posts=count)


if __name__ == "__main__":
    raise SystemExit(main(posts_per_hour, [HOURLY]))
