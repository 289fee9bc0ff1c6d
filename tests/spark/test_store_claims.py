"""A store knows whose rows it holds: clusters, rebuilt ones too, clocks and repairs by hand do not mix in it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

from oncegate.stores import WRITE_TS, ClaimedStore, Column, ColumnType, Store, StoreTable, claimed_store, open_store
from oncegate.stores import claims as store_claims
from oncegate.stores.cassandra.store import CassandraStore
from oncegate.stores.claims import STORE_META, Claim, adopt, claim_new, read_claim, wipe
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.write_times import COMMIT_MAX, EPOCH_MAX, Written, epochs_and_commits, stamped, timestamp, written

A, B = "a" * 32, "b" * 32
SEATS = StoreTable(
    name="seats",
    columns=(Column("seat", ColumnType.TEXT), Column("guest", ColumnType.TEXT)),
    partition_key=("seat",),
)


def seats(commit: int, guest: str, *names: str) -> pa.RecordBatch:
    found = [{"seat": name, "guest": guest, WRITE_TS: commit} for name in names]
    return pa.RecordBatch.from_pylist(found, schema=SEATS.schema)


def guest(store: ClaimedStore, seat: str) -> tuple[Any, Any] | None:
    row = store.get(SEATS, {"seat": seat})
    return None if row is None else (row["guest"], row[WRITE_TS])


def everyone(store: ClaimedStore) -> dict[str, tuple[str, int]]:
    found = [row for rows in store.scan(SEATS) for row in rows.to_pylist()]
    return {row["seat"]: (row["guest"], row[WRITE_TS]) for row in found}


def by_hand(url: str, statement: str) -> None:
    """Run a statement as somebody with the database's own shell does; {now} is what a clock in microseconds says."""
    text = statement.format(now=time.time_ns() // 1000)
    with open_store(url) as store:
        if isinstance(store, CassandraStore):
            store._query(text.replace("seats", f"{urlsplit(url).path[1:]}.seats"))
            return
    path = urlsplit(url).path
    for shard in range(4):
        with closing(sqlite3.connect(f"{path}/shard-{shard:02d}.sqlite")) as connection:
            connection.execute(text)
            connection.commit()


def update(url: str, seat: str, value: str, ts: str) -> None:
    """Change a row by hand at a timestamp, as cqlsh does: last write wins."""
    if url.startswith("sqlite"):
        by_hand(url, f"UPDATE seats SET guest = '{value}', write_ts = {ts} WHERE seat = '{seat}' AND write_ts < {ts}")
    else:
        by_hand(url, f"UPDATE seats USING TIMESTAMP {ts} SET guest = '{value}' WHERE seat = '{seat}'")


@contextmanager
def refused(*words: str) -> Iterator[None]:
    with pytest.raises(StoreError) as error:
        yield
    assert error.value.code is StoreCode.STORE_MISMATCH
    assert not error.value.retryable
    for word in words:
        assert word in error.value.detail


@pytest.fixture
def old(store_url: str) -> Iterator[ClaimedStore]:
    """The store of cluster A, which has delivered: 12A at commit 900, 14C at commit 901."""
    with claimed_store(store_url, A, cluster_name="prod") as store:
        store.create([SEATS])
        store.write(SEATS, seats(900, "OLD", "12A"))
        store.write(SEATS, seats(901, "foreign", "14C"))
        yield store


# --- timestamps ---------------------------------------------------------------------------------------------------


def test_timestamps_order_by_epoch_then_commit_above_every_clock() -> None:
    ends = [(epoch, commit) for epoch in (1, 2, EPOCH_MAX) for commit in (0, 1, 2, COMMIT_MAX)]
    found = [timestamp(*end) for end in ends]
    assert found == sorted(set(found))
    assert time.time_ns() < found[0]
    assert found[-1] < 2**63
    assert [written(ts) for ts in found] == [Written(*end) for end in ends]
    assert [written(ts + 1) for ts in found] == [Written(*end) for end in ends], "repaired by hand"
    assert found[2] < found[2] + 1 < timestamp(1, 3), "a repair stands between two commits"
    assert written(time.time_ns()) == written(1) == written(2**62 - 1) == Written(0, 0)
    rows = pa.RecordBatch.from_pylist([{WRITE_TS: ts} for ts in (*found, 7)])
    epochs, commits = epochs_and_commits(rows)
    assert list(zip(epochs.tolist(), commits.tolist(), strict=True)) == [*ends, (0, 0)]


def test_what_is_no_commit_number_is_no_write_timestamp() -> None:
    assert time.time_ns() // 1000 > COMMIT_MAX, "a derivation that takes a clock is told so"
    for bad in (0, -1, COMMIT_MAX + 1, time.time_ns() // 1000):
        with pytest.raises(StoreError, match="BAD_ROWS"):
            stamped(seats(bad, "x", "12A"), 1)
    for column in (pa.array([1], pa.int32()), pa.array([None], pa.int64()), pa.array(["1"])):
        with pytest.raises(StoreError, match="BAD_ROWS"):
            stamped(seats(1, "x", "12A").set_column(2, WRITE_TS, column), 1)
    last = stamped(seats(COMMIT_MAX, "x", "12A"), EPOCH_MAX).column(WRITE_TS)
    assert last.to_pylist() == [2**63 - 2]
    assert stamped(seats(1, "x"), 1).num_rows == 0


# --- the story -----------------------------------------------------------------------------------------------------


def test_rebuilt_cluster_over_a_kept_store_is_refused_and_adopts_it(old: ClaimedStore, store_url: str) -> None:
    with claimed_store(store_url, B) as new, open_store(store_url) as store:
        for use in (
            lambda: new.create([SEATS]),
            lambda: new.write(SEATS, seats(1, "NEW", "12A")),
            lambda: new.delete(SEATS, seats(1, "", "12A")),
            lambda: new.get(SEATS, {"seat": "12A"}),
            lambda: list(new.scan(SEATS)),
            lambda: new.count(SEATS),
        ):
            with refused(A, "prod", B, "oncegate store adopt", "oncegate store wipe"):
                use()
        assert guest(old, "12A") == ("OLD", 900)

        assert adopt(store, "here", B, "again") == Claim(B, 2, 1, "again")
        assert adopt(store, "here", B, "again") == Claim(B, 2, 1, "again"), "it is this cluster's already"
        assert everyone(new) == {"12A": ("OLD", 0), "14C": ("foreign", 0)}, "their commits are of another log"
        new.write(SEATS, seats(1, "NEW", "12A"))
        assert guest(new, "12A") == ("NEW", 1)
        assert guest(new, "14C") == ("foreign", 0)
        new.delete(SEATS, seats(2, "", "14C").drop_columns(["guest"]))
        assert everyone(new) == {"12A": ("NEW", 1)}


def test_restored_cluster_inherits_the_rows_of_its_backup_and_those_of_later_writes_are_not_there(
    old: ClaimedStore, store_url: str
) -> None:
    old.begin("f", "c")
    old.write(SEATS, seats(902, "kept", "1A", "1B"))
    old.write(SEATS, seats(909, "lost", "1B", "1C"))
    backup = {"12A": ("OLD", 900), "14C": ("foreign", 901), "1A": ("kept", 902)}
    with open_store(store_url) as store:
        assert store_claims.deliveries(store) == [("f", "c")]
        assert adopt(store, "here", B, origin=(A, 905)).inherited == ((1, 905),)
        assert adopt(store, "here", B, origin=(A, 905)).epoch == 2, "again: changes nothing"
    with claimed_store(store_url, B) as new:
        assert new.began("f", "c"), "what the consumer had finished is here"
        assert everyone(new) == backup
        assert [guest(new, seat) for seat in ("1A", "1B", "1C", "1D")] == [("kept", 902), None, None, None]
        with refused("is not known until"):
            new.get(SEATS, {"seat": "1B"}, refuses_lost=True)
        new.write(SEATS, seats(902, "kept", "1B"))
        assert everyone(new) == backup | {"1B": ("kept", 902)}, "read again from what is retained"
        with refused(B):
            old.write(SEATS, seats(910, "late", "1A"))
    with open_store(store_url) as store:
        again = adopt(store, "here", "c" * 32, origin=(B, 905))
        assert again.inherited == ((1, 905), (2, 905)), "restored once more"
    with claimed_store(store_url, "c" * 32) as third:
        assert everyone(third) == backup | {"1B": ("kept", 902)}


def test_rebuilt_cluster_wipes_a_kept_store_and_nothing_of_it_is_left(old: ClaimedStore, store_url: str) -> None:
    with claimed_store(store_url, B) as new, open_store(store_url) as store:
        assert wipe(store, "here", B) == Claim(B, 2, 2)
        assert everyone(new) == {}
        assert store.count(SEATS) == 0
        new.write(SEATS, seats(1, "NEW", "12A"))
        assert everyone(new) == {"12A": ("NEW", 1)}
        assert guest(new, "14C") is None


def test_process_that_was_open_when_the_store_changed_hands_is_refused_and_does_no_harm(
    old: ClaimedStore, store_url: str
) -> None:
    with claimed_store(store_url, B) as new, open_store(store_url) as store, open_store(store_url) as late:
        adopt(store, "here", B)
        new.write(SEATS, seats(1, "NEW", "12A"))
        # What was on its way: the claim had been looked at, the rows arrive after those of the new owner.
        late.write(SEATS, stamped(seats(1_000, "LATE", "12A", "15D"), 1))
        assert everyone(new) == {"12A": ("NEW", 1), "14C": ("foreign", 0), "15D": ("LATE", 0)}
        for use in (
            lambda: old.write(SEATS, seats(1_001, "LATER", "12A")),
            lambda: guest(old, "12A"),
            lambda: guest(old, "nobody"),
            lambda: list(old.scan(SEATS)),
        ):
            with refused(B):
                use()
        assert guest(old, "14C") == ("foreign", 901), "a row of its own says nothing wrong"
        wipe(store, "here", B)
        late.write(SEATS, stamped(seats(1_000, "LATE", "12A", "15D"), 1))
        with claimed_store(store_url, B) as newest:
            assert everyone(newest) == {}, "what comes after a wipe from before it is not there"
            assert guest(newest, "15D") is None
        with refused("adopted or wiped meanwhile"):
            new.write(SEATS, seats(2, "NEW", "12A"))


def test_all_tasks_of_a_job_write_in_the_epoch_in_which_it_began(old: ClaimedStore, store_url: str) -> None:
    with open_store(store_url) as store, claimed_store(store_url, A, epoch=1) as task:
        wipe(store, "here", A)
        with refused("this process began at 1"):
            task.write(SEATS, seats(902, "HALF", "12A"))
        assert store.count(SEATS) == 0


def test_update_with_a_clock_loses_against_jobs_and_is_never_taken_for_a_commit(
    old: ClaimedStore, store_url: str
) -> None:
    update(store_url, "12A", "by hand", "{now}")
    assert guest(old, "12A") == ("OLD", 900), "earlier writes of jobs win too"
    update(store_url, "12A", "by hand", str(2**62 - 1))
    old.write(SEATS, seats(902, "NEW", "12A"))
    assert guest(old, "12A") == ("NEW", 902)


def test_repair_by_hand_wins_over_its_row_and_loses_to_the_next_commit(old: ClaimedStore, store_url: str) -> None:
    update(store_url, "12A", "AAA", str(timestamp(1, 900) + 1))
    assert guest(old, "12A") == ("AAA", 900)
    old.write(SEATS, seats(900, "OLD", "12A"))
    assert guest(old, "12A") == ("AAA", 900), "the batch that is delivered again does not undo it"
    old.write(SEATS, seats(901, "0", "12A"))
    assert guest(old, "12A") == ("0", 901)


def test_rows_of_a_later_epoch_than_the_claim_are_refused_by_name_and_adopted(
    old: ClaimedStore, store_url: str
) -> None:
    """The meta row was restored from an older copy than the rows."""
    with open_store(store_url) as store:
        store.write(SEATS, stamped(seats(5, "later", "16E"), 7))
        with refused("epoch 7", "--epoch 8"):
            guest(old, "16E")
        with refused("epoch 7", "--epoch 8"):
            everyone(old)
        assert adopt(store, "here", A, epoch=8).epoch == 8
    with claimed_store(store_url, A) as again:
        again.write(SEATS, seats(902, "NEW", "16E"))
        assert guest(again, "16E") == ("NEW", 902)


# --- claiming ------------------------------------------------------------------------------------------------------


def test_empty_store_is_claimed_when_its_tables_are_created_and_reading_creates_nothing(store_url: str) -> None:
    with claimed_store(store_url, A) as reader, claimed_store(store_url) as anybody, open_store(store_url) as store:
        for use in (
            lambda: guest(reader, "12A"),
            lambda: list(reader.scan(SEATS)),
            lambda: reader.write(SEATS, seats(1, "x", "12A")),
            lambda: anybody.create([SEATS]),
            lambda: adopt(store, "here", A),
            lambda: wipe(store, "here", A),
        ):
            with refused("oncegate store init"):
                use()
        assert store.tables() == []
        reader.create([SEATS])
        assert reader.claim() == Claim(A, 1, 1)
        assert set(store.tables()) == {STORE_META.name, SEATS.name}
        assert guest(reader, "12A") is None
        assert anybody.claim().cluster == A
        assert everyone(anybody) == {}


def test_store_of_an_earlier_version_is_refused_until_it_is_adopted(store_url: str) -> None:
    with open_store(store_url) as store, claimed_store(store_url, A) as owned:
        store.create([SEATS])
        store.write(SEATS, seats(900, "OLD", "12A", "14C"))
        for use in (
            lambda: owned.create([SEATS]),
            lambda: owned.write(SEATS, seats(1, "NEW", "12A")),
            lambda: guest(owned, "12A"),
            lambda: wipe(store, "here", A),
        ):
            with refused("seats", "oncegate store adopt"):
                use()
        assert adopt(store, "here", A) == Claim(A, 1, 0)
        owned.write(SEATS, seats(1, "NEW", "12A"))
        assert everyone(owned) == {"12A": ("NEW", 1), "14C": ("OLD", 0)}
        wipe(store, "here", A)
    with claimed_store(store_url, A) as again:
        assert everyone(again) == {}


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """Run the actions at the same time, each with its own connections; return what each returned or raised."""
    ends: list[Any] = [None] * len(actions)
    gate = threading.Barrier(len(actions))

    def run(at: int, action: Callable[[], Any]) -> None:
        gate.wait()
        try:
            ends[at] = action()
        except StoreError as error:
            ends[at] = error

    threads = [threading.Thread(target=run, args=one) for one in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def test_of_two_clusters_that_claim_an_empty_store_at_once_one_wins(store_url: str) -> None:
    def claim(cluster: str) -> Claim:
        with open_store(store_url) as store:
            return claim_new(store, "here", cluster, "")

    with open_store(store_url) as store:
        store.create([STORE_META])  # Cassandra itself may make two of a table that is created twice at once
        winner, other = at_once(lambda: claim(A), lambda: claim(B))
        assert winner == other == read_claim(store, "here")
        assert winner.epoch == 1


def test_of_two_that_take_a_store_over_at_once_one_wins_and_the_other_is_told(
    old: ClaimedStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Barrier(2)
    take = store_claims._take
    monkeypatch.setattr(store_claims, "_take", lambda *how: (gate.wait(), take(*how))[1])

    def take_over(cluster: str) -> Claim:
        with open_store(store_url) as store:
            return adopt(store, "here", cluster)

    ends = at_once(lambda: take_over(B), lambda: take_over("c" * 32))
    (won,) = [end for end in ends if isinstance(end, Claim)]
    (lost,) = [end for end in ends if isinstance(end, StoreError)]
    assert lost.code is StoreCode.STORE_MISMATCH
    assert "at the same time" in lost.detail
    with claimed_store(store_url) as store:
        assert store.claim() == won == Claim(won.cluster, 2, 1)


def test_claim_whose_answer_was_lost_is_found_by_the_next_attempt(
    old: ClaimedStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(store_url) as store:
        replace = type(store).replace

        def twice(self: Store, table: StoreTable, before: Mapping[str, Any] | None, row: Mapping[str, Any]) -> bool:
            replace(self, table, before, row)
            return replace(self, table, before, row)

        monkeypatch.setattr(type(store), "replace", twice)
        assert adopt(store, "here", B).epoch == 2


def test_claim_of_another_version_or_unreadable_is_refused_and_epochs_end(store_url: str) -> None:
    with open_store(store_url) as store:
        store.create([STORE_META])
        for text, words in (('{"version":3,"cluster":"x","epoch":1,"floor":1}', "version 3"), ("{", "cannot be read")):
            before = store.get(STORE_META, {"name": "claim"})
            assert store.replace(STORE_META, before, {"name": "claim", "value": text})
            with refused(words):
                read_claim(store, "here")
        last = Claim(A, EPOCH_MAX, 1)
        before = store.get(STORE_META, {"name": "claim"})
        assert store.replace(STORE_META, before, store_claims._row(last))
        with refused("use a new store"):
            adopt(store, "here", B)
        with refused("use a new store"):
            wipe(store, "here", B)


def test_replace_writes_only_what_is_as_expected(store_url: str) -> None:
    with open_store(store_url) as store:
        store.create([STORE_META])
        one, two = {"name": "n", "value": "1"}, {"name": "n", "value": "2"}
        assert not store.replace(STORE_META, one, two)
        assert store.replace(STORE_META, None, one)
        assert not store.replace(STORE_META, None, two)
        assert not store.replace(STORE_META, two, two)
        assert store.replace(STORE_META, one, two)
        found = store.get(STORE_META, {"name": "n"})
        assert found is not None
        assert found["value"] == "2"


def test_store_agrees_about_commits_that_differ_by_one_bit(old: ClaimedStore) -> None:
    """Neither database rounds: 2^62 and more are compared to the last bit, deletions too."""
    for step in range(49):
        old.write(SEATS, seats(1 << step, f"{step:02d}", "k"))
        old.delete(SEATS, seats(1 << step, "", "gone").drop_columns(["guest"]))
    assert guest(old, "k") == ("48", 1 << 48)
    old.write(SEATS, seats((1 << 48) - 1, "late", "k", "gone"))
    assert guest(old, "k") == ("48", 1 << 48)
    assert guest(old, "gone") is None
    old.write(SEATS, seats((1 << 48) + 1, "back", "gone"))
    assert guest(old, "gone") == ("back", (1 << 48) + 1)
    assert np.asarray([commit for _, commit in everyone(old).values()]).max() == (1 << 48) + 1
