"""What travels together, without sockets: against the rules of the module, on random queues."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.client.batch import GONE, OperationsBatch, Pending, RangeBatch
from oncegate.gateway.client.send_queue import SendQueue
from oncegate.gateway.client.settings import Tuning
from oncegate.gateway.wire import Operation
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
    tuning = Tuning(range_min=3, batch_operations_max=7, range_rows_max=9)
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
            batch, dropped = sending.take([other.keys() for other in travelling])
            dropped_in_all += dropped
        if batch is not None:
            touched = batch.keys()
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


def test_run_of_puts_behind_other_writes_becomes_a_range_of_its_own() -> None:
    sending = SendQueue(RequestTracker(window=512), Tuning(range_min=8))
    sending.waiting.extend([write("rows", "x"), *(write("stream", f"k{n}") for n in range(20)), write("rows", "y")])
    sizes = []
    while (batch := sending.take(())[0]) is not None:
        sizes.append((type(batch).__name__, len(batch)))
    assert sizes == [("OperationsBatch", 1), ("RangeBatch", 20), ("OperationsBatch", 1)]
