"""What is left after shrinking still fails, and nothing more can be left out; histories accuse only the guilty."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from oncegate.proof.check.shrink import Budget, Smaller, smaller_history, smaller_run
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.lincheck import Event
from oncegate.proof.lincheck.explain import fewer
from tests.check.histories import Book


@given(st.integers(0, 30), st.data())
def test_least_part_is_found_whatever_is_needed(size: int, data: st.DataObject) -> None:
    needed = data.draw(st.frozensets(st.integers(0, size - 1), max_size=5)) if size else frozenset()
    found = fewer(range(size), lambda part: needed <= set(part), Budget(10_000).spend)
    assert set(found) == needed


def test_items_that_need_the_one_before_them_are_left_out_from_the_last_on() -> None:
    def fails(part: Sequence[int]) -> bool:
        return 3 in part and all(item - 1 in part for item in part if item)

    assert fewer(range(16), fails, Budget(10_000).spend) == (0, 1, 2, 3)


@given(st.integers(0, 20))
def test_tries_are_bounded_and_what_is_left_has_failed(tries: int) -> None:
    asked: list[tuple[int, ...]] = []

    def fails(part: tuple[int, ...]) -> bool:
        asked.append(part)
        return 7 in part

    found = fewer(range(16), fails, Budget(tries).spend)
    assert len(asked) <= tries
    assert 7 in found


def test_run_shrinks_in_faults_processes_and_time() -> None:
    def fails(run: Smaller) -> bool:
        return 3 in run.faults and run.processes >= 2 and run.seconds >= 3

    found = smaller_run(Smaller(tuple(range(8)), 8, 12.0), fails, Budget(100))
    assert found == Smaller((3,), 2, 3.0)


def _fails(part: Sequence[Event]) -> bool:

    return any(
        result.verdict == "invalid" and result.name == "linearizable register"
        for result in workload_of("register").check(part)
    )


def test_history_shrinks_to_the_writes_and_the_read_that_is_wrong() -> None:
    book = Book()
    for value in range(1, 20):
        book.did("write", "r0", value).did("read", "r0", None, value).did("write", "r1", value, process=1)
    book.did("read", "r0", None, 3)
    for value in range(20, 30):
        book.did("write", "r0", value).did("read", "r0", None, value)
    least = smaller_history(book.events, ["r0"], _fails, Budget(500))
    assert _fails(least)
    reads = [event for event in least if event.f == "read" and event.type == "ok"]
    assert [event.value for event in reads] == [3]
    assert {event.key for event in least} == {"r0"}
    assert max(event.value for event in least if event.f == "write" and event.value is not None) == 19, "a prefix"
