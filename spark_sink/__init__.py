"""From flows to stores through Spark: a source, a sink, keyed-row stores, and the jobs made of them.

Depends on `flows` for the columns of a batch, never on the gateway. Start reading at `source` (flow → Spark), `sink`
(Spark → store), `rows` (item → rows, pure) and `stores.store` (what a store promises).
"""
