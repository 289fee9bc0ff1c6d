"""A saved state is the state at its index, whenever the process dies: replay of the rest ends where all replay ends."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
from oncegate.gateway.machine.state import MachineState, durable, session_images, state_digest, store
from oncegate.gateway.machine.state import rows as rows_module
from oncegate.gateway.machine.state.errors import StoreFailed
from oncegate.gateway.machine.state.flow_images import PIECE_ITEMS
from oncegate.gateway.machine.state.layout import META_KEY
from oncegate.gateway.machine.state.store import CellWriter, RocksStore
from tests.gateway.logs import RandomLog
from tests.gateway.state_harness import Member, crash_images, digest_at, held, point, ship, wrong_after_crash

steps = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.integers(1, 40)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=14,
)


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
        member.apply(50)
        live = member.wrong()
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
    patch.setattr(session_images.SessionImages, "before_change", lambda self, client_id: None)


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


@pytest.mark.parametrize(
    "plant",
    [no_copy_on_write, overlay_cleared_before_the_ingest, tombstones_forgotten],
)
def test_planted_bug_in_a_save_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        for seed in range(6):
            if wrong_when_changed_during_a_save(tmp_path, monkeypatch, seed) is not None:
                return
    pytest.fail("six logs passed with the bug")


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
        writer.put(META_KEY, save.frozen.meta)
        writer.finish()
        state._store.ingest(early)
        return write(state, save)

    monkeypatch.setattr(durable.MachineState, "_write", point_first)
    with monkeypatch.context() as patch:
        assert wrong_after_a_crash_at_any_step(tmp_path, patch, 0) is not None


CHILD = """
import random, sys
from pathlib import Path
from tests.gateway.logs import RandomLog
from tests.gateway.state_harness import Member
seed, path, last = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
member, rng = Member(path, RandomLog(seed)), random.Random(seed)
print(member.at, flush=True)
while member.at < last:
    member.apply(rng.randint(1, 30))
    if not member.state.saving:
        if member.state.saved is not None:
            print(member.state.saved.index, flush=True)
        member.begin_save()
member.wait_saved()
print("done", flush=True)
"""


def test_kill_at_random_moments_loses_no_save(tmp_path: Path) -> None:
    seed, last = random.randrange(2**32), 900
    log, rng = RandomLog(seed), random.Random(seed)
    path = tmp_path / "state"
    kills = 0
    for _ in range(12):
        command = [sys.executable, "-c", CHILD, str(seed), str(path), str(last)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = [child.stdout.readline().strip()]  # it is up
            time.sleep(rng.uniform(0, 0.3))  # the moment is what is random here; no condition is waited for
            os.kill(child.pid, signal.SIGKILL)
            said += child.stdout.read().split()
        assert said[0], "the child did not come up"
        promised = max(int(word) for word in said if word != "done")
        member = Member(path, log)
        assert member.at >= promised, f"seed {seed}: {promised} was said to be durable, {member.at} is"
        assert member.wrong() is None, f"seed {seed}"
        kills += 1
        member.close()
        if member.at >= last:
            shutil.rmtree(path)
    assert kills == 12


# --- bounds and failures -----------------------------------------------------------------------------------------


def test_disk_that_refuses_is_tried_again_and_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(tmp_path / "s", RandomLog(3), retry_s=0.01)
    member.apply(30)
    ingest, finish, refusals = RocksStore.ingest, CellWriter.finish, iter(range(6))

    def failing(original: Callable[..., None]) -> Callable[..., None]:
        def attempt(*arguments: Any) -> None:
            if next(refusals, None) is not None:
                raise StoreFailed("no space left on device")
            original(*arguments)

        return attempt

    monkeypatch.setattr(RocksStore, "ingest", failing(ingest))
    monkeypatch.setattr(CellWriter, "finish", failing(finish))
    monkeypatch.setattr(RocksStore, "refuses_writes", property(lambda self: True))  # opened again after each failure
    member.begin_save()
    member.apply(30)
    assert member.wrong() is None
    member.wait_saved()
    assert member.state.stats.failures == 6
    assert member.state.saved == point(30)
    member.save()
    member.close()
    assert wrong_after_crash(tmp_path / "s", member.log, 70) is None


def test_state_says_when_a_save_is_wanted_and_when_it_is_overloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(first: int, count: int) -> bytes:
        ops = [c.Op(n, int(c.OpKind.PUT), "t", f"k{n}", n, b"1" * 100) for n in range(first, first + count)]
        return c.encode_entry(0, [c.Operate(1, 1, first, ops)])

    with held(monkeypatch) as gate:
        state = MachineState(tmp_path / "s", save_rows=30, fresh_bytes_max=100 * 400)
        machine = state.machine
        machine.apply(1, 1, c.encode_entry(0, [c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", 9, 512)]))
        machine.apply(2, 1, put(1, 29))
        assert not state.save_wanted
        machine.apply(3, 1, put(30, 1))
        assert state.save_wanted
        state.begin_save(point(3))
        assert not state.save_wanted
        machine.apply(4, 1, put(31, 65))
        assert not state.overloaded, "what is being saved and what is new count together"
        machine.apply(5, 1, put(96, 10))
        assert state.overloaded
        gate.set()
        assert state.wait_saved(20)
        assert not state.overloaded
        state.begin_save(point(5))
        assert state.wait_saved(20)
        assert state.fresh_bytes == 0
    state.close()


def test_idle_sessions_are_not_written_again(tmp_path: Path) -> None:
    member = Member(tmp_path / "s", RandomLog(1))
    machine = member.machine
    machine.apply(1, 1, c.encode_entry(0, [c.OpenSession(f"n{n}", 60_000, 16) for n in range(5_000)]))
    machine.apply(2, 1, c.encode_entry(0, [c.DeclareTable("t", "resident", 1 << 20)]))
    member.at = 2
    member.save()
    before = member.state.stats.cells
    operate = c.Operate(7, 1, 1, [c.Op(1, int(c.OpKind.PUT), "t", "k", 5, b"1")])
    machine.apply(3, 1, c.encode_entry(0, [operate, c.CloseSession(9, 1)]))
    member.at = 3
    member.save()
    assert member.state.stats.cells - before == 4, "the point, a row, a session changed, a session closed"
    expected = state_digest(machine)
    member.close()
    again = MachineState(tmp_path / "s")
    assert state_digest(again.machine) == expected
    again.close()


def test_growing_segment_is_saved_in_pieces_and_only_what_is_new(tmp_path: Path) -> None:
    def write(first: int, count: int) -> bytes:
        ops = [c.Op(n, int(c.OpKind.PUT), "s", f"k{n}", n, b"1") for n in range(first, first + count)]
        return c.encode_entry(0, [c.Operate(1, 1, first, ops)])

    state = MachineState(tmp_path / "s")
    flow = b'{"name":"f","source":"s","max_items":100000,"max_bytes":100000000,"linger_ms":3600000}'
    state.machine.apply(
        1, 1, c.encode_entry(0, [c.DeclareTable("s", "stream", 1 << 30), c.OpenSession("n", 60_000, 4096)])
    )
    state.machine.apply(2, 1, c.encode_entry(0, [c.DeclareFlow(flow)]))
    written = []
    for turn in range(4):
        first = 1 + turn * 2 * PIECE_ITEMS
        state.machine.apply(3 + turn, 1, write(first, 2 * PIECE_ITEMS))
        before = state.stats.cells
        state.begin_save(point(3 + turn))
        assert state.wait_saved(20)
        written.append(state.stats.cells - before)
    assert max(written[1:]) <= written[0], "a later save wrote what an earlier one had"
    expected = state_digest(state.machine)
    state.close()
    again = MachineState(tmp_path / "s")
    assert state_digest(again.machine) == expected
    again.machine.apply(9, 1, c.encode_entry(0, [c.Seal("f", 1), c.Seal("s", 1)]))
    again.begin_save(point(9))
    assert again.wait_saved(20)
    expected = state_digest(again.machine)
    again.close()
    last = MachineState(tmp_path / "s")
    assert state_digest(last.machine) == expected
    last.close()


def test_trace_contexts_of_open_items_survive_saves_and_snapshots_and_stay_shared(tmp_path: Path) -> None:
    state = MachineState(tmp_path / "s")
    state.machine.apply(
        1, 1, c.encode_entry(0, [c.DeclareTable("s", "stream", 1 << 30), c.OpenSession("n", 60_000, 8192)])
    )
    flow = b'{"name":"f","source":"s","max_items":100000,"max_bytes":100000000,"linger_ms":3600000}'
    state.machine.apply(2, 1, c.encode_entry(0, [c.DeclareFlow(flow)]))
    wanted: list[str | None] = []

    def write(count: int, trace: str) -> None:
        first = len(wanted) + 1
        ops = [c.Op(n, int(c.OpKind.PUT), "s", f"k{n}", n, b"1") for n in range(first, first + count)]
        state.machine.apply(3, 1, c.encode_entry(0, [c.Operate(1, 1, first, ops, traceparent=trace)]))
        wanted.extend([trace or None] * count)

    def save(index: int) -> None:
        state.begin_save(point(index))
        assert state.wait_saved(20)

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
    save(3)
    write(PIECE_ITEMS, "00-a")
    save(4)
    write(PIECE_ITEMS, "")
    first, prints = len(wanted) + 1, b"12345678" * 3
    body = range_body.encode(["a", "b", "c"], [b"1"] * 3)
    state.machine.apply(5, 1, c.encode_entry(0, [c.Range(1, 1, first, "s", first, prints, body, "", "00-r")]))
    wanted += ["00-r"] * 3
    write(5, "")
    write(5, "00-b")
    save(5)
    write(2, "")
    save(6)
    assert found(state.machine) == wanted
    expected = state_digest(state.machine)
    other = MachineState(tmp_path / "other")
    ship(state, other).install()
    state.close()
    again = MachineState(tmp_path / "s")
    for restored in (other, again):
        assert found(restored.machine) == wanted
        assert state_digest(restored.machine) == expected
        assert len({id(trace) for trace in found(restored.machine) if trace == "00-a"}) == 1
        restored.close()


def test_cursor_that_moves_while_nothing_is_written_is_saved(tmp_path: Path) -> None:
    state = MachineState(tmp_path / "s")
    attach, move = c.Attach("s", "x", "one"), c.MoveCursor("s", "x", 1, 1, False)
    write = c.Operate(1, 1, 1, [c.Op(1, int(c.OpKind.PUT), "s", "k", 5, b"1")])
    opened = [c.DeclareTable("s", "stream", 1 << 20), c.OpenSession("n", 60_000, 16), write, c.Seal("s", 1)]
    for index, commands in enumerate((opened, [attach], [move], [c.Attach("s", "x", "two")]), 1):
        state.machine.apply(index, 1, c.encode_entry(0, commands))
        state.begin_save(point(index))
        assert state.wait_saved(20)
    expected = state_digest(state.machine)
    assert state.machine.flows.get("s").consumers.get("x").fence == 2
    state.close()
    again = MachineState(tmp_path / "s")
    assert state_digest(again.machine) == expected
    again.close()


@pytest.fixture
def barrier() -> Iterator[Any]:
    class Slow:
        def __init__(self) -> None:
            self.done = False

        def mark(self) -> int:
            return 7

        def wait_done(self, mark: int, timeout_s: float) -> bool:
            assert mark == 7
            return self.done

    return Slow()


def test_save_does_not_count_before_the_batches_sealed_before_it(tmp_path: Path, barrier: Any) -> None:
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
    assert state_digest(again.machine) == digest_at(member.log, 20)
    again.close()
