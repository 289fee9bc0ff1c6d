"""A replay as a job runs it: checks, a consumer and a checkpoint of its own, a preview, and what ends it.

Owns: the order check → record → attach → read → sweep → done. Each step may be repeated: a replay that was cut off
goes on when it is started again under its name. Must not know which rows are derived. Read next:
`oncegate.spark_sink.replay`, `job`.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from oncegate.flows.flow import NAME_PATTERN
from oncegate.spark_sink.applying import owner
from oncegate.spark_sink.compaction import check_not_compacted
from oncegate.spark_sink.consumer import FlowConsumer
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import FlowBatch, Reject, changes_of
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.replay import REPLAYS, Replay, check_same, next_stamp, record, recorded, sweep
from oncegate.stores.claimed import ClaimedStore, claimed_store
from oncegate.stores.errors import StoreCode

_log = logging.getLogger(__name__)


def planned(settings: JobSettings, store: ClaimedStore) -> Replay:
    """Return the replay as recorded, or as it would be; changes nothing.

    Raises:
        SinkError: BAD_OPTION, when name or range are no replay; BAD_TABLE, when the job's rows cannot be revised;
            CURSOR_MISMATCH, when the name stands for another range; RETENTION_EXCEEDED, when the range is gone.
    """
    first, last, revise = settings.from_batch, settings.to_batch, not settings.keep_timestamps
    if not NAME_PATTERN.fullmatch(f"{settings.consumer}.replay.{settings.replay}") or not 1 <= first <= last:
        raise SinkError(
            StoreCode.BAD_OPTION, "a replay has a name of a-z 0-9 _ . - and a range 1 <= --from-batch <= --to-batch"
        )
    if revise:
        for table in settings.tables:
            owner(table)
    known = recorded(store, settings.consumer, settings.replay)
    if revise and (known is None or not known.done):
        check_not_compacted(store, settings.tables, first, going_on=known is not None)
    if known is not None:
        check_same(known, settings.flow, first, last, revise=revise)
        return known
    client = settings.client()
    state = client.state()
    if first < state.first_batch:
        raise SinkError(
            StoreCode.RETENTION_EXCEEDED, f"batch {first} is wanted, the first retained one is {state.first_batch}"
        )
    if last > state.last_batch:
        raise SinkError(StoreCode.BAD_OPTION, f"batch {last} is not sealed, the last one is {state.last_batch}")
    first_commit = client.batch(first).column("commit")[0].as_py()
    last_commit = client.batch(last).column("commit")[-1].as_py()
    stamp = next_stamp(store, last_commit) if revise else 0
    return Replay(settings.consumer, settings.replay, settings.flow, first, last, first_commit, last_commit, stamp)


def begin(settings: JobSettings, store: ClaimedStore) -> tuple[Replay, FlowConsumer | None]:
    """Record the replay and attach its consumer, before the first row is read; no consumer if it is done.

    A replay with an archive has no cursor, which could not stand where the gateway has dropped batches: its checkpoint
    alone says how far it is, and what the gateway drops meanwhile is in the archive.

    Raises:
        SinkError: see `planned`; CURSOR_MISMATCH, when a consumer of this name has read something else.
    """
    store.create([REPLAYS])
    replay = planned(settings, store)
    if replay.done:
        return replay, None
    fresh = recorded(store, replay.job, replay.name) is None
    if settings.archive:
        note(settings, store, replay, fresh=fresh)
        return replay, FlowConsumer(settings.flow_options(), replay.first_batch - 1)
    consumer = FlowConsumer.attach(settings.endpoints, settings.flow, replay.consumer, timeout_s=settings.timeout_s)
    before = replay.first_batch - 1
    if consumer.cursor > before and fresh:
        raise SinkError(
            StoreCode.CURSOR_MISMATCH,
            f"consumer {replay.consumer} stands at batch {consumer.cursor}, but this store knows of no such replay: "
            "choose another name",
        )
    note(settings, store, replay, fresh=fresh)
    if consumer.cursor < before:
        consumer.finish(before)
        consumer = replace(consumer, cursor=before)
    return replay, consumer


def note(settings: JobSettings, store: ClaimedStore, replay: Replay, *, fresh: bool) -> None:
    """Record a replay, so that no compaction takes its batches; raises BAD_TABLE when one was there first."""
    record(store, replay)
    if fresh and replay.stamp:
        try:  # again, now that a compaction sees this record
            check_not_compacted(store, settings.tables, replay.first_batch, going_on=False)
        except SinkError:
            record(store, replace(replay, done=1))
            raise


def end(settings: JobSettings) -> None:
    """Remove what the replay did not write again, when all its batches are read, and let its consumer go; idempotent.

    Raises:
        StoreError: the store did not answer; CURSOR_MISMATCH, when batches are missing.
    """
    client = settings.client()
    with claimed_store(settings.store, client.state().cluster_identity) as store:
        replay = recorded(store, settings.consumer, settings.replay)
        if replay is None:
            return
        position = client.state().consumers.get(replay.consumer)
        if not replay.done:
            if not settings.archive and (position is None or position.cursor < replay.last_batch):
                raise SinkError(StoreCode.CURSOR_MISMATCH, f"{replay.consumer} has not read up to {replay.last_batch}")
            removed = sweep(store, (*settings.tables, DEAD_LETTERS), replay) if replay.stamp else 0
            record(store, replace(replay, done=1))
            _log.info("replay %s: %d rows removed that are no longer made", replay.name, removed)
        _log.info("replay %s: batches %d..%d done", replay.name, replay.first_batch, replay.last_batch)
        if position is None:
            return
        try:
            client.remove_consumer(replay.consumer)
        except SinkError as refused:
            # Nothing is wrong with the rows. Another start of this replay, which does nothing else, tries it again.
            _log.warning("consumer %s stays, and retention may wait for it: %s", replay.consumer, refused)


def preview(settings: JobSettings) -> list[str]:
    """Return what the replay would read and write, line by line; derives everything once, here, and writes no row.

    Raises:
        StoreError: as `planned`, and as the derivation.
    """
    client = settings.client()
    with claimed_store(settings.store, client.state().cluster_identity) as store:
        store.create([REPLAYS])
        replay = planned(settings, store)
    derivation = settings.derivation()
    items, rows = 0, Counter[str]()
    for number in range(replay.first_batch, replay.last_batch + 1):
        batch = FlowBatch(settings.flow, number, client.batch(number), settings.rows_per_write)
        items += batch.items.num_rows
        for change in changes_of(derivation, batch):
            if isinstance(change, Reject):
                rows[DEAD_LETTERS.name] += 1
            else:
                rows[change.table.name] += change.rows.num_rows
    how = f"revised, write timestamp {replay.stamp}" if replay.stamp else "restored, each with its own timestamp"
    return [
        f"replay {replay.name} as consumer {replay.consumer}{', done already' if replay.done else ''}",
        f"reads batches {replay.first_batch}..{replay.last_batch} of {replay.flow}: {items} items",
        f"rows are {how}",
        *(f"writes {count} rows of {table}" for table, count in sorted(rows.items())),
    ]
