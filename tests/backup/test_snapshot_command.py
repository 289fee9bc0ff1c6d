"""What ``oncegate snapshot`` says of a restore, and how a restore ends that fails: with fakes in the place of both."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
import typer

from oncegate.consensus.errors import Corrupt
from oncegate.consensus.ports import SavedPoint, SnapshotFile
from oncegate.flows.directories import flush_directory
from oncegate.gateway.backup import restoring, survivor
from oncegate.gateway.backup.fence import Fenced
from oncegate.gateway.backup.manifest import BackupFile, Batches, Manifest
from oncegate.gateway.backup.restoring import Missing, Restored, install, restore
from oncegate.gateway.backup.shelf import Shelf, name_of
from oncegate.gateway.backup.survivor import Known
from oncegate.gateway.cli import snapshot
from oncegate.gateway.cli.output import Output
from oncegate.gateway.machine.state import MachineState
from oncegate.rifl.errors import Code, OncegateError
from oncegate.stores.errors import StoreCode, StoreError
from tests.backup.test_killed_restore import NEW, Log

MEMBER = "n7=127.0.0.1:7400:7500"


def manifest(dice: random.Random) -> Manifest:
    """Return a manifest no two numbers of which are equal."""
    numbers = iter(dice.sample(range(2, 10_000), 20))
    rows, flows = {"t": next(numbers), "u": next(numbers)}, {"f": Batches(next(numbers), next(numbers))}
    point = SavedPoint(next(numbers), next(numbers), b"")
    counts = [next(numbers) for _ in range(3)]
    made_ms = 1_700_000_000_000 + next(numbers) * 1_000
    files = [BackupFile(f"state/{at}", next(numbers), f"{at:064x}") for at in range(3)]
    return Manifest(
        1, "old", "i" * 32, "n2", "0.9", point, counts[0], 5, made_ms, counts[1], counts[2], rows, flows, files
    )


def shelved(path: Path, *manifests: Manifest) -> None:
    shelf = Shelf(str(path))
    for one in manifests:
        for file in one.files:
            place = path / "files" / file.sha256
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bytes(file.size_bytes))
        shelf.finish(name_of(one), one)


def test_what_is_said_of_a_backup_is_what_its_manifest_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = manifest(random.Random(1))
    shelved(tmp_path, one)
    snapshot.inspect(str(tmp_path), output=Output.JSON)
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "backups": [name_of(one)],
        "name": name_of(one),
        "cluster": "old",
        "identity": one.identity,
        "node": "n2",
        "made": found["made"],
        "built_by": "0.9",
        "entry": one.point.index,
        "term": one.point.term,
        "commit": one.commit,
        "sessions": one.sessions,
        "keys": one.keys,
        "rows": one.rows,
        "flows": {"f": f"{one.flows['f'].first}..{one.flows['f'].last}"},
        "files": 3,
        "size_bytes": sum(file.size_bytes for file in one.files),
        "verified": False,
    }


@pytest.mark.parametrize("missing", [0, 1, 7])
@pytest.mark.parametrize("forced", [False, True])
def test_whoever_restores_is_told_what_goes_on_what_is_over_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: int, *, forced: bool
) -> None:
    made = Restored("f" * 32, 4_321, Fenced(17, 23), [Missing("f", number) for number in range(1, missing + 1)])
    known = Known("n2", ["n1", "n2", "n3"], 40, 55, 6, 29)
    asked: list[tuple[str, str]] = []

    class Survivor:
        def __init__(self, path: Path) -> None:
            self.known, self.cluster = known, f"survivor {path}"

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            asked.append(("closed", self.cluster))

    def restored(origin: Any, data_dir: Path, new: Any) -> Restored:
        asked.append((origin.cluster, new.name))
        data_dir.mkdir()
        return made

    monkeypatch.setattr(restoring, "restore", restored)
    monkeypatch.setattr(survivor, "SurvivorOrigin", Survivor)
    shelved(tmp_path / "shelf", manifest(random.Random(2)))
    source, data_dir = str(tmp_path / "shelf"), tmp_path / "new"
    snapshot.restore_backup(source, data_dir, "second", MEMBER, force_new_cluster=forced, yes=True)
    out, err = capsys.readouterr()
    assert asked[0] == (f"survivor {source}" if forced else "old", "second")
    assert (len(asked) == 2) == forced, "the survivor's directory is given back"
    assert f"cluster {made.identity} begins at commit 4321" in out
    assert "17 sessions of the old cluster are over, 23 idempotency keys are kept" in err
    assert (f"{missing} batches are missing" in err) == bool(missing)
    assert ("f/5" in err) == (missing >= 5)
    assert "f/6" not in err
    assert f"--node n7 --data-dir {data_dir} --member {MEMBER}" in err
    told = ("15 entries, 29 operations", "whatever n1, n3 acknowledged behind entry 55", "up to 40 to be committed")
    assert all((words in err) == forced for words in told)
    written = "".join(one.read_text() for one in data_dir.rglob("*") if one.is_file())
    assert ("snapshot.force-new-cluster" in written, "snapshot.restore" in written) == (forced, not forced)


REFUSALS: list[tuple[Exception, int]] = [
    (StoreError(StoreCode.BAD_OPTION, "why"), 2),
    (StoreError(StoreCode.BAD_TABLE, "why"), 2),
    (StoreError(StoreCode.STORE_UNAVAILABLE, "why"), 3),
    (StoreError(StoreCode.BAD_BACKUP, "why"), 1),
    (StoreError(StoreCode.STORE_MISMATCH, "why"), 1),
    (OncegateError(Code.QUOTA, "why"), 1),
    (Corrupt("log", 1, "why"), 1),
    (OSError(28, "why"), 1),
]


@pytest.mark.parametrize(("refusal", "code"), REFUSALS)
def test_a_restore_that_is_refused_says_why_in_a_line_and_begins_no_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refusal: Exception, code: int
) -> None:
    def refuse(*_: Any) -> None:
        raise refusal

    monkeypatch.setattr(restoring, "restore", refuse)
    shelved(tmp_path / "shelf", manifest(random.Random(3)))
    with pytest.raises(typer.Exit) as ended:
        snapshot.restore_backup(str(tmp_path / "shelf"), tmp_path / "new", "second", MEMBER)
    assert ended.value.exit_code == code
    assert "why" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "new").exists()


class Sink:
    """Where the files of a state are written, and what became of it."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def open_sink(self, manifest: Any) -> Sink:
        self.done = ["opened"]
        return self

    def __getattr__(self, step: str) -> Callable[..., None]:
        return lambda *_: self.done.append(step)


@pytest.mark.parametrize("fault", [StoreError(StoreCode.BAD_BACKUP, "gone"), OSError(5, "disk"), KeyboardInterrupt()])
def test_a_state_whose_file_cannot_be_read_is_given_up_and_never_installed(fault: BaseException) -> None:
    sink: Any = Sink()
    files = [SnapshotFile("a", 3), SnapshotFile("b", 3)]
    install(sink, SavedPoint(1, 1, b""), files, lambda _: b"abc")
    assert sink.done == ["opened", "write", "write", "finish", "install"]

    def read(at: int) -> bytes:
        if at:
            raise fault
        return b"abc"

    with pytest.raises(type(fault)):
        install(sink, SavedPoint(1, 1, b""), files, read)
    assert sink.done == ["opened", "write", "abort"]


@pytest.mark.parametrize("fault", [OSError(28, "full"), KeyboardInterrupt()], ids=["refused", "stopped"])
@pytest.mark.parametrize("step", ["fence", "begin_behind", "secrets.token_hex"])
def test_a_restore_that_fails_leaves_nothing_beside_and_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, fault: BaseException
) -> None:
    directory = tmp_path / "new"
    directory.mkdir()

    def fail(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr(f"oncegate.gateway.backup.restoring.{step}", fail)
    with pytest.raises(type(fault)):
        restore(Log(), directory, NEW)
    assert {one.name for one in tmp_path.iterdir()} == {"new"}
    assert list(directory.iterdir()) == []


def test_a_state_that_broke_while_it_was_saved_is_no_new_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = MachineState.wait_saved

    def broken(state: MachineState, timeout_s: float) -> bool:
        done = waited(state, timeout_s)
        monkeypatch.setattr(MachineState, "broken", "a block differs", raising=False)
        return done

    monkeypatch.setattr(MachineState, "wait_saved", broken)
    with pytest.raises(OSError, match="a block differs"):
        restore(Log(), tmp_path / "new", NEW)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_gets_its_name_last_and_the_name_is_durable_in_the_directory_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Path]] = []
    renamed, flushed = Path.rename, flush_directory

    def rename(path: Path, target: Path) -> Path:
        if path.parent == tmp_path:
            done.append(("named", target))
        return renamed(path, target)

    def flush(path: Path) -> None:
        done.append(("durable", path))
        flushed(path)

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr("oncegate.gateway.backup.restoring.flush_directory", flush)
    restore(Log(), tmp_path / "new", NEW)
    assert done == [("named", tmp_path / "new"), ("durable", tmp_path)]


def test_a_link_is_no_new_directory_wherever_it_leads(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="link") as refused:
        restore(Log(), tmp_path / "new", NEW)
    assert refused.value.code is StoreCode.BAD_OPTION
    assert {one.name for one in tmp_path.iterdir()} == {"elsewhere", "new"}
