"""A small file of messages and what must follow from it, by the plainest loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from examples.demo.dataset import Messages, key_of
from oncegate.flows.schema import ITEM_SCHEMA
from oncegate.spark_sink.rows import TIMELINE

LINES = [(1, 2, 100), (1, 3, 110), (2, 1, 120), (1, 2, 100), (3, 1, 130), (1, 2, 140)]
"""Line 4 has the content of line 1: they are different messages all the same."""
CONTACTS = {1: [2, 3], 2: [1], 3: [1]}
COMMITS = [11, 12, 30, 13, 31, 2**20 + 5]


def messages() -> Messages:
    table = np.array(LINES, dtype=np.int64)
    return Messages(table[:, 0], table[:, 1], table[:, 2], np.unique(table[:, :2], axis=0))


def commits() -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(COMMITS, dtype=np.int64)


def good_rows() -> list[dict[str, Any]]:
    return [
        {
            "user": user,
            "bucket": commit // 2**20,
            "commit": commit,
            "ordinal": 0,
            "message": key_of(number),
            "sender": sender,
            "sent_at": sent_at,
            "write_ts": commit,
        }
        for number, ((sender, _, sent_at), commit) in enumerate(zip(LINES, COMMITS, strict=True), 1)
        for user in CONTACTS[sender]
    ]


def as_batches(rows: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    middle = len(rows) // 2
    return [pa.RecordBatch.from_pylist(part, schema=TIMELINE.schema) for part in (rows[:middle], rows[middle:])]


@dataclass
class Items:
    """Items of a flow, to be spoilt."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def good(cls) -> Items:
        return cls(
            [
                {
                    "commit": commit,
                    "key": key_of(number),
                    "value": f'{{"receiver":{receiver},"sender":{sender},"sent_at":{sent_at}}}',
                    "time_ms": 1,
                    "client_id": 7,
                    "sequence": number,
                }
                for number, ((sender, receiver, sent_at), commit) in enumerate(zip(LINES, COMMITS, strict=True), 1)
            ]
        )

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows, schema=ITEM_SCHEMA)
