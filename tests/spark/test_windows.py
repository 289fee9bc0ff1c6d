"""Windows over event time without Spark: against a recount by plain loops, batches doubled and in any order."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncegate.spark import DEAD_LETTERS, FlowBatch, Store, apply, claimed_store, open_store
from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.library.event_clock import NEVER_MS, EventClock
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.windows import Windows, sliding, tumbling
from oncegate.spark_sink.replay import Replay, sweep
from oncegate.stores.errors import StoreCode

SIZE, SLIDE, LATENESS = 60, 20, 30
EVENTS = events_by({"user": str, "room": int}, at="at", sums=["likes"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store") as opened:
        yield opened


def of(size: int, slide: int, name: str = "w") -> Windows:
    return sliding(name, EVENTS, size_ms=size, slide_ms=slide, lateness_ms=LATENESS)


def batches(seed: int, count: int = 12, length: int = 25) -> list[FlowBatch]:
    """Events that come up to some hundred ms late, of few keys; times before 1970 among them."""
    chance = random.Random(seed)
    made = []
    for number in range(1, count + 1):
        written = []
        for at in range(length):
            late = chance.choice([0, 0, 0, chance.randrange(300)])
            value = {"user": chance.choice("ab"), "room": chance.randrange(2), "likes": chance.randrange(-5, 9)}
            written.append((f"e{number}-{at}", {**value, "at": 40 * number - 100 + chance.randrange(40) - late}))
        made.append(FlowBatch.of(*written, number=number, first_commit=1000 * number))
    return made


def events(batch: FlowBatch) -> list[tuple[str, int, int, int]]:
    return [(one["user"], one["room"], one["at"], one["likes"]) for one in (item.json() for item in batch)]


def recount(given: list[FlowBatch], size: int, slide: int) -> dict[Any, tuple[int, int]]:
    """Every event into every window that holds it."""
    found: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for batch in given:
        for user, room, at, likes in events(batch):
            for start in range(at - size, at + 1):
                if start % slide == 0 and start <= at < start + size:
                    found[user, room, start][0] += 1
                    found[user, room, start][1] += likes
    return {key: (count, likes) for key, (count, likes) in found.items()}


def recount_final(given: list[FlowBatch], size: int, slide: int) -> tuple[dict[Any, Any], dict[Any, int]]:
    """Batch by batch, as one would by hand: a window that is closed takes no more events."""
    whole: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    late: Counter[Any] = Counter()
    watermark = -(10**9)
    for batch in given:
        for user, room, at, likes in events(batch):
            for start in range(at - size, at + 1):
                if start % slide == 0 and start <= at < start + size:
                    key = user, room, start
                    if start + size <= watermark:
                        late[key] += 1
                    else:
                        whole[key][0] += 1
                        whole[key][1] += likes
        watermark = max(watermark, max(at for _, _, at, _ in events(batch)) - LATENESS)
    final = {key: (count, likes) for key, (count, likes) in whole.items() if key[2] + size <= watermark}
    return final, late


def shown(table: Any) -> dict[Any, tuple[int, int]]:
    rows = table.to_pylist()
    found = {(row["user"], row["room"], row["start_ms"]): (row["events"], row["likes"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize(("size", "slide"), [(SIZE, SIZE), (SIZE, SLIDE), (100, 10)])
@pytest.mark.parametrize("seed", range(2))
def test_windows_with_late_events_are_exact_when_batches_come_twice_and_in_any_order(
    store: Store, size: int, slide: int, seed: int
) -> None:
    job, given = of(size, slide), batches(seed)
    twice = [*given, *given]
    random.Random(seed).shuffle(twice)
    apply(job, store, job.tables, *twice)
    assert shown(job.read(store)) == recount(given, size, slide)
    ends = {(row["start_ms"], row["end_ms"]) for row in job.read(store).to_pylist()}
    assert all(end - start == size for start, end in ends)


@pytest.mark.parametrize(("size", "slide"), [(SIZE, SIZE), (SIZE, SLIDE)])
def test_the_windows_of_one_key_are_read_without_the_others(store: Store, size: int, slide: int) -> None:
    job, given = of(size, slide), batches(1)
    apply(job, store, job.tables, *given)
    whole = recount(given, size, slide)
    for begin, end in ((-200, 900), (60, 180), (61, 179), (100, 100), (10_000, 10_060)):
        found = shown(job.of(store, {"user": "a", "room": 1}, begin, end))
        assert found == {key: sums for key, sums in whole.items() if key[:2] == ("a", 1) and begin <= key[2] < end}
    with pytest.raises(SinkError):
        job.of(store, {"user": "a", "room": 1}, 0, 10_001 * slide)


def test_a_window_of_many_batches_is_read_whole(store: Store) -> None:
    job = tumbling("t", events_by({"room": int}, at="at"), size_ms=10)
    store.create(job.tables)
    row = {"room": 1, "pane_ms": 20, "events": 1, "write_ts": 1}
    rows = [{**row, "batch": number} for number in range(1, 2_501)]
    store.write(job.table, pa.RecordBatch.from_pylist(rows, schema=job.table.schema))
    assert job.of(store, {"room": 1}, 0, 100).column("events").to_pylist() == [2_500]


@pytest.mark.parametrize(("size", "slide"), [(SIZE, SIZE), (SIZE, SLIDE)])
@pytest.mark.parametrize("seed", range(2))
def test_a_closed_window_never_changes_and_is_what_was_known_when_it_closed(
    store: Store, size: int, slide: int, seed: int
) -> None:
    job, given = of(size, slide), batches(seed)
    before: dict[Any, Any] = {}
    for number, batch in enumerate(given, 1):
        apply(job, store, job.tables, batch)
        now = shown(job.final(store))
        assert now == recount_final(given[:number], size, slide)[0]
        assert before.items() <= now.items()
        before = now
    final, late = recount_final(given, size, slide)
    assert final
    assert sum(late.values()) > 0
    rows = job.final(store).to_pylist()
    assert {(row["user"], row["room"], row["start_ms"]): row["late"] for row in rows} == {
        key: late.get(key, 0) for key in final
    }
    # What came too late for the final result is in the other one.
    whole = shown(job.read(store))
    assert all(whole[key][0] == events + late.get(key, 0) for key, (events, _) in final.items())


def test_the_clock_stands_still_before_a_batch_that_is_not_written_yet(store: Store) -> None:
    """Tasks write batches in any order: what batch 3 may still add to a window is not settled by batch 4."""
    job, given = of(SIZE, SIZE), batches(1)
    apply(job, store, job.tables, *(batch for batch in given if batch.number != 3))
    assert shown(job.final(store)) == recount_final(given[:2], SIZE, SIZE)[0]
    apply(job, store, job.tables, given[2])
    assert shown(job.final(store)) == recount_final(given, SIZE, SIZE)[0]


def test_a_job_that_began_later_says_with_which_batch(store: Store) -> None:
    job, given = of(SIZE, SIZE), batches(1)
    apply(job, store, job.tables, *given[4:])
    assert job.final(store).num_rows == 0
    assert shown(job.final(store, first_batch=5)) == recount_final(given[4:], SIZE, SIZE)[0]


def test_the_clock_of_a_job_begins_with_its_first_batch_whatever_was_written_before(store: Store) -> None:
    job, given = of(SIZE, SIZE), batches(1)
    apply(job, store, job.tables, *given[4:])
    alone = EventClock.read(store.scan(job.clock), LATENESS, first_batch=5)
    apply(job, store, job.tables, given[0], given[3])
    found = EventClock.read(store.scan(job.clock), LATENESS, first_batch=5)
    assert (found.first_batch, found.last_batch) == (5, len(given))
    assert found.watermarks.tolist() == alone.watermarks.tolist()


def test_an_event_may_be_just_so_far_ahead_of_its_write(store: Store) -> None:
    job = tumbling("t", events_by({"room": int}, at="at", ahead_ms_max=10), size_ms=100)
    given = FlowBatch.of(("a", {"room": 1, "at": 11}), ("b", {"room": 1, "at": 13}))
    assert given.items.column("time_ms").to_pylist() == [1, 2]
    apply(job, store, job.tables, given)
    assert job.read(store).column("events").to_pylist() == [1]
    assert [row["commit"] for part in store.scan(DEAD_LETTERS) for row in part.to_pylist()] == [2]


def test_a_replay_with_a_new_version_sets_the_clock_and_the_windows_anew(tmp_path: Path) -> None:
    """The first version took seconds for milliseconds."""
    wrong, right = (tumbling("w", events_by({"user": str}, at="at", unit_ms=unit), size_ms=1000) for unit in (1, 1000))
    given = [
        FlowBatch.of(
            *((f"e{at}", {"user": "a", "at": at}) for at in range(7 * n, 7 * n + 7)), number=n, first_commit=9 * n
        )
        for n in range(1, 5)
    ]
    with claimed_store(f"sqlite://{tmp_path}/claimed", "c0ffee") as store:
        apply(wrong, store, wrong.tables, *given)
        whole = Replay("", "fix", "flow", 1, 4, 9, given[-1].last_commit, stamp=1000)
        for batch in given:
            Applier(right, stamp=whole.stamp).apply(batch, store, Done())
        assert sweep(store, right.tables, whole) == 4
        clock = EventClock.read(store.scan(right.clock), 0)
        assert clock.watermarks.tolist() == [13_000, 20_000, 27_000, 34_000]
        assert right.final(store).column("start_ms").to_pylist() == list(range(7_000, 34_000, 1_000))
        assert right.read(store).column("events").to_pylist() == [1] * 28


def test_a_batch_without_an_event_moves_the_clock_past_itself(store: Store) -> None:
    job = of(SIZE, SIZE)
    one = FlowBatch.of(("x", {"user": "a"}), ("y", None), number=1)
    two = FlowBatch.of(("z", {"user": "a", "room": 1, "likes": 2, "at": 500}), number=2, first_commit=9)
    apply(job, store, job.tables, one, two)
    clock = EventClock.read(store.scan(job.clock), LATENESS)
    assert (clock.watermarks.tolist(), clock.last_batch) == ([NEVER_MS, 500 - LATENESS], 2)
    errors = {row["commit"]: row["error"] for batch in store.scan(DEAD_LETTERS) for row in batch.to_pylist()}
    assert errors.keys() == {1, 2}
    assert "room" in errors[1]
    assert errors[2] == "deleted: no value"


def test_items_that_are_no_events_are_dead_letters_whatever_is_wrong_and_the_others_count(store: Store) -> None:
    keys: Any = {"room": (int, "roomId")}
    fields = events_by(keys, at="sentAt", unit_ms=1000, sums={"likes": "likeCount"}, ahead_ms_max=10_000)
    job = tumbling("t", fields, size_ms=1000)
    good = {"roomId": 1, "sentAt": 3, "likeCount": 1, "more": {"x": [1]}}
    bad = [{**good, "roomId": "1"}, {**good, "sentAt": 2**60}, {**good, "sentAt": 3.5}, {**good, "likeCount": 2**41}]
    bad += [{**good, "roomId": None}, [good], "text", 7, {**good, "sentAt": 99}]
    written = [(f"k{at}", value) for at, value in enumerate([good, *bad, good])]
    apply(job, store, job.tables, FlowBatch.of(*written))
    (row,) = job.read(store).to_pylist()
    assert (row["room"], row["start_ms"], row["end_ms"], row["events"], row["likes"]) == (1, 3000, 4000, 2, 2)
    assert store.count(DEAD_LETTERS) == len(bad)


def test_without_a_field_of_its_own_an_event_happened_when_it_was_written(store: Store) -> None:
    job = tumbling("t", events_by({"room": int}, at=""), size_ms=10)
    apply(job, store, job.tables, FlowBatch.of(*((f"k{at}", {"room": 1}) for at in range(25))))
    assert job.read(store).column("events").to_pylist() == [9, 10, 6]


@pytest.mark.parametrize("wrong", [{"size_ms": 50, "slide_ms": 20}, {"size_ms": 0, "slide_ms": 1}])
def test_a_window_of_no_whole_number_of_panes_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SinkError) as refused:
        sliding("w", EVENTS, **wrong)
    assert refused.value.code is StoreCode.BAD_OPTION
