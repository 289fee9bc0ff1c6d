"""Batches on their way: what is halved, what is sent again, and what is the row's fault and what the server's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from cassandra import InvalidRequest, OperationTimedOut, Unavailable
from cassandra.cluster import NoHostAvailable
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.stores import open_store
from oncegate.stores.cassandra.encoding import EncodedBatch, encode
from oncegate.stores.cassandra.failures import transient, translated
from oncegate.stores.cassandra.sending import Sending
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.stream_rows import STREAM_ROWS

ROWS = encode(b"id", [pa.array([str(at) for at in range(200)])])


class Server:
    """Answers at once: ``fault`` says what is wrong with a batch of the rows first .. end - 1, if anything."""

    def __init__(self, fault: Callable[[int, int], Exception | None]) -> None:
        self._fault = fault
        self.taken: list[int] = []
        self.requests = 0

    def execute_async(self, batch: EncodedBatch) -> Server:
        self._batch = batch
        return self

    def add_callbacks(self, done: Callable[[Any], None], failed: Callable[..., None], errback_args: Any) -> None:
        first, end = self._batch.first, self._batch.first + self._batch.count
        self.requests += 1
        error = self._fault(first, end)
        if error is None:
            self.taken += range(first, end)
            done(None)
        else:
            failed(error, *errback_args)


def sending(cuts: Sequence[int]) -> Sending:
    edges = [0, *sorted(set(cuts)), 200]
    return Sending([EncodedBatch(ROWS, *span, "ks", b"k") for span in pairwise(edges)], 4)


def refusal(text: str) -> InvalidRequest:
    return InvalidRequest(f'Error from server: code=2200 [Invalid query] message="{text}"')


@given(st.sets(st.integers(0, 199), max_size=5), st.sets(st.integers(1, 199), max_size=5))
@settings(deadline=None)
def test_refused_rows_are_found_and_each_other_row_is_taken_once(bad: set[int], cuts: set[int]) -> None:
    server = Server(lambda first, end: refusal("Key may not be empty") if bad & set(range(first, end)) else None)
    sent = sending(sorted(cuts))
    sent.run(server)
    assert sorted(one.index for one in sent.refused) == sorted(bad)
    assert sorted(server.taken) == [at for at in range(200) if at not in bad]
    assert all(one.reason == "the server: Key may not be empty" for one in sent.refused)
    assert server.requests <= len(cuts) + 1 + 2 * 8 * len(bad)


def test_batch_that_times_out_goes_again_in_halves_with_fewer_in_flight() -> None:
    server = Server(lambda first, end: OperationTimedOut() if end - first > 60 else None)
    sent = sending([])
    attempts = 0
    while sent.waiting:
        attempts += 1
        try:
            sent.run(server)
        except OperationTimedOut:
            assert sent._in_flight == max(1, 4 >> attempts)
    assert attempts == 4, "200 rows, 100, the other 100, 50"
    assert sorted(server.taken) == list(range(200))


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("too few replicas"),
        refusal("table stream_rows does not exist"),
        refusal("Guardrail replica_disk_usage violated: Write request failed because disk usage exceeds failure"),
    ],
)
def test_fault_of_the_server_refuses_no_row_and_stops_the_rest(error: Exception) -> None:
    server = Server(lambda first, end: error)
    sent = Sending([EncodedBatch(ROWS, at, at + 1, "ks", b"k") for at in range(200)], 4)
    with pytest.raises(type(error)):
        sent.run(server)
    assert not sent.refused
    assert len(sent.waiting) == 200
    assert server.requests == 1


def test_reason_names_no_key() -> None:
    server = Server(
        lambda first, end: refusal("Rejected an oversized mutation (9/8) for keyspace: k. Top keys are: ann")
    )
    sent = Sending([EncodedBatch(ROWS, 0, 1, "ks", b"k")], 4)
    sent.run(server)
    assert [one.reason for one in sent.refused] == ["the server: Rejected an oversized mutation (9/8)"]


def test_what_may_pass_is_tried_again_and_what_will_not_is_told_at_once() -> None:
    certificate = OSError(1, "Tried connecting to x. Last error: [SSL: CERTIFICATE_VERIFY_FAILED]")
    assert transient(NoHostAvailable("none", {"a": ConnectionRefusedError(111, "refused")}))
    assert not transient(NoHostAvailable("none", {"a": certificate}))
    full = refusal("Guardrail replica_disk_usage violated: disk usage exceeds failure threshold")
    assert translated(full, "p").code is StoreCode.STORE_UNAVAILABLE
    assert translated(refusal("Undefined column name x"), "p").code is StoreCode.STORE_MISMATCH
    assert "oncegate store init" in translated(refusal("keyspace k does not exist"), "p").detail


def test_host_without_an_address_is_unavailable() -> None:
    with open_store("cassandra://nowhere.invalid/ks?retry_s=0") as store, pytest.raises(StoreError) as refused:
        store.count(STREAM_ROWS)
    assert refused.value.code is StoreCode.STORE_UNAVAILABLE
