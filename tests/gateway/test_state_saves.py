"""A saved state is the state at its index, whenever the process dies: replay of the rest ends where all replay ends."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.consensus.errors import SafetyViolation
from oncegate.flows import range_body
from oncegate.flows.chunks import RangeChunk
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.row_ends import Life
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.state import MachineState, durable, frozen, state_digest, store
from oncegate.gateway.machine.state import keys as keys_module
from oncegate.gateway.machine.state import rows as rows_module
from oncegate.gateway.machine.state.directory import StateDirectory
from oncegate.gateway.machine.state.errors import StateCorrupt, StoreFailed
from oncegate.gateway.machine.state.flow_images import PIECE_ITEMS
from oncegate.gateway.machine.state.layout import META, encode_row, encode_rows
from oncegate.gateway.machine.state.store import CellWriter, RocksStore
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import CommitNumber
from tests.gateway.logs import RandomLog
from tests.gateway.state_harness import (
    Fed,
    Member,
    crash_images,
    held,
    point,
    puts,
    save_until_killed,
    ship,
    wrong_after_crash,
)

moves = st.tuples(st.sampled_from(["save", "begin", "restart"]), st.just(0))
steps = st.lists(st.tuples(st.just("apply"), st.integers(1, 40)) | moves, max_size=14)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), plan=steps)
def test_restart_and_replay_of_the_tail_equal_replay_of_everything(
    tmp_path_factory: pytest.TempPathFactory, seed: int, plan: list[tuple[str, int]]
) -> None:
    log, path = RandomLog(seed), tmp_path_factory.mktemp("state")
    member = Member(path, log)
    for what, count in plan:
        if what == "apply":
            member.apply(count)
        elif what == "save":
            member.wait_saved()
            member.save()
        elif what == "begin" and not member.state.saving:
            member.begin_save()
        elif what == "restart":
            last = member.at
            member.close()
            member = Member(path, log)
            assert member.wrong() is None
            member.apply_to(last)
    assert member.wrong() is None
    member.close()
    shutil.rmtree(path)


def test_saved_point_comes_back_with_its_configuration_and_never_goes_back(tmp_path: Path) -> None:
    member = Member(tmp_path / "s", RandomLog(1))
    assert member.state.saved is None
    member.apply(10)
    member.save()
    assert member.state.saved == point(10)
    member.apply(5)
    with pytest.raises(SafetyViolation):
        member.state.begin_save(point(9))
    member.save()
    member.close()
    again = MachineState(tmp_path / "s")
    assert again.saved == point(15)
    again.close()


def test_second_save_while_one_is_under_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(tmp_path / "s", RandomLog(1))
    member.apply(10)
    with held(monkeypatch) as gate:
        member.begin_save()
        assert member.state.saving
        with pytest.raises(SafetyViolation):
            member.begin_save()
        gate.set()
        member.wait_saved()
    member.close()


# --- what is changed while a save is written ---------------------------------------------------------------------


def wrong_when_changed_during_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> str | None:
    """Apply much while a save is held before its first cell; look at the live state, the saved one, and the end."""
    log = RandomLog(seed)
    with held(monkeypatch) as gate:
        gate.set()
        member = Member(tmp_path / f"s{seed}", log)
        member.apply(60)
        member.save()
        member.apply(40)
        gate.clear()
        member.begin_save()
        try:
            member.apply(50)
            live = member.wrong()
        except InvariantViolation as broken:
            live = str(broken)
        gate.set()
        member.wait_saved()
    last = member.at
    member.close()
    return live or wrong_after_crash(tmp_path / f"s{seed}", log, last)


def test_changes_during_a_save_are_seen_at_once_and_saved_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(6):
        assert wrong_when_changed_during_a_save(tmp_path, monkeypatch, seed) is None, f"seed {seed}"


def no_copy_on_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(frozen.SessionImages, "before_change", lambda self, client_id: None)


def overlay_cleared_before_the_ingest(patch: pytest.MonkeyPatch) -> None:
    freeze = rows_module.StoredRows.freeze

    def forgetful(self: rows_module.StoredRows) -> Any:
        frozen = freeze(self)
        self._frozen, self._frozen_runs = {}, []
        return frozen

    patch.setattr(rows_module.StoredRows, "freeze", forgetful)


def tombstones_forgotten(patch: pytest.MonkeyPatch) -> None:
    put = CellWriter.put
    patch.setattr(CellWriter, "put", lambda self, key, value: None if value is None else put(self, key, value))


@pytest.mark.parametrize("plant", [no_copy_on_write, overlay_cleared_before_the_ingest, tombstones_forgotten])
def test_planted_bug_in_a_save_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        for seed in range(6):
            if wrong_when_changed_during_a_save(tmp_path, monkeypatch, seed) is not None:
                return
    pytest.fail("six logs passed with the bug")


@pytest.mark.parametrize("seed", range(8))
def test_columns_are_short_and_their_keys_ascend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(rows_module, "COLUMN_CELLS", 3)
    monkeypatch.setattr(keys_module, "PIECE_KEYS", 3)
    member, write = Member(tmp_path / "s", RandomLog(seed)), durable.MachineState._write
    lengths, deletions = [], 0

    def compared(state: MachineState, save: Any) -> Path:
        nonlocal deletions
        columns = list(save.frozen.columns())
        cells = [cell for keys, values in columns for cell in zip(keys, values, strict=True)]
        keys = [key for key, _ in cells]
        assert keys == sorted(set(keys))
        lengths.extend(len(keys) for keys, _ in columns)
        deletions += sum(value is None for _, value in cells)
        return write(state, save)

    monkeypatch.setattr(durable.MachineState, "_write", compared)
    for _ in range(3):
        member.apply(80)
        member.save()
    member.close()
    assert max(lengths) == 3
    assert deletions


def test_rows_are_encoded_at_once_as_one_by_one() -> None:
    rows = [StoredRow(CommitNumber(7), b"1"), None, StoredRow(CommitNumber(8), b"2", Life(9, 3))]
    assert encode_rows(rows) == [None if row is None else encode_row(row) for row in rows]


def test_columns_are_written_as_their_cells_are_one_by_one(tmp_path: Path) -> None:
    rows: list[tuple[bytes, bytes | None]] = [(b"%03d" % n, b"v" * n if n % 7 else None) for n in range(300)]
    files = []
    for name, step in (("one", 0), ("columns", 50)):
        kept = RocksStore(tmp_path / name, store.new_cache(2**20), create=True)
        writer = kept.writer(tmp_path / f"{name}.cells")
        for start in range(0, 300, step or 300):
            keys, values = map(list, zip(*rows[start : start + (step or 300)], strict=True))
            if step:
                writer.put_all(keys, values)
            else:
                for key, value in zip(keys, values, strict=True):
                    writer.put(key, value)
        writer.finish()
        kept.ingest(tmp_path / f"{name}.cells")
        files.append((writer.cells, [kept.value(key) for key, _ in rows]))
        kept.close()
    assert files[0] == files[1] == (300, [value for _, value in rows])


def test_columns_that_do_not_ascend_are_refused(tmp_path: Path) -> None:
    kept = RocksStore(tmp_path / "s", store.new_cache(2**20), create=True)
    with pytest.raises((StateCorrupt, StoreFailed)):
        kept.writer(tmp_path / "f").put_all([b"b", b"a"], [b"", b""])
    kept.close()


# --- a crash at each step ----------------------------------------------------------------------------------------


def wrong_after_a_crash_at_any_step(tmp_path: Path, patch: pytest.MonkeyPatch, seed: int) -> str | None:
    log = RandomLog(seed)
    member = Member(tmp_path / f"live{seed}", log)
    images = crash_images(patch, tmp_path / f"live{seed}", tmp_path / f"images{seed}")
    for _ in range(2):
        member.apply(50)
        member.save()
    member.close()
    assert len(images) >= 12
    for image in images:
        if (found := wrong_after_crash(image, log, 110)) is not None:
            return f"{image.name}: {found}"
    return None


def test_crash_at_any_step_of_a_save_leaves_the_one_before_or_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LEVEL0_FILES", 1000)
    for seed in range(2):
        with monkeypatch.context() as patch:
            assert wrong_after_a_crash_at_any_step(tmp_path, patch, seed) is None, f"seed {seed}"


def test_saved_point_written_apart_from_the_rows_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LEVEL0_FILES", 1000)
    write = durable.MachineState._write

    def point_first(state: MachineState, save: Any) -> Path:
        early = state._directory.new_save()
        writer = state._store.writer(early)
        writer.put(META.key(), save.frozen.meta)
        writer.finish()
        state._store.ingest(early)
        return write(state, save)

    monkeypatch.setattr(durable.MachineState, "_write", point_first)
    with monkeypatch.context() as patch:
        assert wrong_after_a_crash_at_any_step(tmp_path, patch, 0) is not None


def test_kill_at_random_moments_loses_no_save(tmp_path: Path) -> None:
    seed, last = random.randrange(2**32), 900
    log, rng = RandomLog(seed), random.Random(seed)
    path = tmp_path / "state"
    processes = multiprocessing.get_context("forkserver")  # a child that need not import everything anew
    processes.set_forkserver_preload(["tests.gateway.state_harness"])
    for _ in range(12):
        said, says = processes.Pipe(duplex=False)
        child = processes.Process(target=save_until_killed, args=(seed, path, last, says))
        child.start()
        says.close()
        promised = [said.recv()]  # it is up
        time.sleep(rng.uniform(0, 0.3))  # the moment is what is random here; no condition is waited for
        child.kill()
        child.join()
        with suppress(EOFError):
            while True:
                promised.append(said.recv())
        member = Member(path, log)
        assert member.at >= max(promised), f"seed {seed}: {promised} were said to be durable, {member.at} is"
        assert member.wrong() is None, f"seed {seed}"
        member.close()
        if member.at >= last:
            shutil.rmtree(path)


# --- bounds and failures -----------------------------------------------------------------------------------------


def test_disk_that_refuses_is_tried_again_and_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(tmp_path / "s", RandomLog(3), retry_s=0.01)
    member.apply(30)
    order: list[str] = []

    def failing(original: Callable[..., None]) -> Callable[..., None]:
        refusals = iter(range(2))

        def attempt(*arguments: Any) -> None:
            if next(refusals, None) is not None:
                order.append(original.__name__)
                raise StoreFailed("no space left on device")
            original(*arguments)

        return attempt

    monkeypatch.setattr(RocksStore, "ingest", failing(RocksStore.ingest))
    monkeypatch.setattr(CellWriter, "finish", failing(CellWriter.finish))
    monkeypatch.setattr(StateDirectory, "advance", failing(StateDirectory.advance))
    monkeypatch.setattr(RocksStore, "refuses_writes", property(lambda self: True))  # opened again after each failure
    member.begin_save()
    member.apply(30)
    assert member.wrong() is None
    member.wait_saved()
    assert order == ["finish", "finish", "ingest", "ingest", "advance", "advance"], (
        "each step failed, and was tried again"
    )
    assert member.state.stats.failures == 6
    assert member.state.saved == point(30)
    member.save()
    member.close()
    assert wrong_after_crash(tmp_path / "s", member.log, 70) is None


STREAM = c.DeclareTable("s", "stream", 1 << 30)
LARGE_FLOW = c.DeclareFlow(b'{"name":"f","source":"s","max_items":100000,"max_bytes":100000000,"linger_ms":3600000}')


def test_state_says_when_a_save_is_wanted_and_when_it_is_overloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(monkeypatch) as gate:
        fed = Fed(tmp_path / "s", save_rows=30, fresh_bytes_max=100 * 400)
        state = fed.state
        fed.do(c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", 9, 512))
        fed.do(puts("t", 1, 29, value=b"1" * 100))
        assert not state.save_wanted
        fed.do(puts("t", 30, 1, value=b"1" * 100))
        assert state.save_wanted
        fed.begin_save()
        assert not state.save_wanted
        fed.do(puts("t", 31, 65, value=b"1" * 100))
        assert not state.overloaded, "what is being saved and what is new count together"
        fed.do(puts("t", 96, 10, value=b"1" * 100))
        assert state.overloaded
        gate.set()
        fed.wait_saved()
        assert not state.overloaded
        fed.save()
        assert state.fresh_bytes == 0
    fed.close()


def test_save_that_was_asked_for_is_wanted_until_it_begins_and_no_longer(tmp_path: Path) -> None:
    member = Member(tmp_path, RandomLog(5))
    member.apply(10)
    assert not member.state.save_wanted
    member.state.ask_to_save()
    assert member.state.save_wanted
    member.save()
    assert not member.state.save_wanted
    member.close()


def test_idle_sessions_are_not_written_again(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "s")
    fed.do(*(c.OpenSession(f"n{n}", 60_000, 16) for n in range(5_000)), c.DeclareTable("t", "resident", 1 << 20))
    fed.save()
    before = fed.state.stats.cells
    fed.do(puts("t", 1, 1), c.CloseSession(9, 1))
    fed.save()
    # The point, the heads of flows and of keys, a row, a session that has changed, and one that was closed.
    assert fed.state.stats.cells - before == 6
    fed.reopened().close()


def test_growing_segment_is_saved_in_pieces_and_only_what_is_new(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "s")
    fed.do(STREAM, c.OpenSession("n", 60_000, 4096), LARGE_FLOW)
    written = []
    for turn in range(4):
        fed.do(puts("s", 1 + turn * 2 * PIECE_ITEMS, 2 * PIECE_ITEMS))
        before = fed.state.stats.cells
        fed.save()
        written.append(fed.state.stats.cells - before)
    assert max(written[1:]) <= written[0], "a later save wrote what an earlier one had"
    again = fed.reopened()
    again.do(c.Seal("f", 1), c.Seal("s", 1))
    again.save()
    again.reopened().close()


def test_trace_contexts_of_open_items_survive_saves_and_snapshots_and_stay_shared(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "s")
    fed.do(STREAM, c.OpenSession("n", 60_000, 8192), LARGE_FLOW)
    wanted: list[str | None] = []

    def write(count: int, trace: str) -> None:
        fed.do(puts("s", len(wanted) + 1, count, trace=trace))
        wanted.extend([trace or None] * count)

    def found(machine: Machine) -> list[str | None]:
        traces: list[str | None] = []
        for chunk in machine.flows.get("f").segment.snapshot().chunks:
            if isinstance(chunk, RangeChunk):
                traces += [chunk.traceparent or None] * chunk.count
            else:
                traces += chunk.traceparents or [None] * chunk.items
        return traces

    # Pieces without one, the traced ones after them, the last piece written again, a piece that ends untraced.
    write(PIECE_ITEMS + 10, "")
    fed.save()
    write(PIECE_ITEMS, "00-a")
    fed.save()
    write(PIECE_ITEMS, "")
    first, body = len(wanted) + 1, range_body.encode(["a", "b", "c"], [b"1"] * 3)
    fed.do(c.Range(1, 1, first, "s", first, b"12345678" * 3, body, "", "00-r"))
    wanted += ["00-r"] * 3
    write(5, "")
    write(5, "00-b")
    fed.save()
    write(2, "")
    fed.save()
    assert found(fed.machine) == wanted
    expected = state_digest(fed.machine)
    other = MachineState(tmp_path / "other")
    ship(fed.state, other).install()
    for restored in (other, fed.reopened().state):
        assert found(restored.machine) == wanted
        assert state_digest(restored.machine) == expected
        assert len({id(trace) for trace in found(restored.machine) if trace == "00-a"}) == 1
        restored.close()


def test_cursor_that_moves_while_nothing_is_written_is_saved(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "s")
    for commands in (
        (STREAM, c.OpenSession("n", 60_000, 16), puts("s", 1, 1), c.Seal("s", 1)),
        (c.Attach("s", "x", "one"),),
        (c.MoveCursor("s", "x", 1, 1, False),),
        (c.Attach("s", "x", "two"),),
    ):
        fed.do(*commands)
        fed.save()
    assert fed.machine.flows.get("s").consumers.get("x").fence == 2
    fed.reopened().close()


class Barrier:
    """The batches sealed before a save: on disk as soon as the test says so."""

    done = False

    def mark(self) -> int:
        return 7

    def wait_done(self, mark: int, timeout_s: float) -> bool:
        assert mark == 7
        return self.done


def test_save_does_not_count_before_the_batches_sealed_before_it(tmp_path: Path) -> None:
    barrier = Barrier()
    member = Member(tmp_path / "s", RandomLog(5), barrier=barrier)
    member.apply(20)
    member.begin_save()
    assert not member.state.wait_saved(0.3)
    assert member.state.saved is None
    barrier.done = True
    member.wait_saved()
    assert member.state.saved == point(20)
    member.apply(5)
    barrier.done = False
    member.begin_save()
    member.close()  # is not held up by what never comes
    again = Member(tmp_path / "s", member.log)
    assert again.at == 20
    assert again.wrong() is None
    again.close()
