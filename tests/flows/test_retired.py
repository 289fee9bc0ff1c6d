"""Names of deleted flows: bounded, and no number twice."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.flows import retired
from oncegate.flows.retired import NAMES_MAX, RetiredNames, RetiredState, Used


class Plain:
    """All that was ever retired: of its newest names each is remembered, of the others the highest of each number."""

    def __init__(self, names_max: int) -> None:
        self.names_max, self.newest, self.others = names_max, list[tuple[str, Used]](), list[Used]()

    def retire(self, name: str, used: Used) -> None:
        self.newest = [*((one, numbers) for one, numbers in self.newest if one != name), (name, used)]
        self.others += [numbers for _, numbers in self.newest[: -self.names_max]]
        self.newest = self.newest[-self.names_max :]

    def used(self, name: str) -> Used:
        return dict(self.newest).get(name, self.floor)

    @property
    def floor(self) -> Used:
        return Used(*(max((msgspec.structs.astuple(one)[at] for one in self.others), default=0) for at in range(3)))

    def fence_off(self, skipped: int) -> None:
        def fenced(used: Used) -> Used:
            return Used(used.batches, used.fences + skipped, used.versions)

        self.newest = [(name, fenced(used)) for name, used in self.newest]
        self.others = [fenced(used) for used in (*self.others, Used())]


acts = st.one_of(
    st.tuples(st.just("retire"), st.sampled_from("abcde"), st.builds(Used, *[st.integers(0, 9)] * 3)),
    st.tuples(st.just("declare"), st.sampled_from("abcde"), st.just(Used())),
    st.tuples(st.just("fence off"), st.sampled_from("abcde"), st.builds(Used, st.just(0), st.integers(0, 5))),
)


@given(st.integers(1, 3), st.lists(acts, max_size=25))
def test_the_names_retired_last_are_remembered_each_by_itself_and_the_others_by_the_highest_of_each_number(
    names_max: int, log: list[tuple[str, str, Used]]
) -> None:
    """A name that is retired once more is the newest again: every node forgets the same one next."""
    plain, names = Plain(names_max), RetiredNames()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retired, "NAMES_MAX", names_max)
        for what, name, used in log:
            if what == "retire":
                names.retire(name, used)
                plain.retire(name, used)
            elif what == "declare":
                assert names.declared(name) == plain.used(name)
                plain.newest = [(one, numbers) for one, numbers in plain.newest if one != name]
            else:
                names.fence_off(used.fences)
                plain.fence_off(used.fences)
            assert names.snapshot() == RetiredState(tuple(plain.newest), plain.floor)
            assert names.names() == [one for one, _ in plain.newest]
            for one in "abcdef":
                assert names.used(one) == plain.used(one)
                assert names.find(one) == dict(plain.newest).get(one)
            names = RetiredNames(names.snapshot())


steps = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=40)


@given(steps)
def test_a_name_never_begins_at_or_below_what_it_has_used_also_beyond_the_bound(
    log: list[tuple[str, int, int, bool]],
) -> None:
    highest: dict[str, Used] = {}
    names = RetiredNames()
    before = retired.NAMES_MAX
    retired.NAMES_MAX = 2  # type: ignore[misc]  # the bound of this test
    try:
        for name, batches, fences, restart in log:
            begun = names.declared(name)
            known = highest.get(name, Used())
            assert begun.batches >= known.batches
            assert begun.fences >= known.fences
            assert begun.versions >= known.versions
            highest[name] = Used(begun.batches + batches, begun.fences + fences, begun.versions + 1)
            names.retire(name, highest[name])
            assert names.used(name) == names.find(name) == highest[name]
            assert len(names.names()) <= 2
            if restart:
                data = msgspec.msgpack.encode(names.snapshot())
                names = RetiredNames(msgspec.msgpack.decode(data, type=RetiredState))
    finally:
        retired.NAMES_MAX = before  # type: ignore[misc]


def test_no_more_names_are_remembered_than_there_may_be_flows() -> None:
    names = RetiredNames()
    for number in range(NAMES_MAX + 7):
        names.retire(f"f{number}", Used(number, 1, 2))
    assert len(names.names()) == NAMES_MAX
    assert names.find("f6") is None
    assert names.used("f6") == Used(6, 1, 2), "the floor is that of the names that were forgotten"
    assert names.used("never") == Used(6, 1, 2)
