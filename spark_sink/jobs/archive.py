"""The archiver: a consumer that copies a flow's sealed batches to Parquet files before retention may drop them.

Owns: how batches are gathered to files, and the order file → manifest → cursor. Needs no Spark. Read next:
`oncegate.stores.archive`.

Runs as `python -m oncegate.spark_sink.jobs.archive …`, one process a flow. Require its consumer in the flow's
declaration: then a batch is dropped only when it is in the archive. It holds at most ``file_bytes`` and one batch in
memory. After a kill it goes on behind the last file of the manifest, and writes what it held again.

Exit status: 0 done or stopped, 2 bad options, 3 fenced by another instance, 4 a batch is no longer retained, 5 another
refusal.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from oncegate.spark_sink.archived_flow import ArchivedFlow
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_client import FlowClient, FlowState
from oncegate.spark_sink.jobs.exit_status import exit_status
from oncegate.spark_sink.options import TIMEOUT_S_DEFAULT, FlowOptions
from oncegate.stores.archive import FlowArchive
from oncegate.stores.errors import StoreCode, StoreError

_log = logging.getLogger(__name__)

FILE_BYTES_DEFAULT: Final = 64 * 2**20
_POLL_S: Final = 0.5
_RESTART_WAIT_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """The settings of the archiver; see the command line's help."""

    endpoints: str
    flow: str
    archive: str
    consumer: str = "archive"
    file_bytes: int = FILE_BYTES_DEFAULT
    file_age_s: float = 60.0
    available_now: bool = False
    timeout_s: int = TIMEOUT_S_DEFAULT

    def client(self) -> FlowClient | ArchivedFlow:
        """Return a client of the flow; raises BAD_OPTION."""
        named = {"endpoints": self.endpoints, "flow": self.flow, "timeout_s": str(self.timeout_s)}
        return FlowOptions.parse(named).client()


def run(settings: ArchiveSettings, stopping: threading.Event) -> int:
    """Archive until ``stopping`` is set, or all there is now; start again after a passing failure; exit status."""
    wait_s = 0.1
    while not stopping.is_set():
        try:
            follow(settings, stopping)
            return 0
        except StoreError as error:
            if not error.retryable:
                _log.error("%s", error)
                return exit_status(error.code)
            _log.warning("goes on in %.1f s: %s", wait_s, error)
        stopping.wait(wait_s)
        wait_s = min(wait_s * 2, _RESTART_WAIT_S_MAX)
    return 0


def follow(settings: ArchiveSettings, stopping: threading.Event) -> None:
    """Take the consumer over and copy batch after batch; see `run`.

    Raises:
        StoreError: RETENTION_EXCEEDED, when batches behind the archive's end are gone; FENCED; what the archive or
            the gateway raise.
    """
    client = settings.client()
    fence = client.attach(settings.consumer, secrets.token_hex(16)).fence
    state = client.state()
    archive = FlowArchive(settings.archive, state.cluster_identity, settings.flow)
    check_joins(archive, state)
    if archive.last_batch:
        # A kill may have come between the manifest and the cursor.
        client.move_cursor(settings.consumer, archive.last_batch, fence)
    gathered = Gathered(settings.file_bytes, settings.file_age_s)
    next_batch, last = max(archive.last_batch + 1, state.first_batch), state.last_batch

    def write() -> None:
        entry = archive.append(next_batch - len(gathered.batches), gathered.batches)
        client.move_cursor(settings.consumer, entry.last_batch, fence)
        _log.info("batches %d..%d: %d bytes", entry.first_batch, entry.last_batch, entry.size_bytes)
        gathered.clear()

    while not stopping.is_set():
        if next_batch <= last:
            gathered.add(client.batch(next_batch), time.monotonic())
            next_batch += 1
        elif settings.available_now:
            if gathered.batches:
                write()
            return
        else:
            stopping.wait(_POLL_S)
            last = client.state().last_batch
        if gathered.due(time.monotonic()):
            write()


class Gathered:
    """The batches that the next file will hold: it is due at so many bytes, or so long after its first batch."""

    def __init__(self, bytes_max: int, age_s: float) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._bytes_max, self._age_s = bytes_max, age_s
        self._bytes, self._due_at = 0, 0.0

    def add(self, batch: pa.RecordBatch, now: float) -> None:
        """Take the next batch."""
        if not self.batches:
            self._due_at = now + self._age_s
        self.batches.append(batch)
        self._bytes += batch.nbytes

    def due(self, now: float) -> bool:
        """Whether the file is to be written."""
        return bool(self.batches) and (self._bytes >= self._bytes_max or now >= self._due_at)

    def clear(self) -> None:
        """They are written."""
        self.batches, self._bytes = [], 0


def check_joins(archive: FlowArchive, state: FlowState) -> None:
    """See that the flow goes on where the archive ends; a new archive begins with the first batch that is retained.

    Raises:
        SinkError: RETENTION_EXCEEDED, when batches between are gone; FLOW_REFUSED, when the archive is ahead.
    """
    if not archive.last_batch:
        if state.first_batch > 1:
            _log.warning("batches below %d are no longer retained: the archive begins there", state.first_batch)
    elif archive.last_batch + 1 < state.first_batch:
        raise SinkError(
            StoreCode.RETENTION_EXCEEDED,
            f"the archive ends at batch {archive.last_batch}, the flow begins at {state.first_batch}: "
            "begin another archive, and require its consumer in the flow's declaration",
        )
    elif archive.last_batch > state.last_batch:
        raise SinkError(
            StoreCode.FLOW_REFUSED,
            f"the archive ends at batch {archive.last_batch}, the flow at {state.last_batch}: this node lags, "
            "or the flow has lost batches",
        )


def verify(settings: ArchiveSettings) -> int:
    """Read the whole archive and compare it with its manifest; returns how many batches were read.

    Raises:
        StoreError: BAD_BATCH, at the first that is missing or damaged.
    """
    client = settings.client()
    archive = FlowArchive(settings.archive, client.state().cluster_identity, settings.flow)
    for entry in archive.entries():
        for number in range(entry.first_batch, entry.last_batch + 1):
            archive.batch(number)
    if archive.hole is not None:
        first, last = archive.hole
        raise StoreError(
            StoreCode.BAD_BATCH,
            f"batches {first}..{last} of {settings.flow} are missing, and later ones are there: the archiver goes on "
            f"at {first}, and fills the hole while the flow retains them",
        )
    return archive.last_batch - archive.first_batch + 1


def parse(arguments: Sequence[str] | None = None) -> tuple[ArchiveSettings, bool]:
    """Return the settings of a command line, and whether to verify; ends the process on a wrong one."""
    options = argparse.ArgumentParser(
        prog="oncegate.spark_sink.jobs.archive", description=(__doc__ or "").splitlines()[0]
    )
    add = options.add_argument
    add("--endpoints", required=True, help="base URLs of gateway nodes, separated by commas")
    add("--flow", required=True)
    add("--archive", required=True, help="file:///absolute/directory, s3://bucket/prefix, …")
    add("--consumer", default="archive", help="named consumer whose cursor moves [archive]")
    add("--file-bytes", type=int, default=FILE_BYTES_DEFAULT, help="a file is written when this much is held")
    add("--file-age-s", type=float, default=60.0, help="or when its first batch is this old")
    add("--available-now", action="store_true", help="end when all there is now is archived")
    add("--timeout-s", type=int, default=TIMEOUT_S_DEFAULT, help="how long one call to the gateway is retried")
    add("--verify", action="store_true", help="only compare the archive with its manifest")
    found = vars(options.parse_args(arguments))
    verifying = found.pop("verify")
    return ArchiveSettings(**found), verifying


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the archiver as a process of its own; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings, verifying = parse(arguments)
    if verifying:
        try:
            _log.info("%d batches are as the manifest says", verify(settings))
            return 0
        except StoreError as error:
            _log.error("%s", error)
            return exit_status(error.code)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return run(settings, stopping)


if __name__ == "__main__":
    raise SystemExit(main())
