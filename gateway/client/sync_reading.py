"""Many rows, changes and items without ``await``: iterations that say how far they are, as the asynchronous ones do.

Owns: what such an iteration has beside its next value. How a step gets to the event loop:
:mod:`oncegate.gateway.client.sync_crossing`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from itertools import chain
from typing import Generic, Self, TypeVar

from oncegate.gateway.client.consume import Batch as AsyncBatch
from oncegate.gateway.client.items import Items as AsyncItems
from oncegate.gateway.client.results import Change, FlowItem, Row
from oncegate.gateway.client.scan import Scan
from oncegate.gateway.client.sync_crossing import Crossing
from oncegate.gateway.client.watch import Watch as AsyncWatch

T = TypeVar("T")


class _Iteration(Generic[T]):
    """Goes through an asynchronous iteration once; :meth:`close` ends it early, as leaving it to the collector does."""

    def __init__(self, crossing: Crossing, source: AsyncIterable[T]) -> None:
        self._steps = crossing.steps(source)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._steps)

    def close(self) -> None:
        """Read no more."""
        self._steps.close()


class _Pages(Generic[T]):
    """As :class:`_Iteration`, with one step for each page: a step for each row would be most of its cost."""

    def __init__(self, crossing: Crossing, source: AsyncIterable[Iterable[T]]) -> None:
        self._steps = crossing.steps(source)
        self._left = chain.from_iterable(self._steps)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._left)

    def close(self) -> None:
        """Read no more."""
        self._steps.close()
        self._left = chain(())


class Rows(_Pages[Row]):
    """The rows of a range as they were at one moment."""

    def __init__(self, crossing: Crossing, scan: Scan) -> None:
        super().__init__(crossing, scan.pages())
        self._scan = scan

    @property
    def commit(self) -> int | None:
        """The commit number whose state this is; None before the first page."""
        return self._scan.commit


class Watch(_Iteration[Change]):
    """The changes of rows, each waited for."""

    def __init__(self, crossing: Crossing, watch: AsyncWatch) -> None:
        super().__init__(crossing, watch)
        self._watch = watch

    @property
    def commit(self) -> int | None:
        """Every change up to this commit number was given out: a later watch goes on from here."""
        return self._watch.commit


class Items(_Pages[FlowItem]):
    """The items that a flow retains."""

    def __init__(self, crossing: Crossing, items: AsyncItems) -> None:
        super().__init__(crossing, items.batches())
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
