"""Idempotency keys in memory and on disk against dictionaries: nobody can tell where a record lies."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import MachineState, state_digest
from oncegate.gateway.machine.state import keys as keys_module
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.machine.state.keys import FrozenKeys, StoredKeys
from oncegate.gateway.machine.state.layout import KEYS, KEYS_HEAD, NAMES
from oncegate.gateway.machine.state.rows import DirtyTally
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.key_records import KeyRecord, MemoryKeys, name_of
from oncegate.rifl.key_table import NO_TIME, KeyTable
from oncegate.rifl.rule import EXECUTE, Applied, Replayed
from tests.gateway.state_harness import point
from tests.rifl.apply_rule import assert_caught

PLACE = Path("cells")


class Cells:
    """A store of cells in a dictionary; what :class:`StoredKeys` calls of one."""

    path = PLACE

    def __init__(self) -> None:
        self.cells: dict[bytes, bytes] = {}

    def value(self, key: bytes) -> bytes | None:
        return self.cells.get(key)

    def values(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.cells.get(key) for key in keys]

    def scan(self, prefix: bytes, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self.cells):
            if key.startswith(prefix) and prefix + start <= key and (end is None or key < prefix + end):
                yield key, self.cells[key]


def written(frozen: FrozenKeys) -> dict[bytes, bytes | None]:
    """Return what a save writes; its keys strictly ascend."""
    cells = [cell for part in (frozen.by_number(), frozen.by_name()) for cell in _flat(part)]
    keys = [key for key, _ in cells]
    assert keys == sorted(set(keys))
    return dict(cells)


def _flat(columns: Any) -> Iterator[tuple[bytes, bytes | None]]:
    for keys, values in columns:
        yield from zip(keys, values, strict=True)


class OnDisk(RuleBasedStateMachine):
    """A table over a store beside one in memory: a save, a crash, an end of keys may come at any point.

    What a save froze comes back after a crash, on both sides; the one in memory is copied at each freeze.
    """

    records_type: ClassVar[type[StoredKeys]] = StoredKeys

    def __init__(self) -> None:
        super().__init__()
        self._cleaned = keys_module.CLEANED, keys_module.PIECE_KEYS
        self.store, self.tally = Cells(), DirtyTally()
        self.keys = KeyTable(self.records_type(self.store, self.tally))  # type: ignore[arg-type]
        self.model = KeyTable()
        self.saved = self._copy()
        self.writing: tuple[FrozenKeys, KeyTable, int, int] | None = None
        self.now = self.commit = 0
        self.saved_at = (0, 0)

    def teardown(self) -> None:
        keys_module.CLEANED, keys_module.PIECE_KEYS = self._cleaned

    @initialize(cleaned=st.integers(1, 4), piece=st.integers(1, 3))
    def begin(self, cleaned: int, piece: int) -> None:
        keys_module.CLEANED, keys_module.PIECE_KEYS = cleaned, piece

    def _copy(self) -> KeyTable:
        copied = KeyTable(copy.deepcopy(self.model.records))
        for name in set(KeyTable.__slots__) - {"records"}:
            setattr(copied, name, copy.deepcopy(getattr(self.model, name)))
        return copied

    @rule(
        names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4),
        tenant=st.sampled_from(["", "bob"]),
        kind=st.sampled_from("ke"),
        lifetime_ms=st.sampled_from([0, 5, 5, 60]),
        fingerprint=st.sampled_from([1, 1, 1, 2]),
        ahead=st.booleans(),
    )
    def use(self, names: list[str], tenant: str, kind: str, lifetime_ms: int, fingerprint: int, ahead: bool) -> None:
        if ahead:
            self.keys.look_ahead([name_of(tenant, kind + name) for name in names])
        for name in names:
            key = kind + name
            for table in (self.keys, self.model):
                if table.due(self.now):
                    table.forget(self.now)
            verdict = self.keys.decide(tenant, key, fingerprint, NO_TIME, self.now)
            assert verdict == self.model.decide(tenant, key, fingerprint, NO_TIME, self.now)
            if verdict is EXECUTE:
                self.commit += 1
                for table in (self.keys, self.model):
                    slot = table.slot(tenant, key, self.now, lifetime_ms)
                    slot.record(table.next, fingerprint, self.commit)

    @rule(ms=st.sampled_from([1, 2, 6, 70]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def forget(self) -> None:
        assert self.keys.forget(self.now) == self.model.forget(self.now)

    @rule(slept_ms=st.integers(0, 20), skipped=st.integers(1, 2**32))
    @precondition(lambda self: self.model.next < 2**40)
    def fence(self, slept_ms: int, skipped: int) -> None:
        self.now += slept_ms
        for table in (self.keys, self.model):
            table.fence(self.now, slept_ms, skipped)

    @precondition(lambda self: self.writing is None)
    @rule()
    def freeze(self) -> None:
        records = self.keys.records
        assert isinstance(records, StoredKeys)
        frozen, _ = records.freeze(self.keys)
        self.writing = frozen, self._copy(), self.now, self.commit

    @precondition(lambda self: self.writing is not None)
    @rule(again=st.booleans())
    def write(self, again: bool) -> None:
        assert self.writing is not None
        frozen, self.saved, *self.saved_at = self.writing  # type: ignore[assignment]
        cells = written(frozen)
        if again:  # the disk was full
            assert written(frozen) == cells
        for key, value in cells.items():
            if value is None:
                self.store.cells.pop(key, None)
            else:
                self.store.cells[key] = value
        self.writing = None
        self._holds_what_it_has_to(sum(value is None and key.startswith(KEYS.prefix) for key, value in cells.items()))

    def _holds_what_it_has_to(self, removed: int) -> None:
        """What is forgotten leaves by and by, nothing else does, and each name leads to a record."""
        numbers = [record.number for _, record in KEYS.scan(self.store)]  # type: ignore[arg-type]
        forgotten = [number for number in numbers if number < self.saved.first]
        assert numbers[len(forgotten) :] == [record.number for record in self.saved]
        assert not forgotten or removed >= keys_module.CLEANED
        kept = KEYS_HEAD.need(self.store).kept  # type: ignore[arg-type]
        assert kept <= min(numbers, default=kept)
        assert kept == numbers[0] if forgotten else kept <= self.saved.first
        led_to = sorted(number for _, number in NAMES.scan(self.store))  # type: ignore[arg-type]
        assert set(led_to) <= set(numbers)
        assert len(led_to) == len(set(led_to))

    @rule()
    def crash(self) -> None:
        self.writing = None
        self.now, self.commit = self.saved_at
        self.model = self.saved
        self.saved = self._copy()
        records = self.records_type(self.store, DirtyTally())  # type: ignore[arg-type]
        self.keys = restored(self.store, records, self.model)

    @invariant()
    def both_are_the_same(self) -> None:
        assert self.keys.dump() == self.model.dump()
        assert self.keys.kinds == self.model.kinds
        for number in range(max(1, self.model.next - 9), self.model.next + 1):
            assert self.keys.look_up(number, "bob") == self.model.look_up(number, "bob")
        for record in self.model:
            assert self.keys.has(record.tenant, record.key)


def restored(store: Cells, records: StoredKeys, model: KeyTable) -> KeyTable:
    """Return the table that a store holds, as a start reads it; ``model`` has what the state's first cell would say."""
    keys = KeyTable(records)
    if (head := KEYS_HEAD.get(store)) is None:  # type: ignore[arg-type]
        return keys  # nothing was ever saved
    records.resume(head.kept, model.next)
    keys.restore(model.next, model.forgotten_ms, head.buckets)
    return keys


TestOnDisk = OnDisk.TestCase
TestOnDisk.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class ReadsStaleNames(StoredKeys):
    """Planted bug: a name on disk counts although its key is forgotten."""

    __slots__ = ()

    def find(self, name: str, first: int) -> KeyRecord | None:
        return super().find(name, 0)


class ForgetsWhatIsBeingSaved(StoredKeys):
    """Planted bug: what is being written is not looked at until it is on disk."""

    __slots__ = ()

    def freeze(self, keys: KeyTable) -> Any:
        frozen = super().freeze(keys)
        self._frozen_names, self._frozen_numbers = {}, {}
        return frozen


class KeepsWhatWasReadAhead(StoredKeys):
    """Planted bug: what was read ahead of an entry is believed for ever."""

    __slots__ = ()

    def freeze(self, keys: KeyTable) -> Any:
        ahead = self._ahead
        frozen = super().freeze(keys)
        self._ahead = ahead
        return frozen


@pytest.mark.parametrize("planted", [ReadsStaleNames, ForgetsWhatIsBeingSaved, KeepsWhatWasReadAhead])
def test_planted_bug_is_caught_by_the_model(planted: type[StoredKeys]) -> None:
    assert_caught(OnDisk, 3_000, records_type=planted)


# --- in a real store ---------------------------------------------------------------------------------------------


class Log:
    """Applies entries of keyed puts to a machine and a copy of it in memory."""

    def __init__(self, *machines: Machine) -> None:
        self.machines, self.index, self.now, self.commit = machines, 0, 0, 0
        self.do(c.DeclareTable("t", "resident", 1 << 30))

    def do(self, *commands: Any) -> list[Any]:
        self.index += 1
        entry = c.encode_entry(self.now, list(commands))
        told = [apply(machine, self.index, 1, entry) for machine in self.machines]
        return told[0]

    def put(self, *keys: str, lifetime_ms: int = 10_000, tenant: str = "") -> list[Any]:
        ops = [
            c.KeyedOp(f"k{key}", NO_TIME, c.Op(1, int(c.OpKind.PUT), "t", key, 7, b"1"))  # type: ignore[arg-type]
            for key in keys
        ]
        verdicts: list[Any] = self.do(c.Keyed(lifetime_ms, ops, tenant))[0].verdicts
        return verdicts


def saved(state: MachineState, log: Log) -> None:
    state.begin_save(point(log.index))
    assert state.wait_saved(60)


def test_keys_on_disk_answer_as_those_in_memory_after_a_restart_and_in_a_snapshot(tmp_path: Path) -> None:
    state, twin = MachineState(tmp_path / "s"), Machine()
    log = Log(state.machine, twin)
    first = log.put(*(f"a{at}" for at in range(300)), tenant="bob")
    saved(state, log)
    log.put(*(f"b{at}" for at in range(300)))
    saved(state, log)  # from here on the first are on disk alone
    replay = log.put("a7", tenant="bob")
    assert [type(one) for one in (first[7], *replay)] == [Applied, Replayed]
    assert replay[0].record.commit == first[7].record.commit
    assert state_digest(state.machine) == state_digest(twin)
    saved(state, log)
    state.close()
    again = MachineState(tmp_path / "s")
    assert not again.machine.keys.records._fresh, "no record is read at a start"  # type: ignore[attr-defined]
    assert state_digest(again.machine) == state_digest(twin)
    source, other = again.open_snapshot(), MachineState(tmp_path / "other")
    sink = other.open_sink(source.manifest)
    for at, file in enumerate(source.manifest.files):
        sink.write(at, 0, source.read(at, 0, file.size))
    sink.finish()
    sink.install()
    source.close()
    log.machines = (again.machine, twin, other.machine)
    for _ in range(3):
        log.now += 6_000
        log.put("late")
        log.do(c.ForgetKeys())
    assert len(twin.keys) == 1
    for machine in log.machines:
        assert state_digest(machine) == state_digest(twin)
        assert machine.keys.look_up(8, "bob") == twin.keys.look_up(8, "bob")
    again.close()
    other.close()


def test_what_is_forgotten_leaves_the_disk_a_little_with_each_save_and_nobody_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "CLEANED", 64)
    state, twin = MachineState(tmp_path / "s"), Machine()
    log = Log(state.machine, twin)
    log.put(*(f"a{at}" for at in range(300)), lifetime_ms=1_000)
    saved(state, log)
    log.now = 2_000
    anew = [f"a{at}" for at in range(5, 300, 59)]  # while their old names lie on disk, some longer than the new ones
    log.put(*anew)
    left = []
    for _ in range(7):
        saved(state, log)
        cells = [sum(1 for _ in state._store.scan(prefix)) for prefix in (KEYS.prefix, NAMES.prefix)]
        left.append(cells)
        assert state_digest(state.machine) == state_digest(twin)
        log.do(c.ForgetKeys())
    assert left[0][0] == 300 + len(anew) - 64
    assert left[-1] == [len(anew)] * 2
    assert [type(one) for one in log.put(*anew, "a7")] == [Replayed] * len(anew) + [Applied]
    state.close()


def test_time_that_keys_slept_behind_a_fence_is_saved_with_them(tmp_path: Path) -> None:
    state, twin = MachineState(tmp_path / "s0"), Machine()
    log = Log(state.machine, twin)
    for at in range(3):  # a cluster may be restored from one that was restored
        log.put(f"a{at}", lifetime_ms=10_000)
        log.now += 5_000
        for machine in log.machines:
            machine.keys.fence(log.now, 5_000, 7)
        log.put(f"b{at}", lifetime_ms=10_000)
        saved(state, log)
        state.close()
        state = MachineState(tmp_path / "s0")
        log.machines = (state.machine, twin)
        assert [*state.machine.keys] == [*twin.keys]
        assert state_digest(state.machine) == state_digest(twin)
    state.close()


def test_state_whose_keys_are_not_all_there_is_refused_by_name(tmp_path: Path) -> None:
    for missing, said in ((KEYS_HEAD.key(), "idempotency keys is missing"), (KEYS.key(3), "idempotency key 3")):
        path = tmp_path / missing.hex()
        state = MachineState(path)
        log = Log(state.machine)
        log.put("a", "b", "c")
        saved(state, log)
        file = path / "cut"
        writer = state._store.writer(file)
        writer.put(missing, None)
        writer.finish()
        state._store.ingest(file)
        state.close()
        with pytest.raises(StateCorrupt, match=said):
            MachineState(path)


def test_name_that_leads_to_no_record_stops_the_machine_rather_than_executing_again() -> None:
    store = Cells()
    records = StoredKeys(store, DirtyTally())  # type: ignore[arg-type]
    records.resume(1, 2)
    store.cells[NAMES.key("\0ka")] = (1).to_bytes(8, "big")
    with pytest.raises(InvariantViolation, match="no record"):
        KeyTable(records).decide("", "ka", 7, NO_TIME, 1)  # type: ignore[arg-type]
    store.cells[NAMES.key("\0ka")] = b"\1"
    with pytest.raises(StateCorrupt):
        KeyTable(records).decide("", "ka", 7, NO_TIME, 1)  # type: ignore[arg-type]


def test_keys_in_memory_make_a_save_due(tmp_path: Path) -> None:
    state = MachineState(tmp_path / "s", save_rows=60)
    log = Log(state.machine)
    log.put(*(f"a{at}" for at in range(40)))
    assert state.save_wanted, "a row and a key each count"
    state.close()


def test_memory_holds_no_key_of_before_the_last_save(tmp_path: Path) -> None:
    state = MachineState(tmp_path / "s")
    log = Log(state.machine)
    for at in range(4):
        log.put(*(f"{at}-{row}" for row in range(100)))
        saved(state, log)
    records = state.machine.keys.records
    assert isinstance(records, StoredKeys)
    assert (len(records._fresh), len(records._frozen_names), len(records._frozen_numbers)) == (0, 100, 100)
    assert len(state.machine.keys) == 400
    state.close()


def test_head_of_keys_is_what_a_decoder_of_its_layout_reads() -> None:
    keys = KeyTable(MemoryKeys())
    keys.slot("bob", "ka", 5, 2_400).record(1, 7, 1)  # type: ignore[arg-type]
    image = msgspec.msgpack.encode([1, keys.buckets])
    assert msgspec.msgpack.decode(image) == [1, [[1, 2, 105, 5, 2_405, {"kbob": [1, keys.bytes]}, 0]]]
    assert KEYS_HEAD.decode(PLACE, image).buckets == keys.buckets
