"""What travels together, without sockets: against the rules of the module, on random queues."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncegate import Code, OperationFailed
from oncegate.gateway.client.batch import (
    GONE,
    OperationsBatch,
    Pending,
    PendingRows,
    RangeBatch,
    Rows,
    rows_of,
    rows_of_all,
    share_a_row,
)
from oncegate.gateway.client.send_queue import SendQueue
from oncegate.gateway.client.settings import Tuning
from oncegate.gateway.wire import Condition, Operation, Write
from oncegate.rifl.request_tracker import RequestTracker


class Open:
    """A promise that somebody waits for."""

    def done(self) -> bool:
        return False

    def set_result(self, result: object, /) -> None:
        raise AssertionError

    def set_exception(self, failure: BaseException, /) -> None:
        raise AssertionError


def write(table: str, key: str, *, done: bool = False) -> Pending:
    text = "1" if table.startswith("stream") else None
    return Pending(Operation(0, "put", table, key, 1), text, GONE if done else Open(), 1.0)


writes = st.builds(
    write,
    st.sampled_from(["rows", "stream", "stream2"]),
    st.sampled_from("abcdef"),
    done=st.sampled_from([False, False, False, True]),
)


@given(queue=st.lists(writes, max_size=60), in_flight=st.integers(1, 3), data=st.data())
def test_every_live_write_travels_once_in_the_order_of_its_row(
    queue: list[Pending], in_flight: int, data: st.DataObject
) -> None:
    tuning = Tuning(range_min=3, batch_operations_max=7, range_rows_max=9, pipeline_min=2)
    tracker = RequestTracker(window=512)
    sending = SendQueue(tracker, tuning)
    sending.waiting.extend(queue)
    travelling: list[OperationsBatch | RangeBatch] = []
    applied: dict[tuple[str, str], list[int]] = defaultdict(list)
    sequences: list[int] = []
    order = {id(pending): at for at, pending in enumerate(queue)}
    dropped_in_all = 0
    while True:
        batch = None
        if len(travelling) < in_flight:
            batch, dropped = sending.take([other.keys() for other in travelling], data.draw(st.integers(1, 4)))
            dropped_in_all += dropped
        if batch is not None:
            touched = batch.keys()
            if isinstance(batch, OperationsBatch):
                assert touched == rows_of_all(batch.pendings)
            for other in travelling:
                for table, keys in other.keys().items():
                    assert not keys & touched.get(table, set())
            travelling.append(batch)
            continue
        if not travelling:
            break
        answered = travelling.pop(data.draw(st.integers(0, len(travelling) - 1)))
        pendings = answered.pendings or []
        if isinstance(answered, RangeBatch):
            assert len({pending.operation.table for pending in pendings}) == 1
            assert tuning.range_min <= len(answered) <= tuning.range_rows_max
            tracker.complete([answered.place.first])
        else:
            assert len(answered) <= tuning.batch_operations_max
            tracker.complete(answered.sequences)
        for pending in pendings:
            sequences.append(pending.operation.sequence)
            applied[pending.operation.table, pending.operation.key].append(order[id(pending)])
    live = [pending for pending in queue if not pending.promise.done()]
    assert not sending.waiting
    assert sorted(sequences) == list(range(1, len(live) + 1))
    assert dropped_in_all == len(queue) - len(live)
    assert all(row == sorted(row) for row in applied.values())


def test_write_waits_behind_a_transaction_that_waits_for_another_row() -> None:
    sending = SendQueue(RequestTracker(window=512), Tuning())
    both = Operation(0, "transaction", writes=[Write("delete", "rows", "a"), Write("delete", "rows", "b")])
    looks = Operation(0, "transaction", writes=[Write("delete", "rows", "d")], conditions=[Condition("rows", "b", {})])
    waiting = [*(Pending(one, None, Open(), 1.0) for one in (both, looks)), *(write("rows", key) for key in "bdc")]
    sending.waiting.extend(waiting)
    batch, _ = sending.take([{"rows": {"a"}}])
    assert batch is not None
    assert batch.pendings == [waiting[-1]]
    assert sending.take([{"rows": {"a", "c"}}])[0] is None
    assert list(sending.waiting) == waiting[:-1]


def test_run_of_puts_behind_other_writes_becomes_a_range_of_its_own() -> None:
    sending = SendQueue(RequestTracker(window=512), Tuning(range_min=8))
    sending.waiting.extend([write("rows", "x"), *(write("stream", f"k{n}") for n in range(20)), write("rows", "y")])
    sizes = []
    while (batch := sending.take(())[0]) is not None:
        sizes.append((type(batch).__name__, len(batch)))
    assert sizes == [("OperationsBatch", 1), ("RangeBatch", 20), ("OperationsBatch", 1)]


@pytest.mark.parametrize(
    ("waiting", "requests", "sizes"),
    [
        (512, 4, [128, 128, 128, 128]),
        (512, 3, [171, 171, 170]),
        (300, 4, [150, 150]),
        (255, 4, [255]),
        (64, 4, [64]),
        (512, 1, [512]),
    ],
)
def test_what_waits_is_divided_equally_and_into_no_small_requests(
    waiting: int, requests: int, sizes: list[int]
) -> None:
    for in_order in (False, True):
        sending = SendQueue(RequestTracker(window=1024), Tuning(pipeline_min=128), in_order=in_order)
        sending.waiting.extend(write("rows", f"k{n}") for n in range(waiting))
        taken: list[Rows] = []
        found = []
        while (batch := sending.take(taken, requests - len(taken))[0]) is not None:
            taken.append(batch.keys())
            found.append(len(batch))
        assert found == ([waiting] if in_order else sizes)


@given(queue=st.lists(writes, max_size=40), most=st.integers(1, 12), requests=st.integers(1, 4))
@example(queue=[write("stream", f"k{n}") for n in range(7)], most=1, requests=1)
@example(queue=[*(write("stream", f"k{n}") for n in range(7)), write("rows", "k")], most=4, requests=1)
def test_request_has_no_more_operations_than_its_bound_although_fewer_than_a_range_are_puts_on_a_stream(
    queue: list[Pending], most: int, requests: int
) -> None:
    sending = SendQueue(RequestTracker(window=512), Tuning(range_min=8, batch_operations_max=most, pipeline_min=1))
    sending.waiting.extend(queue)
    while (batch := sending.take((), requests)[0]) is not None:
        assert len(batch) >= 8 if isinstance(batch, RangeBatch) else len(batch) <= most
    assert not sending.waiting


names = st.sampled_from("abc")
looks = st.builds(
    lambda writes, conditions: Operation(0, "transaction", writes=writes, conditions=conditions),
    st.lists(st.builds(Write, st.just("delete"), names, names), min_size=1, max_size=3),
    st.lists(st.builds(Condition, names, names, st.just({})) | st.builds(Condition, session=st.just("1")), max_size=2),
)
some = st.lists((st.builds(Operation, st.just(0), st.just("put"), names, names) | looks), max_size=5)


@given(some, some)
def test_rows_of_many_writes_are_those_of_each(first: list[Operation], second: list[Operation]) -> None:
    def each(operations: list[Operation]) -> set[tuple[str, str]]:
        return {row for operation in operations for row in rows_of(operation)}

    def of_all(operations: list[Operation]) -> Rows:
        return rows_of_all([Pending(operation, None, Open(), 1.0) for operation in operations])

    assert {(table, key) for table, keys in of_all(first).items() for key in keys} == each(first)
    assert share_a_row(of_all(first), of_all(second)) == bool(each(first) & each(second))


@pytest.mark.parametrize("busy", [True, False])
def test_rows_of_a_put_many_wait_for_a_row_of_theirs_that_travels(busy: bool) -> None:
    sending = SendQueue(RequestTracker(window=512), Tuning())
    sending.waiting.append(PendingRows("stream", ["a", "b"], ["1", "2"], Open(), 1.0))  # type: ignore[arg-type]
    batch, _ = sending.take([{"stream": {"b" if busy else "c"}}])
    assert (batch is None) == busy


class Noted(Open):
    """A promise that notes what it fails with."""

    failure: BaseException | None = None

    def set_exception(self, failure: BaseException, /) -> None:
        self.failure = failure

    def fail(self, _: int, failure: BaseException) -> None:
        self.failure = failure


@given(st.lists(st.sampled_from(["alone", "row of many", "rows on a stream"]), max_size=12))
def test_what_waits_of_a_put_many_is_refused_when_the_session_is_lost_and_single_writes_go_on(kinds: list[str]) -> None:
    sending = SendQueue(RequestTracker(window=512), Tuning())
    promises = [Noted() for _ in kinds]
    for at, (kind, promise) in enumerate(zip(kinds, promises, strict=True)):
        one = Pending(Operation(0, "put", "rows", f"k{at}", 1), None, promise, 1.0, alone=kind == "alone")
        rows = PendingRows("stream", ["a"], ["1"], promise, 1.0)  # type: ignore[arg-type]
        sending.waiting.append(rows if kind == "rows on a stream" else one)
    lost = OperationFailed(Code.SESSION_EXPIRED)
    assert sending.refuse_rows(lost) == len(kinds) - kinds.count("alone")
    kept = [pending.operation.key for pending in sending.waiting if isinstance(pending, Pending)]
    assert kept == [f"k{at}" for at, kind in enumerate(kinds) if kind == "alone"]
    told = [getattr(promise.failure, "code", None) for promise in promises]
    assert told == [None if kind == "alone" else Code.SESSION_EXPIRED for kind in kinds]
