"""A copy is found by what it holds now: while values change, beside the removal of entries, and killed at any step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.spark import apply, open_store
from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.library.copies import copied, words
from oncegate.spark_sink.library.fields import moment, text, whole
from oncegate.stores import ClaimedStore, claimed_store
from oncegate.stores.claims import adopt
from oncegate.stores.errors import StoreCode, StoreError
from tests.spark.library.stepped import Step, Stepped, die, opening, steps

PETS = copied("pets", [text("owner"), text("about")], by=["owner"], words_of=["about"])
OWNERS, ABOUT = (index.table for index in PETS.indexes)


def pet(owner: str, about: str = "a cat") -> dict[str, str]:
    return {"owner": owner, "about": about}


FIRST = FlowBatch.of(("tom", pet("ann")), ("rex", pet("bob", "dog")), ("kit", pet("ann")), number=1)
SECOND = FlowBatch.of(("tom", pet("bob")), ("rex", None), ("new", pet("cid", "cat")), number=2, first_commit=10)
THIRD = FlowBatch.of(("tom", pet("ann", "old cat")), ("kit", pet("ann", "dog")), number=3, first_commit=20)
BATCHES = [FIRST, SECOND, THIRD]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], ClaimedStore]]:
    with opening(tmp_path, PETS.tables) as new:
        yield new


def applied(store: Any, *batches: FlowBatch) -> None:
    for batch in batches:
        Applier(PETS, "pets").apply(batch, store, Done())


def keys(found: list[dict[str, Any]]) -> set[str]:
    return {row["key"] for row in found}


def check(store: Any) -> None:
    """Whatever the copy holds is found, and nothing else."""
    states = {row["key"]: row for rows in store.scan(PETS.table) for row in rows.to_pylist()}
    for owner in ("ann", "bob", "cid"):
        assert keys(PETS.find(store, "owner", owner)) == {key for key in states if states[key]["owner"] == owner}
    for word in ("cat", "dog", "old"):
        held = {key for key in states if word in states[key]["about"].split()}
        assert keys(PETS.search(store, "about", word)) == held


def entries(store: ClaimedStore) -> set[tuple[str, str]]:
    return {(row["owner"], row["key"]) for rows in store.scan(OWNERS) for row in rows.to_pylist()}


def test_what_the_copy_holds_is_found_at_each_step_of_a_job(opened: Callable[[], ClaimedStore]) -> None:
    def beside(at: int) -> Stepped:
        store = opened()
        writing = Stepped(store, at, lambda: check(store))
        applied(writing, *BATCHES)
        check(store)
        return writing

    assert steps(beside) > 10


def test_a_batch_that_comes_late_or_again_brings_no_old_value_back(opened: Callable[[], ClaimedStore]) -> None:
    store = opened()
    for order in ([3, 1], [2, 1, 3], [1, 2, 3]):
        applied(store, *(BATCHES[number - 1] for number in order))
        check(store)
    assert keys(PETS.find(store, "owner", "ann")) == {"tom", "kit"}
    assert keys(PETS.find(store, "owner", "bob")) == set()
    assert PETS.get(store, "rex") is None
    assert PETS.get(store, "tom") == {"key": "tom", "owner": "ann", "about": "old cat", "write_ts": 20}


def test_entries_that_nothing_holds_true_are_removed_and_no_others(opened: Callable[[], ClaimedStore]) -> None:
    store = opened()
    applied(store, FIRST, SECOND)
    assert entries(store) == {("ann", "tom"), ("ann", "kit"), ("bob", "tom"), ("bob", "rex"), ("cid", "new")}
    assert PETS.remove_stale(store, 1) == 3  # tom of ann, rex of bob, and rex of "dog"
    assert entries(store) == {("ann", "kit"), ("bob", "tom"), ("cid", "new")}
    applied(store, FIRST, THIRD)
    assert PETS.remove_stale(store, 2) == 4  # tom of bob and of "a", kit of "a" and of "cat"
    assert entries(store) == {("ann", "tom"), ("ann", "kit"), ("cid", "new")}
    check(store)
    assert PETS.remove_stale(store, 3) == 0


def test_entries_ahead_of_their_copy_are_not_removed(opened: Callable[[], ClaimedStore]) -> None:
    """A job that was killed between the two has not finished the batch."""
    store = opened()
    with pytest.raises(Step):
        applied(Stepped(store, 3, die), FIRST)
    assert PETS.remove_stale(store, 0) == 0
    assert entries(store) == {("ann", "tom"), ("ann", "kit"), ("bob", "rex")}
    assert PETS.find(store, "owner", "ann") == []


@pytest.mark.parametrize("action", ["die", "write", "remove"])
def test_removal_killed_or_overtaken_at_any_step_removes_nothing_that_holds(
    opened: Callable[[], ClaimedStore], action: str
) -> None:
    def beside(at: int) -> Stepped:
        store = opened()
        applied(store, FIRST, SECOND)
        does = {"die": die, "write": lambda: applied(store, THIRD), "remove": lambda: PETS.remove_stale(store, 2)}
        removing = Stepped(store, at, does[action])
        try:
            PETS.remove_stale(removing, 2)  # type: ignore[arg-type]
        except Step:
            check(store)
        check(store)
        applied(store, *BATCHES)
        check(store)
        PETS.remove_stale(store, 3)
        check(store)
        assert entries(store) == {("ann", "tom"), ("ann", "kit"), ("cid", "new")}
        return removing

    assert steps(beside) > 5


def test_entries_of_an_adopted_store_are_found_and_stay(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/store"
    with claimed_store(url, "one") as store:
        store.create(PETS.tables)
        applied(store, FIRST)
        adopt(store._store, "here", "two")
    with claimed_store(url, "two") as store:
        applied(store, FlowBatch.of(("tom", pet("cid")), number=1))
        assert PETS.remove_stale(store, 1) == 0
        check(store)
        assert keys(PETS.find(store, "owner", "ann")) == {"kit"}


def test_a_row_that_has_ended_is_not_found_and_a_later_write_moves_the_end(tmp_path: Path) -> None:
    held = copied("held", [text("by")], by=["by"], words_of=["by"], expires=moment("until", unit_ms=1000))
    first = FlowBatch.of(("a", {"by": "ann", "until": 100}), ("b", {"by": "ann"}), ("c", {"by": "ann", "until": 100}))
    second = FlowBatch.of(("c", {"by": "ann", "until": 300}), ("b", {"by": "ann", "until": 200}), first_commit=9)
    with open_store(f"sqlite://{tmp_path}/store") as store:

        def found_at(seconds: int) -> tuple[set[str], set[str]]:
            store.clock = lambda: float(seconds)
            return keys(held.find(store, "by", "ann")), keys(held.search(store, "by", "ANN"))

        apply(held, store, held.tables, first)
        assert [found_at(at) for at in (99, 100)] == [({"a", "b", "c"},) * 2, ({"b"},) * 2]
        apply(held, store, held.tables, second, first)
        assert [found_at(at)[0] for at in (99, 100, 199, 200, 300)] == [
            {"a", "b", "c"},
            {"b", "c"},
            {"b", "c"},
            {"c"},
            set(),
        ]
        store.clock = lambda: 150.0
        assert held.remove_stale(store, 1) == 0
        assert found_at(150) == ({"b", "c"},) * 2


def test_words_are_folded_as_unicode_says() -> None:
    assert words("Straße, STRASSE! ﬁne x_1 Ωμέγα-ΩΜΈΓΑ ２ ½") == ["1", "2", "fine", "strasse", "x_1", "ωμέγα"]  # noqa: RUF001
    assert words("日本語 テスト, ...") == ["テスト", "日本語"]
    assert words("a" * 300) == ["a" * 100]
    assert words("") == words("?!") == []


def test_a_value_too_long_for_a_key_is_a_dead_letter_and_its_neighbours_are_found(
    opened: Callable[[], ClaimedStore],
) -> None:
    from oncegate.spark_sink.dead_letters import DEAD_LETTERS

    store = opened()
    store.create([DEAD_LETTERS])
    applied(store, FlowBatch.of(("a", pet("x" * 70_000)), ("b", pet("ann"))))
    assert [row["item_key"] for rows in store.scan(DEAD_LETTERS) for row in rows.to_pylist()] == ["a"]
    assert keys(PETS.find(store, "owner", "ann")) == {"b"}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: copied("t", [text("a")], by=["b"]),
        lambda: copied("t", [whole("a")], words_of=["a"]),
        lambda: copied("t", [moment("a")], by=["a"]),
        lambda: copied("t", [text("a")], expires=whole("b")),
        lambda: copied("t", [text("a")], words_of=["b"]),
        lambda: copied("t", [text("a")], buckets=0),
        lambda: copied("t" * 45, [text("a")], by=["a"]),
    ],
)
def test_a_malformed_declaration_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(StoreError) as refused:
        wrong()
    assert refused.value.code is StoreCode.BAD_TABLE


def test_an_index_that_is_not_there_is_refused(opened: Callable[[], ClaimedStore]) -> None:
    for ask in (lambda: PETS.find(opened(), "about", "x"), lambda: PETS.search(opened(), "owner", "x")):
        with pytest.raises(StoreError) as refused:
            ask()
        assert refused.value.code is StoreCode.BAD_OPTION
