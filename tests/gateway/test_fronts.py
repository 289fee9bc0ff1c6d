"""The front of a prefix is what a scan from there on finds, whatever was written and looked at before."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.machine import fronts
from oncegate.gateway.machine.fronts import Fronts
from oncegate.gateway.machine.rows import DictRows, StoredRow, prefix_end

PREFIXES = ("", "a", "a/", "b")
keys = st.builds("{}{:02}".format, st.sampled_from(("a", "a/", "b")), st.integers(0, 30))
steps = (
    st.tuples(st.just("put"), st.lists(keys, max_size=12))
    | st.tuples(st.just("delete"), st.lists(keys, max_size=4))
    | st.tuples(st.just("look"), st.tuples(st.sampled_from(PREFIXES), st.integers(0, 8)))
)


@given(st.lists(steps, max_size=25), st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 64)))
def test_the_front_of_a_prefix_is_what_a_scan_finds(plan: list[tuple[str, object]], kept: int, prefixes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fronts, "KEPT_KEYS", kept)
        patch.setattr(fronts, "FRONTS_MAX", prefixes)
        tried = _Tried()
        for what, how in plan:
            getattr(tried, what)(how)
            fronts_kept = tried.fronts._by_prefix.values()
            assert len(fronts_kept) <= prefixes
            if what != "look":
                assert all(len(front.keys) <= max(2 * kept, tried.looked_at) for front in fronts_kept)
        for prefix in PREFIXES:
            tried.look((prefix, 100))


class _Tried:
    """Rows of a table, and its fronts."""

    def __init__(self) -> None:
        self.rows = DictRows()
        self.fronts = Fronts()
        self.commit = 0
        self.looked_at = 0
        """Rows that a look has read of one prefix; they are kept until more come."""

    def put(self, keys: list[str]) -> None:
        for key in keys:
            self.commit += 1
            self.rows.put(key, StoredRow(self.commit, b"1"), self.rows.get(key))
            self.fronts.note(key)

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            if (row := self.rows.get(key)) is not None:
                self.rows.delete(key, row)

    def look(self, how: tuple[str, int]) -> None:
        """Look at as many rows as there may be, and hold them against all that the table has."""
        prefix, count = how
        found = list(islice(self.fronts.rows(self.rows, prefix, prefix_end(prefix)), count))
        self.looked_at = max(self.looked_at, len(found) + fronts.KEPT_KEYS)
        assert found == [one for one in self.rows.items() if one[0].startswith(prefix)][:count]
