"""Every field of the state behind a fence, as one table: what a new cluster keeps, moves on, skips and forgets.

What the fields are says the digest of the state: one that it gets later has no line here, and fails. The states are
those of random logs, with rows that end, keys, flows, consumers and sessions.
"""

from __future__ import annotations

import copy
import random
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from oncegate.consensus.ports import SavedPoint
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.retired import RetiredState, Used
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.backup import restoring
from oncegate.gateway.backup.fence import (
    BLOCKS_DRAWN,
    CLOCK_MARGIN_MS,
    COMMITS_SKIPPED,
    NUMBERS_SKIPPED,
    SESSIONS_SKIPPED,
    fence,
)
from oncegate.gateway.backup.manifest import Manifest
from oncegate.gateway.backup.shelf import Shelf
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.row_ends import NO_OWNER, Life
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.state import digest, state_digest
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX, CommitNumber
from oncegate.rifl.key_buckets import Bucket
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.write_times import COMMIT_MAX
from tests.gateway.logs import RandomLog

Values = tuple[Any, ...]
Lines = list[tuple[str, Values]]


def lines(machine: Machine) -> Lines:
    """Return the state as the digest takes it, each line with its name; later changes do not reach it."""
    found: Lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "_encode", lambda line: found.append(copy.deepcopy(line)) or b"")
        state_digest(machine)
    return found


class How:
    """A machine before its fence, and what the fence is told."""

    def __init__(self, machine: Machine, age_ms: int, block: int) -> None:
        self.age_ms, self.block = age_ms, block
        self.identity, self.commit, self.before_ms = machine.identity, machine.commit, machine.time_ms
        self.slept_ms = max(0, age_ms) + CLOCK_MARGIN_MS
        self.now_ms = machine.time_ms + self.slept_ms
        self.keys = 0


def _meta(how: How, values: Values) -> Values:
    commit, time_ms, replayed, next_id, _ = values
    block = next_id // SESSIONS_SKIPPED + 1 + how.block
    return commit + COMMITS_SKIPPED, time_ms + how.slept_ms, replayed, block * SESSIONS_SKIPPED, "new"


def _row(how: How, values: Values) -> Values:
    key, row = values
    if row.life is None:
        return values
    ends_ms = how.now_ms if row.life.owner else row.life.ends_ms + how.slept_ms
    return key, StoredRow(row.version, row.value, Life(ends_ms, NO_OWNER))


def _keys(how: How, values: Values) -> Values:
    first, following, _, size, buckets = values
    following += NUMBERS_SKIPPED  # numbers stay, and those behind them are skipped
    return first if how.keys else following, following, how.now_ms, size, _later(how, buckets)


def _key(how: How, values: Values) -> Values:
    (used,) = values
    return (msgspec.structs.replace(used, ends_ms=used.ends_ms + how.slept_ms),)


def _closed(how: How, values: Values) -> Values:
    (nonces,) = values
    return ([(named, until_ms + how.slept_ms) for named, until_ms in nonces],)


def _later(how: How, buckets: list[Bucket]) -> list[Bucket]:
    for one in buckets:
        one.ends_ms += how.slept_ms
        one.slept_ms += how.slept_ms
    return buckets


def _retired(_: How, values: Values) -> Values:
    (state,) = values
    names = tuple(
        (name, Used(used.batches, used.fences + NUMBERS_SKIPPED, used.versions)) for name, used in state.names
    )
    floor = Used(state.floor.batches, state.floor.fences + NUMBERS_SKIPPED, state.floor.versions)
    return (RetiredState(names, floor),)


def _flow(how: How, values: Values) -> Values:
    declaration, retained, consumers, batches = values
    fenced = tuple(
        msgspec.structs.replace(
            one,
            fence=one.fence + NUMBERS_SKIPPED,
            alive_ms=one.alive_ms + how.slept_ms,
        )
        for one in consumers
    )
    sealed = array("q", batches.sealed_ms)
    older = array("q", [time_ms + how.slept_ms for time_ms in sealed]).tobytes()
    return declaration, retained, fenced, msgspec.structs.replace(batches, sealed_ms=older)


def _versions(how: How, values: Values) -> Values:
    version, altered_ms, fences = values
    return version, altered_ms + how.slept_ms, fences + NUMBERS_SKIPPED


def _kept(_: How, values: Values) -> Values:
    return values


def _origin(how: How, _: Values) -> Values:
    return ((how.identity, how.commit),)


def _gone(_: How, __: Values) -> None:
    return None


BEHIND_A_FENCE: dict[str, Callable[[How, Values], Values | None]] = {
    "meta": _meta,
    "level": _kept,
    "origin": _origin,
    "tables": _kept,
    "table": _kept,
    "row": _row,
    "ending": _kept,
    "session": _gone,
    "closed": _closed,
    "ends": _kept,
    "keys": _keys,
    "key": _key,
    "retired": _retired,
    "flow": _flow,
    "versions": _versions,
    "shed": _kept,
    "open": _kept,
    "chunk": _kept,
    "run": _kept,
}
"""What becomes of each line of the state; None: it is not there any more."""


def expected(how: How, before: Lines) -> Lines:
    """Return the state as the table says that it is behind the fence."""
    how.keys = sum(name == "key" for name, _ in before)
    made = [(name, BEHIND_A_FENCE[name](how, values)) for name, values in before]
    return [(name, values) for name, values in made if values is not None]


def _plain(line: tuple[str, Values]) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(line))


THERE = {1: 3, 2: 4}
"""Items of each batch that the state retains."""


def _retaining() -> Machine:
    machine = Machine()
    machine.flows.declare(FlowDeclaration(name="f", source="t"), ["t"], 0)
    for number, items in THERE.items():
        machine.flows.get("f").batches.append(10 * number, 10 * number + items - 1, items, 100, 0)
    return machine


@pytest.mark.parametrize(("age_ms", "older_ms"), [(-(10**6), 0), (0, 0), (1, 1), (10**9, 10**9)])
def test_time_and_numbers_go_on_as_far_above_as_is_decided(age_ms: int, older_ms: int) -> None:
    """Ten minutes, 2^32 client ids and fences, 2^36 commit numbers: docs/decisions/0030."""
    machine = _retaining()
    apply(machine, 1, 1, c.encode_entry(50, [c.OpenSession("n", 60_000, 8)]))
    machine.commit = CommitNumber(7)
    fence(machine, identity="new", age_ms=age_ms, block=3)
    assert machine.time_ms == 50 + older_ms + 10 * 60_000
    assert machine.commit == 7 + 2**36
    assert machine.sessions.next_id == 2**32 * (1 + 3)
    flow = machine.flows.get("f")
    assert flow.consumers.attach("x", "n", flow.batches, machine.time_ms).fence == 2**32 + 1


def test_client_ids_last_for_some_250_restores_one_of_the_other() -> None:
    """If each draws the block in the middle: docs/decisions/0030."""
    machine, restores = Machine(), 0
    with suppress(OncegateError):
        while restores < 1_000:
            fence(machine, identity="new", age_ms=0, block=BLOCKS_DRAWN // 2)
            restores += 1
    assert 250 <= restores <= 260
    assert machine.sessions.next_id <= ID_MAX - SESSIONS_SKIPPED


BLOCK_LAST = ID_MAX // SESSIONS_SKIPPED - 1
"""The last block of client ids behind which there is another one."""


@pytest.mark.parametrize(
    ("block", "commit", "is_left"),
    [
        (BLOCK_LAST, 0, True),
        (BLOCK_LAST + 1, 0, False),
        (1, COMMIT_MAX - 2 * COMMITS_SKIPPED, True),
        (1, COMMIT_MAX - 2 * COMMITS_SKIPPED + 1, False),
        (BLOCK_LAST + 1, COMMIT_MAX - 2 * COMMITS_SKIPPED + 1, False),
    ],
)
def test_a_fence_leaves_a_block_of_ids_and_as_many_commit_numbers_as_it_skips(
    block: int, commit: int, is_left: bool
) -> None:
    machine = Machine()
    machine.commit = CommitNumber(commit)
    if is_left:
        fence(machine, identity="new", age_ms=0, block=block - 1)
        assert (machine.sessions.next_id, machine.commit) == (block * SESSIONS_SKIPPED, commit + COMMITS_SKIPPED)
        return
    before = state_digest(machine)
    with pytest.raises(OncegateError) as refused:
        fence(machine, identity="new", age_ms=0, block=block - 1)
    assert refused.value.code is Code.QUOTA
    assert state_digest(machine) == before, "nothing has changed"


def test_each_session_is_announced_while_it_is_there_and_no_other() -> None:
    """What saves a state in pieces takes it over as it was before."""
    machine, announced = RandomLog(1).applied(60), list[tuple[int, bool]]()
    there = [session.client_id for session in machine.sessions]
    machine.touched.clear()
    machine.before_change = lambda client_id: announced.append((client_id, machine.sessions.get(client_id) is not None))
    fence(machine, identity="new", age_ms=0, block=0)
    assert there
    assert announced == [(client_id, True) for client_id in there]


@pytest.mark.parametrize("moves", [0, 1, 5])
def test_every_flow_counts_a_move_so_that_it_is_not_taken_for_what_it_was(moves: int) -> None:
    machine = _retaining()
    flow = machine.flows.get("f")
    flow.moves, before = moves, flow.stamp
    fence(machine, identity="new", age_ms=0, block=0)
    assert flow.moves == moves + 1
    assert flow.stamp > before


@pytest.mark.parametrize("seed", range(6))
def test_every_field_behind_a_fence_is_what_the_table_says(seed: int) -> None:
    dice = random.Random(seed)
    machine = RandomLog(seed).applied(dice.randint(20, 160))
    age_ms, block = dice.randint(-5_000, 10**9), dice.randrange(2**14)
    before, how = lines(machine), How(machine, age_ms, block)
    told = fence(machine, identity="new", age_ms=age_ms, block=block)
    assert (told.sessions, told.keys) == tuple(sum(name == what for name, _ in before) for what in ("session", "key"))
    for wanted, found in zip(expected(how, before), lines(machine), strict=True):
        assert _plain(found) == _plain(wanted), (found, wanted)
    assert not machine.ends.owners()
    assert not machine.trackers


def test_random_states_have_a_line_of_every_kind() -> None:
    found = [line for seed in range(2) for line in lines(RandomLog(seed).applied(160))]
    assert {name for name, _ in found} == set(BEHIND_A_FENCE)
    lives = [values[1].life for name, values in found if name == "row" and values[1].life is not None]
    assert any(life.owner for life in lives)
    assert any(life.ends_ms for life in lives)


def _flows(log: Machine, name: str) -> None:
    log.flows.declare(FlowDeclaration(name=name, source="t"), log.tables, log.time_ms)


def test_fence_of_the_old_cluster_is_no_fence_of_any_flow_here_whenever_it_was_declared() -> None:
    """Also of one that only the old cluster has declared, behind the copy, and one that was deleted before it."""
    old, new = (RandomLog(0).applied(60) for _ in range(2))
    for machine in (old, new):
        _flows(machine, "deleted")
        machine.flows.remove(machine.flows.get("deleted"))
    fence(new, identity="new", age_ms=0, block=0)
    names = {*old.flows.names(), *old.flows.retired.names(), "never"}
    assert {"f", "deleted"} <= names
    given_out: dict[str, set[int]] = {}
    for machine in (old, new):
        for name in sorted(names):
            if name not in machine.flows.names():
                _flows(machine, name)
            flow = machine.flows.get(name)
            fences = {flow.consumers.attach("zombie", f"n{at}", flow.batches, machine.time_ms).fence for at in range(3)}
            assert not fences & given_out.get(name, set()), name
            given_out[name] = fences


class _Origin:
    """Gives the batches of a machine, one of them with another number of items."""

    cluster = "old"

    def __init__(self, payloads: dict[tuple[str, int], bytes]) -> None:
        self.payloads = payloads

    def batch(self, flow: str, number: int) -> bytes | None:
        return self.payloads.get((flow, number))


def _batch(items: int) -> bytes:
    """Return a batch of so many items."""
    sink = pa.BufferOutputStream()
    table = pa.table({"commit": pa.array(range(items), pa.int64())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    made: bytes = sink.getvalue().to_pybytes()
    return made


@pytest.mark.parametrize("number", THERE)
@pytest.mark.parametrize("items", range(8))
def test_batch_with_any_other_number_of_items_than_the_state_says_is_refused(
    tmp_path: Path, number: int, items: int
) -> None:
    machine, store = _retaining(), SegmentStore(tmp_path / "segments")
    held = {one: _batch(items if one == number else there) for one, there in THERE.items()}
    origin = _Origin({("f", one): payload for one, payload in held.items()})
    if items == THERE[number]:
        assert list(restoring._batches(origin, machine, store)) == []  # type: ignore[arg-type]
        return
    with pytest.raises(StoreError, match="items") as refused:
        list(restoring._batches(origin, machine, store))  # type: ignore[arg-type]
    assert refused.value.code is StoreCode.BAD_BACKUP


@pytest.mark.parametrize("later_ms", [-5_000, 0, 1, 10**9])
def test_age_of_a_backup_is_that_of_wall_clocks_and_not_of_the_clusters_time(later_ms: int, tmp_path: Path) -> None:
    """Cluster time begins anywhere and stands still without a leader: it says nothing of how long the old one ran."""
    time_ms, made_ms = 3_000, 1_700_000_000_000
    manifest = Manifest(1, "c", "i", "n", "1", SavedPoint(7, 2, b""), 9, time_ms, made_ms, 0, 0, {}, {}, [])
    assert restoring.BackupOrigin(Shelf(str(tmp_path)), manifest).age_ms(made_ms + later_ms) == later_ms
