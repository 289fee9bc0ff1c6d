"""Dead letters after a fix: their items become the rows that they would have been, and nothing else changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from oncegate.gateway.cli.main import app
from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.compaction import Partials
from oncegate.spark_sink.derivation import Change, Derivation, FlowBatch
from oncegate.spark_sink.jobs import archive, job
from oncegate.spark_sink.jobs.archive import ArchiveSettings
from oncegate.spark_sink.jobs.redrive import Redriven, redrive
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.library.aggregates import totals
from oncegate.spark_sink.library.fields import whole
from oncegate.spark_sink.replay import REPLAYS, Replay, record, unfinished
from oncegate.spark_sink.sink import sink_of
from oncegate.stores import Clustering, Column, ColumnType, StoreTable, claimed_store
from oncegate.stores.dead_letters import DEAD_LETTERS, found_letters
from oncegate.stores.errors import StoreCode, StoreError
from tests.spark.fake_gateway import CLUSTER, FakeNode

COUNTS = StoreTable(
    name="counts",
    columns=tuple(Column(name, ColumnType.INT64) for name in ("kind", "batch", "items")),
    partition_key=("kind",),
    clustering=(Clustering("batch"),),
)
SEEN = StoreTable(
    name="seen",
    columns=tuple(Column(name, ColumnType.INT64) for name in ("kind", "commit", "number")),
    partition_key=("kind",),
    clustering=(Clustering("commit"),),
)
NEWEST = StoreTable(
    name="newest",
    columns=(Column("key", ColumnType.TEXT), Column("number", ColumnType.INT64)),
    partition_key=("key",),
)
ITEMS = [(commit, f"k{commit % 5}", json.dumps({"kind": commit % 3, "number": commit})) for commit in range(1, 41)]
ITEMS[3] = (4, "k4", json.dumps({"kind": "one", "number": 4}))
ITEMS[38] = (39, "k4", json.dumps({"kind": "two", "number": 39}))
ITEMS[20] = (21, "k1", json.dumps({"sort": 7}))
DEAD = [4, 21, 39]


def derived(batch: FlowBatch, kinds: dict[str, int]) -> Iterator[Change]:
    counts: Counter[int] = Counter()
    for item in batch:
        value = item.json()
        kind = kinds[value["kind"]] if isinstance(value["kind"], str) else value["kind"]
        counts[kind] += 1
        yield item.upsert(SEEN, kind=kind, commit=item.commit, number=value["number"])
        yield item.upsert(NEWEST, key=item.key, number=value["number"])
    for kind, items in counts.items():
        yield batch.upsert(COUNTS, kind=kind, batch=batch.number, items=items)


def broken(batch: FlowBatch) -> Iterator[Change]:
    yield from derived(batch, {})


def mended(batch: FlowBatch) -> Iterator[Change]:
    yield from derived(batch, {"one": 1, "two": 2})


def newest_alone(batch: FlowBatch) -> Iterator[Change]:
    yield from (change for change in mended(batch) if getattr(change, "table", None) is not COUNTS)


TOTALS = totals("totals", [whole("kind")], [whole("number")])


def mended_totals(batch: FlowBatch) -> Iterator[Change]:
    values = [value.replace('"one"', "1").replace('"two"', "2") for value in batch.items.column("value").to_pylist()]
    at = batch.items.schema.get_field_index("value")
    items = batch.items.set_column(
        at, batch.items.schema.field(at), pa.array(values, batch.items.schema.field(at).type)
    )
    yield from TOTALS(replace(batch, items=items))


def settings(
    node: FakeNode, directory: Path, derivation: Derivation, tables: Sequence[StoreTable], **more: Any
) -> JobSettings:
    fixed: dict[str, Any] = {
        "tables": tuple(tables),
        "sink": sink_of(derivation, "redriving"),
        "endpoints": node.url,
        "flow": node.flow.name,
        "consumer": "counting",
        "store": f"sqlite://{directory}/store",
        "checkpoint": "",
        "timeout_s": 0,
    }
    return JobSettings(**{**fixed, **more})


def delivered(told: JobSettings, *derivations: Derivation) -> None:
    """What the job makes of every batch, one version after the other."""
    with claimed_store(told.store, CLUSTER) as store:
        store.create((*told.tables, DEAD_LETTERS))
        client = told.client()
        for derivation in derivations:
            for number in range(1, client.state().last_batch + 1):
                batch = FlowBatch(told.flow, number, client.batch(number))
                Applier(derivation, told.consumer).apply(batch, store, Done())


def rows(told: JobSettings, *tables: StoreTable) -> list[set[tuple[Any, ...]]]:
    with claimed_store(told.store) as store:
        return [
            {tuple(row.values())[:-1] for found in store.scan(table) for row in found.to_pylist()} for table in tables
        ]


def letters(told: JobSettings) -> list[int]:
    with claimed_store(told.store) as store:
        return sorted(letter["commit"] for letter in found_letters(store))


TABLES = (COUNTS, SEEN, NEWEST)


def test_redriven_items_become_their_rows_and_what_is_still_wrong_stays_a_letter(
    node: FakeNode, tmp_path: Path
) -> None:
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended, TABLES)
    delivered(told, broken)
    assert letters(told) == DEAD
    for _ in range(2):  # again: nothing changes
        assert redrive(told) == Redriven(3 if _ == 0 else 1, [21])
        assert letters(told) == [21]
        fresh = settings(node, tmp_path, mended, TABLES, store=f"sqlite://{tmp_path}/fresh{_}")
        delivered(fresh, mended)
        assert rows(told, *TABLES) == rows(fresh, *TABLES)
    # k4 was written later, by commit 34: the redriven commit 4 does not take it back, and commit 39 does win.
    assert ("k4", 39) in rows(told, NEWEST)[0]


def test_redriven_rows_win_over_those_of_a_replay_before(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended, TABLES)
    delivered(told, broken)
    stamp = 100  # of a replay of all batches, above their commits
    with claimed_store(told.store, CLUSTER) as store:
        store.create([REPLAYS])
        record(store, Replay("counting", "all", told.flow, 1, 5, 1, 40, stamp, done=1))
        for number in range(1, 6):
            batch = FlowBatch(told.flow, number, told.client().batch(number))
            Applier(broken, told.consumer, stamp, stamps_all=False).apply(batch, store, Done())
    assert redrive(told) == Redriven(3, [21])
    fresh = settings(node, tmp_path, mended, TABLES, store=f"sqlite://{tmp_path}/fresh")
    delivered(fresh, mended)
    assert (rows(told, *TABLES), letters(told)) == (rows(fresh, *TABLES), [21])


def test_a_deletion_is_redriven_as_one_from_its_letter_alone(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all([(1, "k", json.dumps({"kind": 1, "number": 1})), (2, "k", None)], 2)

    def no_deletions(batch: FlowBatch) -> Iterator[Change]:
        for item in batch:
            yield item.upsert(NEWEST, key=item.key, number=item.json()["number"])

    def deletions(batch: FlowBatch) -> Iterator[Change]:
        for item in batch:
            if item.value is None:
                yield item.delete(NEWEST, key=item.key)
            else:
                yield item.upsert(NEWEST, key=item.key, number=item.json()["number"])

    told = settings(node, tmp_path, deletions, [NEWEST])
    delivered(told, no_deletions)
    assert (rows(told, NEWEST), letters(told)) == ([{("k", 1)}], [2])
    node.flow.seal_all(ITEMS[2:3], 1)
    node.flow.drop_before(2)
    assert redrive(told) == Redriven(1, [])
    assert (rows(told, NEWEST), letters(told)) == ([set()], [])


def test_only_chosen_letters_are_redriven(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended, TABLES)
    delivered(told, broken)
    assert redrive(settings(node, tmp_path, mended, TABLES, commit=(39,))) == Redriven(1, [])
    assert letters(told) == [4, 21]
    assert redrive(settings(node, tmp_path, mended, TABLES, error="'one'")) == Redriven(1, [])
    assert redrive(settings(node, tmp_path, mended, TABLES, error="no such error")) == Redriven(0, [])
    assert letters(told) == [21]


def test_a_redrive_cut_off_anywhere_is_repeated_and_ends_the_same(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended, TABLES)
    delivered(told, broken)
    apply, calls = Applier.apply, iter(range(100))

    def cut(self: Applier, *arguments: Any) -> None:
        apply(self, *arguments)
        if next(calls) < 2:
            raise StoreError(StoreCode.STORE_UNAVAILABLE, "cut off")

    monkeypatch.setattr(Applier, "apply", cut)
    for _ in range(2):
        with pytest.raises(StoreError):
            redrive(told)
    redrive(told)
    fresh = settings(node, tmp_path, mended, TABLES, store=f"sqlite://{tmp_path}/fresh")
    delivered(fresh, mended)
    assert rows(told, *TABLES) == rows(fresh, *TABLES)
    assert letters(told) == [21]


def test_dropped_batches_come_from_the_archive_or_from_the_letters_or_are_refused(
    node: FakeNode, tmp_path: Path
) -> None:
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended, TABLES)
    delivered(told, broken)
    place = f"file://{tmp_path}/archive"
    filled = ArchiveSettings(endpoints=node.url, flow=node.flow.name, archive=place, available_now=True, timeout_s=0)
    archive.follow(filled, stopping=job.threading.Event())
    node.flow.drop_before(6)
    with pytest.raises(StoreError) as refused:
        redrive(told)
    assert refused.value.code is StoreCode.RETENTION_EXCEEDED
    assert "--archive" in str(refused.value)
    assert letters(told) == DEAD
    # Rows of single items need no more than the letters.
    alone = settings(node, tmp_path, newest_alone, (SEEN, NEWEST))
    assert redrive(settings(node, tmp_path, newest_alone, (SEEN, NEWEST), commit=(4,))) == Redriven(1, [])
    assert {row[1] for row in rows(alone, SEEN)[0]} >= {4}
    # What is dead again stays a letter there too.
    assert redrive(replace(alone, commit=(21,))) == Redriven(1, [21])
    assert letters(told) == [21, 39]
    assert redrive(settings(node, tmp_path, mended, TABLES, archive=place)) == Redriven(2, [21])
    assert sum(row[2] for row in rows(told, COUNTS)[0]) >= 38


def test_the_command_lists_shows_and_redrives(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended, TABLES)
    delivered(told, broken)

    def oncegate(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(app, ["dead-letters", *words])
        assert result.exit_code == status, result.output
        return result.output

    assert "3 dead letters" in oncegate("list", told.store)
    for misspelt in (("list",), ("show", "4")):
        assert "holds no store" in oncegate(misspelt[0], f"sqlite://{tmp_path}/stor", *misspelt[1:], status=1)
    assert not (tmp_path / "stor").exists()
    found = json.loads(oncegate("list", told.store, "--error", "'two'", "-o", "json"))
    assert [one["commit"] for one in found["shown"]] == [39]
    assert json.loads(json.loads(oncegate("show", told.store, "4"))[0]["raw"]) == {"kind": "one", "number": 4}
    oncegate("show", told.store, "5", status=1)
    assert "oncegate store init" in oncegate("list", f"sqlite://{tmp_path}/misspelt", status=1)
    program = tmp_path / "job.py"
    program.write_text(
        "from tests.spark.test_redrive import TABLES, mended\nfrom oncegate.spark import main\n"
        "raise SystemExit(main(mended, TABLES))\n"
    )
    options = ["--endpoints", node.url, "--flow", node.flow.name, "--consumer", "counting", "--store", told.store]
    oncegate("redrive", str(program), *options, "--checkpoint", str(tmp_path / "c"), "--commit", "4")
    oncegate("redrive", str(program), *options, status=6)
    assert letters(told) == [21]


def added_up(rows: pa.Table, key: list[str]) -> pa.Table:
    return rows.group_by(key, use_threads=False).aggregate([("items", "sum")]).rename_columns([*key, "items"])


def test_a_redrive_and_a_compaction_exclude_each_other(node: FakeNode, tmp_path: Path) -> None:
    """A partial that comes again would be left out of its compacted row, or counted beside it."""
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended, TABLES)
    delivered(told, broken)
    partials = Partials("counts", COUNTS.columns[:1], COUNTS.columns[2:], added_up)
    assert partials.table == COUNTS
    with claimed_store(told.store, CLUSTER) as store:
        partials.compact(store, 2)
    with pytest.raises(StoreError) as refused:
        redrive(told)
    assert refused.value.code is StoreCode.BAD_TABLE
    assert letters(told) == DEAD
    later = settings(node, tmp_path, mended, TABLES, commit=(39,))
    assert redrive(later) == Redriven(1, []), "batch 5 is not compacted"
    with claimed_store(told.store, CLUSTER) as store:
        assert not unfinished(store, "counting"), "compactions need not wait for it any more"
        assert sum(partials.read(store)["items"].to_pylist()) == 38


def summed(told: JobSettings) -> dict[int, tuple[int, int]]:
    with claimed_store(told.store) as store:
        return {row["kind"]: (row["count"], row["number"]) for row in TOTALS.read(store).to_pylist()}


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_compaction_beside_a_redrive_loses_no_item_and_goes_on_when_it_is_done(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended_totals, TOTALS.tables)
    delivered(told, TOTALS)
    apply, cuts = Applier.apply, [cut_off]

    def beside(self: Applier, batch: FlowBatch, store: Any, done: Done) -> None:
        TOTALS.partials.compact(store, 5)
        apply(self, batch, store, done)
        TOTALS.partials.compact(store, 5)
        if cuts.pop():
            raise StoreError(StoreCode.STORE_UNAVAILABLE, "cut off")
        cuts.append(False)

    with monkeypatch.context() as patched:
        patched.setattr(Applier, "apply", beside)
        if cut_off:
            with pytest.raises(StoreError):
                redrive(told)
            cuts.append(False)
        assert redrive(told) == Redriven(3, [21])
    fresh = settings(node, tmp_path, mended_totals, TOTALS.tables, store=f"sqlite://{tmp_path}/fresh")
    delivered(fresh, mended_totals)
    assert summed(told) == summed(fresh)
    with claimed_store(told.store, CLUSTER) as store:
        TOTALS.partials.compact(store, 5)
        assert store.count(TOTALS.partials.table) == 0
    assert summed(told) == summed(fresh)


def test_a_redrive_that_is_refused_holds_no_compaction_back(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended_totals, TOTALS.tables)
    delivered(told, TOTALS)
    node.flow.drop_before(2)
    with pytest.raises(StoreError) as refused:
        redrive(told)
    assert refused.value.code is StoreCode.RETENTION_EXCEEDED
    with claimed_store(told.store, CLUSTER) as store:
        TOTALS.partials.compact(store, 5)
        assert store.count(TOTALS.partials.table) == 0


def test_a_redrive_of_other_letters_leaves_what_was_cut_off_and_a_replay_unfinished(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are not swept yet: a compaction would merge what the present code no longer makes."""
    node.flow.seal_all(ITEMS, 8)
    told = settings(node, tmp_path, mended_totals, TOTALS.tables)
    delivered(told, TOTALS)
    apply = Applier.apply

    def cut(self: Applier, *arguments: Any) -> None:
        apply(self, *arguments)
        raise StoreError(StoreCode.STORE_UNAVAILABLE, "cut off")

    with monkeypatch.context() as patched:
        patched.setattr(Applier, "apply", cut)
        with pytest.raises(StoreError):
            redrive(replace(told, commit=(4,)))
    with claimed_store(told.store, CLUSTER) as store:
        record(store, Replay("counting", "redrive-march", told.flow, 2, 2, 9, 16, 90))
    assert redrive(replace(told, commit=(39,))) == Redriven(1, [])
    with claimed_store(told.store, CLUSTER) as store:
        assert sorted(found.first_batch for found in unfinished(store, "counting")) == [1, 2]
    assert redrive(told) == Redriven(2, [21])
    with claimed_store(told.store, CLUSTER) as store:
        assert [found.name for found in unfinished(store, "counting")] == ["redrive-march"]
