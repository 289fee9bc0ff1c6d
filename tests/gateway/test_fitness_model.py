"""Each contradiction between settings and machine begins exactly at its bound, and is an error or a warning there.

What a node needs is added up here once more, from the module's figures; values are drawn at the bounds and beside them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway.node import fitness as f
from oncegate.gateway.node.fitness import Host
from oncegate.rifl.session import SESSIONS_MAX

MIB = 2**20


def near(*bounds: int) -> st.SearchStrategy[int]:
    return st.builds(lambda bound, by: max(0, bound + by), st.sampled_from(bounds), st.integers(-1, 1))


def kind(found: f.Finding | None) -> bool | None:
    """Return whether it is an error; None if nothing was found."""
    return None if found is None else found.is_error


@given(st.data())
@settings(deadline=None)
def test_memory_and_disk_are_told_to_be_too_small_from_the_first_byte_that_is_missing(data: st.DataObject) -> None:
    sizes = {
        name: data.draw(st.sampled_from((0, 1, 3 * MIB, 700 * MIB)))
        for name in ("state_cache_bytes", "history_bytes_max", "receiving_bytes_max", "unsent_bytes_max")
    }
    chosen: Any = SimpleNamespace(**sizes, data_dir="d", log_kept_bytes=data.draw(near(f.SEGMENT_BYTES, 900 * MIB)))
    usual = f.MEMORY_BYTES_BASE + f.LOG_MEMORY_BYTES + sizes["state_cache_bytes"] + sizes["history_bytes_max"]
    most = usual + f.HELD_BODIES_BYTES + sizes["receiving_bytes_max"] + sizes["unsent_bytes_max"]
    memory = data.draw(near(usual, most))
    told = f.memory(chosen, Host(memory_bytes=memory))
    assert kind(told) == (True if memory < usual else False if memory < most else None)

    least = f.DISK_BYTES_FIXED + f.SEGMENT_BYTES
    needed = f.DISK_BYTES_FIXED + max(f.SEGMENT_BYTES, chosen.log_kept_bytes)
    whole, free, is_new = data.draw(near(least, needed)), data.draw(near(needed)), data.draw(st.booleans())
    told = f.disk(chosen, Host(disk_bytes=whole, disk_free_bytes=free, is_new=is_new))
    assert kind(told) == (True if whole < needed else False if is_new and free < needed else None)
    if told is not None and least <= whole < needed:
        advised: Any = SimpleNamespace(data_dir="d", log_kept_bytes=int(told.text.split()[-3]))
        assert f.disk(advised, Host(disk_bytes=whole)) is None, "what is advised helps"
        advised.log_kept_bytes += 1
        assert f.disk(advised, Host(disk_bytes=whole)) is not None or whole == least, "and is the most that does"


@given(
    places=st.integers(8, 60),
    descriptors=st.none() | st.builds(lambda n: f.DESCRIPTORS_RESERVED + n, st.integers(-2, 62)),
    bounds=st.lists(st.integers(1, 70), min_size=3, max_size=3),
)
@settings(deadline=None)
def test_connections_are_those_of_the_setting_and_of_the_descriptors_and_bound_what_each_takes_one_of(
    places: int, descriptors: int | None, bounds: list[int]
) -> None:
    watchers, receiving, requests = bounds
    chosen: Any = SimpleNamespace(
        connections_max=places, watchers_max=watchers, receiving_max=receiving, tenant_requests_max=requests
    )
    host = Host(descriptors_max=descriptors)
    there = places if descriptors is None else min(places, max(0, descriptors - f.DESCRIPTORS_RESERVED))
    assert kind(f.descriptors(chosen, host)) == (None if there == places else there < f.CONNECTIONS_MIN)
    told = f.shares_of_connections(chosen, host)
    no_bounds = [
        f"{name} ({value})"
        for name, value, least in (
            ("watchers_max", watchers, max(1, there * 3 // 4) + 1),
            ("receiving_max", receiving, there),
            ("tenant_requests_max", requests, there),
        )
        if value >= least
    ]
    assert kind(told) == (False if no_bounds else None)
    if told is not None:
        assert told.text.startswith(", ".join(no_bounds) + " ")
        assert f"set {max(1, there * 3 // 4)} or less" in told.text


@given(
    kept=near(f.JOURNAL_BYTES_MAX // 2),
    answer=near(f.ELECTION_MS),
    space=st.none() | near(f.ADDRESS_SPACE_MIN),
    own=near(10, SESSIONS_MAX),
    all_=near(10, SESSIONS_MAX),
)
@settings(deadline=None)
def test_other_bounds_are_told_from_the_first_value_that_contradicts(
    kept: int, answer: int, space: int | None, own: int, all_: int
) -> None:
    chosen: Any = SimpleNamespace(log_kept_bytes=kept, answer_ms_max=answer, tenant_sessions_max=own, sessions_max=all_)
    assert kind(f.kept_log(chosen, Host())) == (False if kept > f.JOURNAL_BYTES_MAX // 2 else None)
    assert kind(f.patience(chosen, Host())) == (False if answer < f.ELECTION_MS else None)
    told = f.address_space(chosen, Host(address_space_bytes=space))
    assert kind(told) == (None if space is None else space < f.ADDRESS_SPACE_MIN)
    assert kind(f.sessions(chosen, Host())) == (False if own > all_ and own != SESSIONS_MAX else None)
