"""Sealed batches as Parquet files outside the cluster: one writer appends, anybody reads without a gateway.

Owns: the layout and its version, what makes a file visible, and the checks of a reader. Must not know Spark, HTTP or
the gateway. Read next: `oncegate.spark_sink.jobs.archive`.

Layout, version 1, below ``<root>/<cluster identity>/<flow>/``:

| name | content |
|---|---|
| `data/<first>-<last>.parquet` | batches first .. last, a row group each, columns of `PLAIN_SCHEMA` |
| `manifest/<first>-<last>.json` | an `ArchivedFile`: what the file holds, its size and SHA-256 |

Numbers have 16 digits. A file counts once its manifest entry is there, which is written last; a file without one is
left over from a writer that was killed, and nothing reads it. Batches never change, so two writers, of which one was
fenced, can only write the same items: entries may overlap, and either is right.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.places import file_place, unavailable

VERSION: Final = 1

_NAME: Final = re.compile(r"(\d{16})-(\d{16})\.json")
_PART: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


class ArchivedFile(msgspec.Struct, frozen=True):
    """One entry of the manifest; ``items`` and ``last_commits`` have a number for each batch, times are the items'."""

    version: int
    cluster: str
    flow: str
    first_batch: int
    last_batch: int
    items: list[int]
    last_commits: list[int]
    first_time_ms: int
    last_time_ms: int
    size_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file and of the entry, without suffix."""
        return f"{self.first_batch:016d}-{self.last_batch:016d}"


class FlowArchive:
    """The archive of one flow of one cluster. Not for use by several threads.

    Args:
        url: `file:///directory`, `s3://bucket/prefix?…`, or another URL that `pyarrow.fs` knows.
        cluster: identity of the cluster whose batches these are.
        flow: name of the flow.

    Raises:
        StoreError: BAD_OPTION, when the URL or a name cannot be used; STORE_UNAVAILABLE from every call, when the
            file system fails: the call may be repeated.
    """

    def __init__(self, url: str, cluster: str, flow: str) -> None:
        if not _PART.fullmatch(cluster) or not _PART.fullmatch(flow):
            raise StoreError(StoreCode.BAD_OPTION, "an archive needs the names of a cluster and a flow")
        self._place = file_place(url, "archive")
        self._files = self._place.files
        self._cluster, self._flow = cluster, flow
        self._base = f"{self._place.root}/{cluster}/{flow}"
        self._entries: dict[tuple[int, int], ArchivedFile | None] = {}
        self._cover: list[tuple[int, int]] = []
        self._last = 0
        self._open: tuple[ArchivedFile, pq.ParquetFile] | None = None
        self.refresh()

    def refresh(self) -> None:
        """See what has been added since."""
        wanted = pyarrow.fs.FileSelector(f"{self._base}/manifest", allow_not_found=True)
        with unavailable(self._base):
            names = [_NAME.fullmatch(info.base_name) for info in self._files.get_file_info(wanted)]
        for found in names:
            if found is not None:
                self._entries.setdefault((int(found[1]), int(found[2])), None)
        self._arrange()

    @property
    def first_batch(self) -> int:
        """The number of the first batch; 1 while there is none."""
        return self._cover[0][0] if self._cover else 1

    @property
    def last_batch(self) -> int:
        """The last batch up to which none is missing; 0 while there is none."""
        return self._last

    @property
    def hole(self) -> tuple[int, int] | None:
        """The first and last of the batches that are missing before a file of later ones; None: there is no hole."""
        after = next((first for first, _ in self._cover if first > self._last + 1), None)
        return None if after is None else (self._last + 1, after - 1)

    def entry(self, number: int) -> ArchivedFile:
        """Return the entry of the file that holds a batch.

        Raises:
            StoreError: RETENTION_EXCEEDED, when no file does; BAD_BATCH, when its entry is damaged; STORE_MISMATCH,
                when it is of a later version.
        """
        at = bisect_right(self._cover, number, key=lambda place: place[0]) - 1
        if at < 0 or self._cover[at][1] < number:
            raise StoreError(StoreCode.RETENTION_EXCEEDED, f"batch {number} of {self._flow} is not in the archive")
        place = self._cover[at]
        entry = self._entries[place]
        if entry is None:
            entry = self._entries[place] = self._read_entry(place)
        return entry

    def batch(self, number: int) -> pa.RecordBatch:
        """Return the items of a batch, columns of `PLAIN_SCHEMA`; its file is read and checked as a whole, once.

        Raises:
            StoreError: as `entry`; BAD_BATCH, when the file is missing or damaged.
        """
        entry = self.entry(number)
        at = number - entry.first_batch
        if self._open is None or self._open[0] is not entry:
            self._open = (entry, pq.ParquetFile(pa.BufferReader(self.verified(entry))))
        rows = self._open[1].read_row_group(at).cast(PLAIN_SCHEMA).combine_chunks()
        if rows.num_rows != entry.items[at] or rows.column("commit")[-1].as_py() != entry.last_commits[at]:
            raise self._damaged(entry, f"batch {number} is not what the manifest says")
        return rows.to_batches(max_chunksize=rows.num_rows)[0]

    def append(self, first: int, batches: Sequence[pa.RecordBatch]) -> ArchivedFile:
        """Write batches ``first`` .. and on as one file; when it returns they are durable, read back and visible.

        Raises:
            StoreError: BAD_BATCH, when the file system gives back other bytes than it was given.
        """
        data = _parquet(batches)
        entry = ArchivedFile(
            version=VERSION,
            cluster=self._cluster,
            flow=self._flow,
            first_batch=first,
            last_batch=first + len(batches) - 1,
            items=[batch.num_rows for batch in batches],
            last_commits=[batch.column("commit")[-1].as_py() for batch in batches],
            first_time_ms=min(pc.min(batch.column("time_ms")).as_py() for batch in batches),
            last_time_ms=max(pc.max(batch.column("time_ms")).as_py() for batch in batches),
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        self._place.put(self._data(entry), data)
        self.verified(entry)
        self._place.put(f"{self._base}/manifest/{entry.name}.json", msgspec.json.encode(entry))
        self._entries[first, entry.last_batch] = entry
        self._arrange()
        return entry

    def verified(self, entry: ArchivedFile) -> bytes:
        """Return the bytes of a file, which are those of its entry; raises BAD_BATCH when it is missing or differs."""
        with unavailable(self._base):
            try:
                with self._files.open_input_stream(self._data(entry)) as stream:
                    data: bytes = stream.read()
            except FileNotFoundError as error:
                raise self._damaged(entry, "the file is missing") from error
        if (len(data), hashlib.sha256(data).hexdigest()) != (entry.size_bytes, entry.sha256):
            raise self._damaged(entry, "size or SHA-256 are not those of the manifest")
        return data

    def entries(self) -> Iterable[ArchivedFile]:
        """Yield the files that together hold all batches, in order: without those that others cover."""
        number = self.first_batch
        while number <= self.last_batch:
            found = self.entry(number)
            yield found
            number = found.last_batch + 1

    def _arrange(self) -> None:
        """Choose entries whose first and last batches both ascend, none covered by another one alone."""
        self._cover = []
        for place in sorted(self._entries, key=lambda place: (place[0], -place[1])):
            if not self._cover or place[1] > self._cover[-1][1]:
                self._cover.append(place)
        self._last = self.first_batch - 1
        for first, end in self._cover:
            if first > self._last + 1:
                break
            self._last = end

    def _read_entry(self, place: tuple[int, int]) -> ArchivedFile:
        path = f"{self._base}/manifest/{place[0]:016d}-{place[1]:016d}.json"
        with unavailable(self._base), self._files.open_input_stream(path) as stream:
            text = stream.read()
        try:
            entry = msgspec.json.decode(text, type=ArchivedFile)
        except msgspec.DecodeError as error:
            raise StoreError(StoreCode.BAD_BATCH, f"{path} is damaged: {error}") from error
        if entry.version != VERSION:
            raise StoreError(
                StoreCode.STORE_MISMATCH, f"{path} is of version {entry.version}: read it with a later one"
            )
        said = (entry.cluster, entry.flow, entry.first_batch, entry.last_batch, len(entry.items))
        if said != (self._cluster, self._flow, *place, place[1] - place[0] + 1):
            raise StoreError(StoreCode.BAD_BATCH, f"{path} is damaged: it describes another file")
        return entry

    def _data(self, entry: ArchivedFile) -> str:
        return f"{self._base}/data/{entry.name}.parquet"

    def _damaged(self, entry: ArchivedFile, why: str) -> StoreError:
        return StoreError(StoreCode.BAD_BATCH, f"{self._data(entry)}: {why}")


def _parquet(batches: Sequence[pa.RecordBatch]) -> bytes:
    """One row group a batch."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, PLAIN_SCHEMA, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch], PLAIN_SCHEMA), row_group_size=batch.num_rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data
