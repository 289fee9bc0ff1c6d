"""Jobs of one's own: a derivation, the tables it writes, and how it runs. docs/spark.md tells how to use them.

A derivation is a function from a :class:`FlowBatch` to changes. :func:`main` runs it as a Spark job; :func:`apply` runs
it in this process, for a unit test. :func:`table_sink` writes a DataFrame of Spark's own streams into a table. Needs
the extra ``spark``; only :func:`main`, :func:`table_sink` and the source start Spark.
"""

from collections.abc import Sequence

from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.cascade import Cascade, Increment, Put, Remove
from oncegate.spark_sink.consumer import FlowConsumer
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import Change, Delete, Derivation, FlowBatch, Item, Reject, Update, Upsert
from oncegate.spark_sink.partials import summed
from oncegate.spark_sink.table_sink import table_sink
from oncegate.stores import (
    ClaimedStore,
    Clustering,
    Column,
    ColumnType,
    ListOf,
    MapOf,
    Store,
    StoreTable,
    claimed_store,
    open_store,
)

__all__ = [
    "DEAD_LETTERS",
    "Cascade",
    "Change",
    "ClaimedStore",
    "Clustering",
    "Column",
    "ColumnType",
    "Delete",
    "Derivation",
    "FlowBatch",
    "FlowConsumer",
    "Increment",
    "Item",
    "ListOf",
    "MapOf",
    "Put",
    "Reject",
    "Remove",
    "Store",
    "StoreTable",
    "Update",
    "Upsert",
    "apply",
    "claimed_store",
    "main",
    "open_store",
    "summed",
    "table_sink",
]


def apply(
    derivation: Derivation, store: Store | ClaimedStore, tables: Sequence[StoreTable], *batches: FlowBatch
) -> Done:
    """Write what ``derivation`` makes of these batches, as a job would; idempotent. Needs no Spark.

    Args:
        derivation: function from a batch to changes.
        store: open; missing tables are created.
        tables: all that the derivation writes to.
        batches: in any order, any number of times.

    Returns:
        How many items were read and rows written, by table, dead letters among them.

    Raises:
        StoreError: STORE_UNAVAILABLE, BAD_ROWS, and what the derivation raises through no fault of an item.
    """
    store.create((*tables, DEAD_LETTERS))
    done = Done()
    for batch in batches:
        Applier(derivation).apply(batch, store, done)
    return done


def main(
    derivation: Derivation, tables: Sequence[StoreTable], *, name: str = "", arguments: Sequence[str] | None = None
) -> int:
    """Run ``derivation`` as a Spark job with the options of the command line, until it is done or stopped.

    Args:
        derivation: function from a batch to changes.
        tables: all that it writes to; created where missing.
        name: of the job in logs; default: the derivation's.
        arguments: of the command line; default: this process's.

    Returns:
        The exit status, see docs/spark.md.
    """
    from oncegate.spark_sink.jobs.job import run_derivation

    found = name or getattr(derivation, "__name__", type(derivation).__name__).replace("_", "-").lower()
    return run_derivation(derivation, tables, arguments, found)
