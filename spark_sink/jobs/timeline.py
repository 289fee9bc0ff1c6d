"""The fan-out job: each message of a flow goes to the timelines of its sender's contacts.

Owns: the fan-out as a derivation of a sink, and the job's own options. Must not know HTTP or a database. What it does
at a stop and after a failure, and its exit statuses: `job`. Read next: `rows`, `sink`.

Runs as `python -m oncegate.spark_sink.jobs.timeline …` and as a file under spark-submit.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.files import SparkFiles

from oncegate.spark_sink import contacts, rows
from oncegate.spark_sink.derivation import Change, Derivation, FlowBatch, Reject, Upsert
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.jobs import job
from oncegate.spark_sink.jobs.settings import JobSettings, parsed, parser
from oncegate.spark_sink.sink import StoreSink
from oncegate.stores.errors import StoreCode
from oncegate.stores.tables import StoreTable


@dataclass(frozen=True)
class TimelineFanOut:
    """Derives timeline rows; what is no message is rejected.

    The file of contacts is readable by every executor, or shipped by `--files` under its own name.
    """

    contacts: str

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the timeline rows of the items, in pieces."""
        known = contacts.load(self._contacts_file())
        posts, errors = rows.decode(batch.items)
        yield from (Reject(commit, error) for commit, error in errors.items())
        for piece in rows.pieces(posts, known, batch.rows_max):
            yield Upsert(rows.TIMELINE, rows.fan_out(piece, known))

    def _contacts_file(self) -> Path:
        path = Path(self.contacts)
        return path if path.exists() else Path(SparkFiles.get(path.name))


class TimelineSink(StoreSink):
    """`format("oncegate-timeline")`: options of `SinkOptions`, and `contacts`, a file."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "oncegate-timeline"

    def derivation(self) -> Derivation:
        """Return the fan-out."""
        if not self.options.get("contacts"):
            raise SinkError(StoreCode.BAD_OPTION, "option contacts is missing")
        return TimelineFanOut(self.options["contacts"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSettings(JobSettings):
    """The settings of the job; see the command line's help."""

    tables: tuple[StoreTable, ...] = (rows.TIMELINE,)

    contacts: str
    sink: type[StoreSink] = TimelineSink

    def sink_options(self) -> Mapping[str, str]:
        """Return the file of contacts, after reading it once as a check."""
        contacts.load(Path(self.contacts))
        return {"contacts": self.contacts}


def parse(arguments: Sequence[str] | None = None) -> TimelineSettings:
    """Return the settings of a command line; ends the process on a wrong one."""
    options = parser("timeline", (__doc__ or "").splitlines()[0])
    options.add_argument("--flow", required=True)
    options.add_argument("--consumer", required=True, help="named consumer whose cursor this job moves")
    options.add_argument(
        "--contacts",
        required=True,
        help="parquet, arrow or csv file (sender, follower), or the message file itself",
    )
    return TimelineSettings(**parsed(options, arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job as a process of its own; returns the exit status."""
    return job.main("timeline", parse(arguments))


if __name__ == "__main__":
    # Spark would pickle classes of `__main__` by value; under their own name they go by reference.
    raise SystemExit(importlib.import_module("oncegate.spark_sink.jobs.timeline").main())
