"""The columns of a flow batch: what a segment file holds and what Spark reads.

Owns: names, order and types of the item columns and the metadata keys. Version 1.

| column | type | meaning |
|---|---|---|
| commit | int64, not null | commit number of the write: position, version and write timestamp |
| key | string, not null | row key, 1..512 bytes of UTF-8 |
| value | string, null = deleted | JSON text |
| time_ms | int64, not null | cluster time at which the write was ordered |
| client_id | int64, not null | session that wrote; 0: a cascade, which has none |
| sequence | int64, not null | its sequence number; (client_id, sequence) is the request id; a cascade's commit number |
| traceparent | dictionary of string (int32), null = none | trace context of the request that applied it (W3C) |

The dictionary holds each trace context of the batch once: a request's operations, and a range's, share one.

Rows are in ascending commit order. Schema metadata (UTF-8): ``oncegate.version`` = "1", ``oncegate.flow``,
``oncegate.batch`` (decimal), ``oncegate.table``.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

VERSION: Final = 1

ITEM_SCHEMA: Final[pa.Schema] = pa.schema(
    [
        pa.field("commit", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("value", pa.string(), nullable=True),
        pa.field("time_ms", pa.int64(), nullable=False),
        pa.field("client_id", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("traceparent", pa.dictionary(pa.int32(), pa.string()), nullable=True),
    ]
)

PLAIN_SCHEMA: Final[pa.Schema] = pa.schema(
    [*list(ITEM_SCHEMA)[:-1], pa.field("traceparent", pa.string(), nullable=True)]
)
"""The columns without a dictionary: what Spark, which knows none, and the rows made from items have."""


def batch_schema(flow: str, table: str, number: int) -> pa.Schema:
    """Return the schema of batch ``number`` of ``flow``, its identity in the metadata."""
    return ITEM_SCHEMA.with_metadata(
        {
            "oncegate.version": str(VERSION),
            "oncegate.flow": flow,
            "oncegate.table": table,
            "oncegate.batch": str(number),
        }
    )
