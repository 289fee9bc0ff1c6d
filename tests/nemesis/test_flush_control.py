"""What a process has not flushed is lost with the power, and nothing else: its writes, its sizes, its names."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncegate.proof.check import flush_control
from oncegate.proof.check.errors import Unavailable
from oncegate.proof.check.flush_control import FlushControl, shim_library
from tests.nemesis import flush_scenes

SECTOR = 512
Run = Callable[..., None]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return shim_library(tmp_path_factory.mktemp("shim"))
    except Unavailable as reason:
        pytest.skip(f"{reason}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def control(library: Path, root: Path) -> Iterator[FlushControl]:
    """The control of a process whose directory is there, with 4 sectors of zeros in ``file``; all of it flushed."""
    root.mkdir()
    (root / "file").write_bytes(b"0" * 4 * SECTOR)
    control = FlushControl(library.parent / f"{root.parent.name}.flushes", root)
    yield control
    control.close()


@pytest.fixture
def run(control: FlushControl, root: Path) -> Run:
    """Run statements in a process that dies without closing anything."""

    def ran(statements: str) -> None:
        script = f"import os\nos.chdir({str(root)!r})\n{statements}\nos.kill(os.getpid(), 9)"
        done = subprocess.run([*control.prefix(), sys.executable, "-SEc", script], capture_output=True, check=False)
        assert done.returncode == -9, done.stderr.decode()

    return ran


def lose(control: FlushControl, kept: float = 0.0, seed: int = 1) -> int:
    return control.lose(random.Random(seed), kept=kept)


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"(directory)"
        for path in sorted(root.rglob("*"))
    }


OPEN = "fd = os.open('file', os.O_RDWR)\n"


def test_what_was_flushed_stays(control: FlushControl, root: Path, run: Run) -> None:
    run(OPEN + "os.pwrite(fd, b'1' * 512, 0); os.fdatasync(fd)")
    assert control.unflushed_bytes() == 0
    assert lose(control) == 0
    assert content(root) == {"file": b"1" * SECTOR + b"0" * 3 * SECTOR}


@pytest.mark.parametrize(
    "write",
    [
        "os.write(fd, b'1' * 700)",
        "os.writev(fd, [b'1' * 600, b'2' * 100])",
        "os.pwrite(fd, b'1' * 700, 0)",
        "os.pwritev(fd, [b'1' * 600, b'2' * 100], 0)",
        "os.pwrite(os.open('file', os.O_WRONLY), b'1' * 700, 0)",
        "os.write(os.open('file', os.O_WRONLY | os.O_APPEND), b'1' * 700)",
        "open('file', 'wb').write(b'1' * 700)",
        "os.ftruncate(fd, 100); os.pwrite(fd, b'3' * 9, 300)",
        "os.truncate('file', 5)",
        "os.posix_fallocate(fd, 0, 10_000)",
        "os.unlink('file'); os.close(os.open('file', os.O_CREAT | os.O_WRONLY))",
        "os.rename('file', 'other')",
        "os.write(os.open('new', os.O_CREAT | os.O_WRONLY), b'new'); os.rename('new', 'file')",
        "os.link('file', 'twin')",
        "os.remove('file')",
        "os.mkdir('deep'); os.write(os.open('deep/new', os.O_CREAT | os.O_WRONLY), b'new')",
        "import shutil; os.mkdir('deep'); os.rename('file', 'deep/file'); shutil.rmtree('deep')",
    ],
)
def test_what_was_not_flushed_never_happened(control: FlushControl, root: Path, run: Run, write: str) -> None:
    run(OPEN + write)
    assert lose(control) >= 0
    assert content(root) == {"file": b"0" * 4 * SECTOR}


def test_a_file_that_was_flushed_under_a_name_that_was_not_is_gone(control: FlushControl, root: Path, run: Run) -> None:
    make = "fd = os.open('aside', os.O_CREAT | os.O_WRONLY); os.write(fd, b'new'); os.fsync(fd)\n"
    run(make + "os.rename('aside', 'file')")
    lose(control)
    assert content(root) == {"file": b"0" * 4 * SECTOR}
    run(make + "os.rename('aside', 'file'); os.fsync(os.open('.', os.O_RDONLY))")
    lose(control)
    assert content(root) == {"file": b"new"}


def test_flush_of_one_file_or_directory_does_not_save_another(control: FlushControl, root: Path, run: Run) -> None:
    run(
        "os.mkdir('a'); os.mkdir('b'); os.fsync(os.open('.', os.O_RDONLY))\n"
        "for name in ('a/x', 'b/x'): os.close(os.open(name, os.O_CREAT | os.O_WRONLY))\n"
        "os.fsync(os.open('a', os.O_RDONLY))\n"
        "x, y = os.open('a/x', os.O_WRONLY), os.open('file', os.O_WRONLY)\n"
        "os.write(x, b'1'); os.write(y, b'1'); os.fsync(x)"
    )
    lose(control)
    assert content(root) == {"a": b"(directory)", "a/x": b"1", "b": b"(directory)", "file": b"0" * 4 * SECTOR}


def test_the_directory_itself_is_lost_unless_its_parent_was_flushed(library: Path, root: Path) -> None:
    control = FlushControl(library.parent / f"{root.parent.name}.flushes", root)
    make = f"import os; os.mkdir({str(root)!r}); "
    for flush, there in ((f"os.fsync(os.open({str(root.parent)!r}, os.O_RDONLY))", True), ("", False)):
        subprocess.run([*control.prefix(), sys.executable, "-SEc", make + flush], check=True)
        lose(control)
        assert root.exists() == there
        if there:
            root.rmdir()
    control.close()


def test_what_a_killed_process_left_in_the_page_cache_is_lost_in_the_life_of_the_next(
    control: FlushControl, root: Path, run: Run
) -> None:
    run(OPEN + "os.pwrite(fd, b'1' * 512, 0); os.rename('file', 'other')")
    run("assert os.path.exists('other')")
    lose(control)
    assert content(root) == {"file": b"0" * 4 * SECTOR}


def test_flush_saves_also_what_a_process_before_wrote_that_was_killed_in_its_flush(
    control: FlushControl, root: Path, run: Run
) -> None:
    control.slow(10.0)
    run(
        "import threading\n" + OPEN + "os.pwrite(fd, b'1' * 512, 0); os.pwrite(fd, b'2' * 512, 1024)\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), 9)).start(); os.fsync(fd)"
    )
    control.slow(0.0)
    run(OPEN + "os.pwrite(fd, b'3' * 512, 512); os.fdatasync(fd); os.pwrite(fd, b'4' * 512, 0)")
    lose(control)
    assert content(root) == {"file": b"1" * SECTOR + b"3" * SECTOR + b"2" * SECTOR + b"0" * SECTOR}


def test_sectors_are_kept_or_lost_whole(control: FlushControl, root: Path, run: Run) -> None:
    run(OPEN + "os.pwrite(fd, b'1' * 2048, 0); os.pwrite(fd, b'2' * 512, 512)")
    outcomes = set()
    written = (root / "file").read_bytes()
    notes = control.control.with_name(control.control.name + ".unflushed")
    saved = {path.name: path.read_bytes() for path in notes.iterdir()}
    for seed in range(30):
        lost = lose(control, 0.5, seed)
        data = (root / "file").read_bytes()
        sectors = [data[at : at + SECTOR] for at in range(0, 4 * SECTOR, SECTOR)]
        assert all(sector == sector[:1] * SECTOR for sector in sectors), "half a sector was lost"
        assert bool(lost) == (data != written) or lost
        outcomes.add(bytes(sector[0] for sector in sectors))
        (root / "file").write_bytes(written)
        for name, noted in saved.items():
            (notes / name).write_bytes(noted)
    assert {chr(one[1]) for one in outcomes} == {"0", "1", "2"}
    assert len(outcomes) > 10


def test_of_names_the_later_ones_are_lost_first(control: FlushControl, root: Path, run: Run) -> None:
    seen = set()
    for seed in range(12):
        run("for name in 'abc': os.close(os.open(name, os.O_CREAT | os.O_WRONLY))")
        lose(control, 0.5, seed)
        seen.add("".join(sorted(set(content(root)) - {"file"})))
        for name in set(content(root)) - {"file"}:
            (root / name).unlink()
    assert seen <= {"", "a", "ab", "abc"}
    assert len(seen) >= 3


def test_flush_takes_as_long_as_it_was_told(control: FlushControl, run: Run) -> None:
    control.slow(0.3)
    began = time.monotonic()
    run(OPEN + "os.fsync(fd)")
    assert time.monotonic() - began >= 0.3
    assert control.delay_s == 0.3


def test_a_machine_without_a_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_control.shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="no C compiler"):
        shim_library(tmp_path)


@pytest.mark.parametrize("name", flush_scenes.SCENES)
def test_what_was_acknowledged_on_a_disk_survives_power_losses(library: Path, root: Path, name: str) -> None:
    if name == "outbox":
        root.mkdir()
    control = FlushControl(library.parent / f"{root.parent.name}.flushes", root)
    for number, kept in enumerate((0.0, 0.5)):
        command = [*control.prefix(), sys.executable, "-m", "tests.nemesis.flush_scenes", name, str(number), str(root)]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == -9, done.stderr.decode()
        lose(control, kept, number)
        flush_scenes.check(name, root, number + 1)
    control.close()
