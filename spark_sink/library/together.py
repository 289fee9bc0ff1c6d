"""Several derivations over one flow as one job: one reading, one cursor, one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.errors import SinkError
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode
from oncegate.stores.tables import StoreTable


class LibraryJob(Protocol):
    """A derivation that knows its tables, as all of the library do."""

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """All that it writes."""
        ...

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """See `oncegate.spark_sink.derivation.Derivation`."""
        ...


@dataclass(frozen=True, slots=True)
class Together:
    """The derivation that all of ``jobs`` are; an item that one rejects may count in others."""

    jobs: tuple[LibraryJob, ...]

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """The tables that the derivations write."""
        return tuple(table for job in self.jobs for table in job.tables)

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the changes of one after the other."""
        for job in self.jobs:
            yield from job(batch)

    def maintain(self, store: ClaimedStore, finished: int) -> None:
        """Maintain the tables of those that want it; see `jobs.maintenance`."""
        for job in self.jobs:
            maintain = getattr(job, "maintain", None)
            if maintain is not None:
                maintain(store, finished)


def together(*jobs: LibraryJob) -> Together:
    """Return the derivation that all of ``jobs`` are; raises BAD_TABLE, when two of them write one table."""
    made = Together(jobs)
    names = [table.name for table in made.tables]
    if len(set(names)) < len(names):
        raise SinkError(StoreCode.BAD_TABLE, f"two jobs write one table: {', '.join(sorted(names))}")
    return made
