"""What a copy of a node (`gateway.backup.taking`) says of itself is what was copied, and each byte of it was read."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.consensus.ports import SavedPoint
from oncegate.flows.errors import FlowError
from oncegate.gateway.backup import taking
from oncegate.gateway.backup.manifest import BackupFile, Batches, Manifest
from oncegate.gateway.backup.taking import _PIECE_BYTES, Copies, Copy
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.rifl.errors import Code, OncegateError

MADE = Manifest(1, "c", "i" * 32, "n1", "1", SavedPoint(7, 2, b""), 9, 6, 0, 0, 0, {}, {}, [])


@pytest.mark.parametrize("damaged", [None, 2])
def test_batches_of_a_copy_are_linked_whole_and_described_as_they_are(damaged: int | None, tmp_path: Path) -> None:
    kept, read = tmp_path / "kept", list[int]()
    kept.mkdir()
    sizes = {1: 0, 2: 7, 3: _PIECE_BYTES + 5}
    for number, size in sizes.items():
        (kept / f"{number:020}.segment").write_bytes(random.Random(number).randbytes(size))

    def get(flow: str, number: int) -> None:
        read.append(number)
        if number == damaged:
            raise FlowError("damaged")

    store = SimpleNamespace(path=lambda flow, number: kept / f"{number:020}.segment", get=get)
    node: Any = SimpleNamespace(store=store)
    batches: Any = SimpleNamespace(flow="f", first=1, last=3)
    copy = Copy("id", tmp_path / "copy", MADE)
    if damaged:
        with pytest.raises(OncegateError, match="batch 2 of f") as refused:
            Copies(node, "1")._linked(copy.directory, batches)
        assert refused.value.code is Code.NOT_READY
        return
    files = Copies(node, "1")._linked(copy.directory, batches)
    assert read == [1, 2, 3]
    for file, size in zip(files, sizes.values(), strict=True):
        assert (file.size_bytes, copy.path(file).stat().st_size) == (size, size)
        assert file.sha256 == hashlib.sha256(copy.path(file).read_bytes()).hexdigest()
        assert file.path.startswith("segments/f/")
    state = BackupFile("state/000007.sst", 0, "")
    assert copy.path(state) == copy.directory / "000007.sst"


@pytest.mark.parametrize("fault", [None, StateCorrupt(Path("x"), "a block"), OSError(5, "I/O")])
@pytest.mark.parametrize("fails_at", ["verify", "contents"])
def test_state_of_a_copy_is_read_before_it_is_described_and_damage_is_the_nodes_own(
    fails_at: str, fault: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    tables = [SimpleNamespace(name="rows", rows=3), SimpleNamespace(name="none", rows=0)]
    meta = SimpleNamespace(identity="i" * 32, commit=9, time_ms=5, sessions=2, tables=tables)
    (tmp_path / "1.sst").write_bytes(b"abc")

    def noted(name: str, result: Any) -> Any:
        def step(*_: Any) -> Any:
            steps.append(name)
            if name == fails_at and fault is not None:
                raise fault
            return result

        return step

    store = SimpleNamespace(close=noted("close", None))
    monkeypatch.setattr(taking, "RocksStore", lambda *_, **__: store)
    monkeypatch.setattr(taking, "new_cache", lambda _: None)
    monkeypatch.setattr(taking, "verify", noted("verify", None))
    retained, segment = SimpleNamespace(flow="f", first=3, last=5), BackupFile("segments/f/3.segment", 1, "")
    monkeypatch.setattr(taking, "contents", noted("contents", (meta, [retained])))
    monkeypatch.setattr(Copies, "_linked", lambda _, at, one: [segment] * (at == tmp_path and one is retained))
    monkeypatch.setattr(taking, "remembered_keys", noted("keys", 4))
    monkeypatch.setattr(time, "time_ns", lambda: 77_999_999)
    node: Any = SimpleNamespace(
        settings=SimpleNamespace(cluster="c", node="n1"),
        state=SimpleNamespace(found_in_copy=lambda *found: steps.append(found)),
    )
    files = SimpleNamespace(files=[SimpleNamespace(name="1.sst")], point=MADE.point)
    snapshot: Any = SimpleNamespace(directory=tmp_path, manifest=files)
    copies = Copies(node, "1.2")
    if fault is not None:
        with pytest.raises(OncegateError) as refused:
            copies._described(snapshot, tmp_path / "store")
        assert refused.value.code is Code.NOT_READY
        found = (fault, tmp_path, tmp_path / "store")
        read = ["verify"] if fails_at == "verify" else ["verify", "contents"]
        assert steps == [*read, "close", *[found] * isinstance(fault, StateCorrupt)]
        return
    made = copies._described(snapshot, tmp_path / "store")
    assert steps == ["verify", "contents", "keys", "close"]
    assert (made.cluster, made.identity, made.node, made.built_by) == ("c", "i" * 32, "n1", "1.2")
    assert (made.commit, made.time_ms, made.sessions, made.keys) == (9, 5, 2, 4)
    assert made.made_ms == 77, "by the clock of the wall"
    assert (made.rows, made.flows, made.point) == ({"rows": 3, "none": 0}, {"f": Batches(3, 5)}, MADE.point)
    assert [(file.path, file.size_bytes) for file in made.files] == [("state/1.sst", 3), (segment.path, 1)]
