"""Names of deleted flows: bounded, and no number twice."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from oncegate.flows import retired
from oncegate.flows.retired import NAMES_MAX, RetiredNames, RetiredState, Used

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
