"""A job's `--redrive`: what its present code makes of items that became dead letters; needs no Spark session.

Owns: which batches are derived again, with which timestamps, and what is removed afterwards. Read next:
`oncegate.spark_sink.dead_letters`, `oncegate.spark_sink.replay`, `job`.

A batch with a chosen letter is derived again as a whole, because a row may count all its items. Rows of tables with
`batch` or `commit` in their key get a timestamp above their batch and every replay, as in a replay, and what the batch
no longer makes is removed, letters too. Rows of other tables keep the timestamps of their items, so that a row which a
later item has written stays as it is. Where the batch is dropped and no archive has it, items are derived from the
letters' bytes alone; a table with `batch` in its key then refuses, for its rows need the whole batch.

Each letter is tried once in a run: one that is made again stays, and is told. Any step may be cut off and repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.spark_sink.applying import Applier, Done, owned
from oncegate.spark_sink.compaction import check_not_compacted
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.jobs.replay import note
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.replay import REPLAYS, Replay, next_stamp, record, sweep, unfinished
from oncegate.stores.claimed import ClaimedStore, claimed_store
from oncegate.stores.dead_letters import DEAD_LETTERS, found_letters
from oncegate.stores.errors import StoreCode
from oncegate.stores.tables import WRITE_TS

_NAME: Final = "redrive:"
"""Begins the names of the records of runs; a replay's has no colon."""


class Redriven(NamedTuple):
    """What came of it: letters that were tried, and those of them that are dead again, by commit number."""

    tried: int
    left: list[int]


def redrive(settings: JobSettings) -> Redriven:
    """Derive the batches of the chosen letters again and write what comes of it; idempotent.

    Raises:
        StoreError: RETENTION_EXCEEDED, when a batch is gone that the job's tables need as a whole; BAD_TABLE, when a
            batch is compacted; STORE_MISMATCH; what the gateway, the store and the derivation raise.
    """
    derivation = settings.derivation()
    with claimed_store(settings.store, settings.client().state().cluster_identity) as store:
        store.create((*settings.tables, DEAD_LETTERS, REPLAYS))
        chosen: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for letter in found_letters(store, settings.consumer, settings.flow, settings.error, settings.commit):
            chosen[letter["batch"]].append(letter)
        if not chosen:
            return Redriven(0, [])
        run = _begun(settings, store, chosen)
        swept: list[Replay] = []
        for number, letters in sorted(chosen.items()):
            items, whole = _items(settings, number, letters)
            batch = FlowBatch(settings.flow, number, items, settings.rows_per_write)
            Applier(derivation, settings.consumer, run.stamp, stamps_all=False).apply(batch, store, Done())
            if whole:
                commits = items.column("commit")
                first, last = commits[0].as_py(), commits[-1].as_py()
                one = replace(run, first_batch=number, last_batch=number, first_commit=first, last_commit=last)
                swept.append(one)
            else:
                _remove(store, letters, run.stamp)
        sweep(store, [table for table in (*settings.tables, DEAD_LETTERS) if owned(table)], *swept)
        waiting = {letter["batch"] for letter in found_letters(store, settings.consumer, settings.flow)} - set(chosen)
        for known in unfinished(store, settings.consumer):
            # Letters are swept last: a run that was cut off has left some, until a later run has chosen them all.
            over = waiting.isdisjoint(range(known.first_batch, known.last_batch + 1))
            if known.name == run.name or (known.name.startswith(_NAME) and known.flow == run.flow and over):
                record(store, replace(known, done=1))
        tried = {letter["commit"] for letters in chosen.values() for letter in letters}
        left = found_letters(store, settings.consumer, settings.flow, "", tried)
        return Redriven(len(tried), sorted(letter["commit"] for letter in left))


def _begun(settings: JobSettings, store: ClaimedStore, chosen: Mapping[int, list[dict[str, Any]]]) -> Replay:
    """Record the run, so that its timestamp is never given out again and no compaction takes its batches."""
    first, last = min(chosen), max(chosen)
    check_not_compacted(store, settings.tables, first, going_on=False)
    # What is dropped is refused before the record, which would hold compactions back.
    first_commit = _items(settings, first, chosen[first])[0].column("commit")[0].as_py()
    last_commit = _items(settings, last, chosen[last])[0].column("commit")[-1].as_py()
    stamp = next_stamp(store, last_commit)
    name = f"{_NAME}{stamp}"
    run = Replay(settings.consumer, name, settings.flow, first, last, first_commit, last_commit, stamp)
    note(settings, store, run, fresh=True)
    return run


def lines(found: Redriven) -> Iterator[str]:
    """Yield what people are told."""
    yield f"{found.tried} dead letters derived again, {len(found.left)} are dead still"
    yield from (f"commit {commit}" for commit in found.left)


def _items(settings: JobSettings, number: int, letters: list[dict[str, Any]]) -> tuple[pa.RecordBatch, bool]:
    """The items of the batch and True, or those of its letters alone and False."""
    try:
        return settings.client().batch(number), True
    except SinkError as gone:
        if gone.code is not StoreCode.RETENTION_EXCEEDED:
            raise
        needing = [table.name for table in settings.tables if "batch" in table.key]
        if needing:
            raise SinkError(
                StoreCode.RETENTION_EXCEEDED,
                f"batch {number} is dropped, and rows of {', '.join(needing)} need the whole of it: name its archive "
                "with --archive",
            ) from gone
    ordered = sorted(letters, key=lambda letter: int(letter["commit"]))
    return pa.RecordBatch.from_pylist([_item(letter) for letter in ordered], schema=PLAIN_SCHEMA), False


def _item(letter: dict[str, Any]) -> dict[str, Any]:
    value = letter["raw"].decode() or None
    return {**{name: letter.get(name) for name in PLAIN_SCHEMA.names}, "key": letter["item_key"], "value": value}


def _remove(store: ClaimedStore, letters: Iterable[dict[str, Any]], stamp: int) -> None:
    """Delete letters that were not made again, which have an older timestamp."""
    keys = [{**{name: letter[name] for name in DEAD_LETTERS.key}, WRITE_TS: stamp - 1} for letter in letters]
    store.delete(DEAD_LETTERS, pa.RecordBatch.from_pylist(keys, schema=DEAD_LETTERS.key_schema))
