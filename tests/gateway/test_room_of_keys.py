"""Room for idempotency keys: nobody starves anybody, and a refusal says when there will be room."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.idempotency_keys import KIND_PARTS, check_room, has_room
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.key_records import KEY_OVERHEAD_BYTES, KeyKind
from oncegate.rifl.key_table import NO_TIME

MAX = 40 * (KEY_OVERHEAD_BYTES + 8)
LIFE_MS = 24_000


class Leader:
    """Takes commands as a leader does, and applies them at once."""

    def __init__(self) -> None:
        self.machine, self.index, self.now, self.used = Machine(), 0, 0, 0
        self.apply(c.DeclareTable("t", "resident", 1 << 30))

    def apply(self, *commands: Any) -> None:
        self.index += 1
        apply(self.machine, self.index, 1, c.encode_entry(self.now, list(commands)))

    def keyed(self, kind: str, tenant: str, count: int = 1, names: list[str] | None = None) -> c.Keyed:
        if names is None:
            self.used += count
            names = [f"{kind}{at:05}" for at in range(self.used - count, self.used)]
        op = c.Op(1, int(c.OpKind.PUT), "t", "row", 7, b"1")  # type: ignore[arg-type]
        return c.Keyed(LIFE_MS, [c.KeyedOp(name, NO_TIME, op) for name in names], tenant)

    def wait_ms(self, command: c.Keyed) -> int | None:
        """Return what a refusal says; None: the command is taken."""
        try:
            check_room(self.machine, command, MAX, lambda: self.now)
        except OncegateError as refused:
            return refused.retry_after_ms if refused.code is Code.QUOTA else -1
        return None

    def take(self, kind: str, tenant: str, count: int = 1) -> int | None:
        command = self.keyed(kind, tenant, count)
        if (wait_ms := self.wait_ms(command)) is None:
            self.apply(command)
        return wait_ms


asked = st.tuples(st.sampled_from("ke"), st.sampled_from(["", "a", "b"]), st.integers(1, 6), st.integers(0, 3_000))


@settings(max_examples=150, deadline=None)
@given(st.lists(asked, max_size=40))
def test_refusal_says_when_there_is_room_to_the_millisecond(uses: list[tuple[str, str, int, int]]) -> None:
    leader = Leader()
    for kind, tenant, count, pause_ms in uses:
        leader.now += pause_ms
        leader.apply(c.ForgetKeys())
        command = leader.keyed(kind, tenant, count)
        wait_ms = leader.wait_ms(command)
        if wait_ms is None:
            leader.apply(command)
        elif wait_ms > 1_000:
            before = leader.now
            leader.now = before + wait_ms - 1
            leader.apply(c.ForgetKeys())
            assert leader.wait_ms(command) is not None, "not earlier"
            leader.now = before + wait_ms
            leader.apply(c.ForgetKeys())
            assert leader.wait_ms(command) is None, "then"


@given(st.lists(asked, max_size=60))
def test_events_and_keys_leave_each_other_a_part_and_tenants_half_of_what_is_left(
    uses: list[tuple[str, str, int, int]],
) -> None:
    leader = Leader()
    for kind, tenant, count, _ in uses:
        leader.take(kind, tenant, count)
    keys = leader.machine.keys
    assert keys.bytes <= MAX
    for kind, other in (("k", "e"), ("e", "k")):
        most = MAX - MAX // KIND_PARTS
        assert keys.kinds[kind].bytes <= most
        if keys.kinds[other].bytes >= MAX // KIND_PARTS:
            continue
        taken = keys.taken(KeyKind(kind), "newcomer")
        room = (most - taken.of_kind) // 2
        assert has_room(taken, "newcomer", room, MAX)
        assert not has_room(taken, "newcomer", room + 1, MAX)


@pytest.mark.parametrize(("greedy", "other"), [("e", "k"), ("k", "e")])
@pytest.mark.parametrize("tenant", ["", "a"])
def test_neither_kind_takes_the_last_of_the_room(greedy: str, other: str, tenant: str) -> None:
    leader = Leader()
    while leader.take(greedy, tenant) is None:
        pass
    assert leader.take(other, tenant) is None
    assert leader.take(other, "newcomer") is None
    while leader.take(other, "") is None:
        pass
    assert leader.machine.keys.bytes <= MAX


def test_replays_pass_a_full_table_and_an_empty_command_does_too() -> None:
    leader = Leader()
    first = leader.keyed("k", "", 3)
    leader.apply(first)
    while leader.take("k", "") is None:
        pass
    assert leader.wait_ms(leader.keyed("k", "", names=["k00000", "k00002"])) is None
    assert leader.wait_ms(leader.keyed("k", "", names=["k00000", "new"])) is not None
    assert leader.wait_ms(leader.keyed("k", "", names=[])) is None


def test_wait_is_counted_from_the_clock_and_not_from_the_last_entry() -> None:
    leader = Leader()
    while leader.take("k", "") is None:
        pass
    leader.now += 20_000  # refusals make no entries: cluster time in the state stands still
    assert leader.take("k", "") == LIFE_MS - 20_000 + 1
