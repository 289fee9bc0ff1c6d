"""The first and the last message of each pair of users, and how many, as one SQL text."""

from oncegate.spark import main
from oncegate.spark_sink.library.sql import batch_rows

PAIRS = """SELECT (value->>'sender')::BIGINT AS sender, (value->>'receiver')::BIGINT AS receiver, count(*) AS messages,
    min((value->>'sent_at')::BIGINT) AS first, max((value->>'sent_at')::BIGINT) AS last
FROM items WHERE value IS NOT NULL GROUP BY ALL"""
JOB = batch_rows("pairs", PAIRS, ["sender", "receiver"], merge={"first": "min", "last": "max"})

if __name__ == "__main__":
    raise SystemExit(main(JOB, JOB.tables, name="messages-sql"))
