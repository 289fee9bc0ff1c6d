"""Many rows, changes and items without ``await``: iterations that say how far they are, as the asynchronous ones do.

Owns: what such an iteration has beside its next value. How a step gets to the event loop:
:mod:`oncegate.gateway.client.sync_crossing`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Generic, Self, TypeVar

from oncegate.gateway.client.consume import Batch as AsyncBatch
from oncegate.gateway.client.items import Items as AsyncItems
from oncegate.gateway.client.results import Change, FlowItem, Row
from oncegate.gateway.client.scan import Scan
from oncegate.gateway.client.sync_crossing import Crossing
from oncegate.gateway.client.watch import Watch as AsyncWatch

T = TypeVar("T")


class _Iteration(Generic[T]):
    """Goes through the steps of an iteration once; :meth:`close` ends it early, as leaving it to the collector does."""

    def __init__(self, steps: Generator[T]) -> None:
        self._steps = steps

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._steps)

    def close(self) -> None:
        """Read no more."""
        self._steps.close()


def _each(pages: Generator[Iterable[T]]) -> Generator[T]:
    """Yield what is in the pages: a step to the loop for each row would be most of its cost."""
    with closing(pages):
        for page in pages:
            yield from page


class Rows(_Iteration[Row]):
    """The rows of a range as they were at one moment."""

    def __init__(self, crossing: Crossing, scan: Scan) -> None:
        super().__init__(_each(crossing.steps(scan.pages())))
        self._scan = scan

    @property
    def commit(self) -> int | None:
        """The commit number whose state this is; None before the first page."""
        return self._scan.commit


class Watch(_Iteration[Change]):
    """The changes of rows, each waited for."""

    def __init__(self, crossing: Crossing, watch: AsyncWatch) -> None:
        super().__init__(crossing.steps(watch))
        self._watch = watch

    @property
    def commit(self) -> int | None:
        """Every change up to this commit number was given out: a later watch goes on from here."""
        return self._watch.commit


class Items(_Iteration[FlowItem]):
    """The items that a flow retains."""

    def __init__(self, crossing: Crossing, items: AsyncItems) -> None:
        super().__init__(_each(crossing.steps(items.batches())))
        self._items = items

    @property
    def batch(self) -> int | None:
        """Number of the batch of the newest item; None before the first."""
        return self._items.batch


class Batch:
    """A batch of a flow: its number, and its items in commit order."""

    def __init__(self, crossing: Crossing, batch: AsyncBatch) -> None:
        self._crossing = crossing
        self._batch = batch
        self.number = batch.number
        self.items = batch.items

    def done(self) -> None:
        """Move the consumer's cursor to this batch, as asking for the next one does."""
        self._crossing.run(self._batch.done())
