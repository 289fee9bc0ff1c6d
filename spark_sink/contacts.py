"""Reads the contacts from a file: for each sender, the users that get a copy of its posts.

Owns: the file forms, and one copy in memory for each process. Must not know the job. Read next: `rows`.

| suffix | content |
|---|---|
| `.parquet`, `.arrow`, `.csv` | two integer columns `sender`, `follower` |
| `.txt`, `.txt.gz` | lines `sender receiver unix_time_s` under a header: everyone ever written to is a contact |
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from oncegate.spark_sink.rows import Contacts
from oncegate.stores.errors import StoreCode, StoreError


def load(path: Path) -> Contacts:
    """Return the contacts in the file; read once a process as long as the file does not change.

    Raises:
        StoreError: BAD_OPTION, when the file is missing, of another form, or has no such columns.
    """
    try:
        found = path.stat()
        return _load(path, found.st_mtime_ns, found.st_size)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise StoreError(StoreCode.BAD_OPTION, f"contacts {path}: {error}") from error


@lru_cache(maxsize=2)
def _load(path: Path, _mtime_ns: int, _size: int) -> Contacts:
    match "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix:
        case ".parquet":
            table = pyarrow.parquet.read_table(path)
        case ".arrow":
            table = pyarrow.feather.read_table(path)
        case ".csv":
            table = pyarrow.csv.read_csv(path)
        case ".txt" | ".txt.gz":
            spaced = pyarrow.csv.ParseOptions(delimiter=" ")
            table = pyarrow.csv.read_csv(path, parse_options=spaced).rename_columns({"receiver": "follower"})
        case other:
            raise StoreError(StoreCode.BAD_OPTION, f"contacts {path}: unknown form {other!r}")
    senders, followers = (table.column(name).cast(pa.int64()) for name in ("sender", "follower"))
    return Contacts.from_edges(np.asarray(senders), np.asarray(followers))
