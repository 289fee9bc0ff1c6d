"""The folder of a check run: everything that a verdict rests on, so that it can be checked again without the cluster.

Owns: names, the link ``latest``, bounds, formats of the files, what is kept of which run. Must not know how a run is
made or how a history is checked. Layout of ``runs/<UTC time>-<workload>-<faults>-<seed>/``:

=================  ======================================================================================
``run.json``       :class:`RunInfo`: what was run, enough to run it again
``history.jsonl``  one :class:`oncegate.proof.lincheck.history.Event` a line, in the order of their times
``faults.jsonl``   one :class:`FaultNote` a line, on the clock of the history
``verdict.json``   :class:`RunVerdict`
``nodes/<id>.log``  what the node printed
``data/<id>/``     its data directory; kept unless the run is valid
``report.html``    the page, with ``latency.svg`` and ``rate.svg`` (:mod:`oncegate.proof.check.report`)
=================  ======================================================================================

Lines reach the operating system one by one, so that a killed run loses none that was written. A last line without its
end is a write that did not return; readers pass over it. An event that is not there makes its operation unknown, or one
that was never sent.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from oncegate.gateway.local.processes import Closing
from oncegate.proof.check.errors import FileFull, FileMalformed, FileMissing, FolderTaken
from oncegate.proof.lincheck.history import Event, HistoryError, line_of, parse_line
from oncegate.proof.lincheck.verdict import Result

HISTORY_BYTES_MAX: Final = 2 << 30
FAULTS_BYTES_MAX: Final = 16 << 20
LINE_BYTES_MAX: Final = 16 << 20
LOG_BYTES_MAX: Final = 64 << 20
JSON_BYTES_MAX: Final = 256 << 20
NAME_CHARS_MAX: Final = 40
"""Characters that workload and faults each give to the folder's name."""

LATEST: Final = "latest"
_HEAD_BYTES: Final = 1 << 20
_TRIES: Final = 100
_T = TypeVar("_T")


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was run.

    Attributes:
        workload, faults: by name, as on the command line.
        seed: of everything random.
        seconds: how long the processes worked.
        nodes: ids of the nodes.
        settings: of the cluster and the workload.
        commit, versions: of what was tested.
        started: UTC, ISO 8601.
    """

    workload: str
    faults: str = ""
    seed: int = 0
    seconds: float = 0.0
    nodes: list[str] = []
    settings: dict[str, Any] = {}
    commit: str = ""
    versions: dict[str, str] = {}
    started: str = ""


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came out.

    Attributes:
        verdict: the worst of the checks'; invalid before unknown before valid.
        checks: every result.
        operations: number by status (``ok``, ``fail``, ``unknown``).
        faults: number by name.
        seconds: how long checking took.
    """

    verdict: Literal["valid", "invalid", "unknown"]
    checks: list[Result] = []
    operations: dict[str, int] = {}
    faults: dict[str, int] = {}
    seconds: float = 0.0


class FaultNote(msgspec.Struct, frozen=True):
    """One fault: nanoseconds on the clock of the history; ``end`` None: it did not end before the run did."""

    start: int
    end: int | None
    fault: str
    target: list[str] = []
    detail: str = ""


class LineWriter(Closing):
    """Appends lines to a file of at most ``bytes_max`` bytes, for one process; closing flushes to the disk."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path, self._bytes_max = path, bytes_max
        self._file = path.open("ab", buffering=0)
        self._bytes = self._file.tell()

    def write(self, line: bytes) -> None:
        """Append ``line``, which has no end of line yet; raises FileFull at the bound, and writes nothing then."""
        whole = line + b"\n"
        if self._bytes + len(whole) > self._bytes_max or len(whole) > LINE_BYTES_MAX:
            raise FileFull(self._path, self._bytes_max)
        left = memoryview(whole)
        while left:
            left = left[self._file.write(left) :]
        self._bytes += len(whole)

    def event(self, event: Event) -> None:
        """Append an event of the history; raises FileFull."""
        self.write(line_of(event))

    def fault(self, note: FaultNote) -> None:
        """Append a fault; one that was noted when it began may be noted again with its end. Raises FileFull."""
        self.write(msgspec.json.encode(note))

    def close(self) -> None:
        """Flush to the disk and close; again does nothing."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


class RunFolder:
    """A run on disk. The constructor touches nothing; :meth:`create` and :meth:`open` do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = path / "history.jsonl"
        self.faults = path / "faults.jsonl"
        self.verdict = path / "verdict.json"
        self.report = path / "report.html"
        self.logs = path / "nodes"
        self.data = path / "data"

    @classmethod
    def create(cls, root: Path, info: RunInfo, *, now: datetime | None = None) -> RunFolder:
        """Make the folder of a new run below ``root``, write ``run.json`` and point ``latest`` at it.

        Raises FolderTaken if a hundred runs of that name exist already.
        """
        at = (now or datetime.now(UTC)).astimezone(UTC)
        parts = [_named(part) for part in (info.workload, info.faults or "none")]
        name = "-".join([at.strftime("%Y%m%dT%H%M%SZ"), *parts, str(info.seed)])
        root.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _TRIES + 1):
            folder = cls(root / (name if attempt == 1 else f"{name}.{attempt}"))
            try:
                folder.path.mkdir()
            except FileExistsError:
                continue
            folder.logs.mkdir()
            folder.data.mkdir()
            folder.write_run(msgspec.structs.replace(info, started=info.started or at.isoformat()))
            _point(root / LATEST, folder.path.name)
            return folder
        raise FolderTaken(root / name)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the run in ``path``, which may be the link ``latest``; raises FileMissing."""
        folder = cls(path.resolve())
        if not folder.path.joinpath("run.json").is_file():
            raise FileMissing(folder.path / "run.json")
        return folder

    def history_writer(self) -> LineWriter:
        """Return the writer of the history, which appends."""
        return LineWriter(self.history, HISTORY_BYTES_MAX)

    def faults_writer(self) -> LineWriter:
        """Return the writer of the faults, which appends."""
        return LineWriter(self.faults, FAULTS_BYTES_MAX)

    def write_run(self, info: RunInfo) -> None:
        """Replace ``run.json``, whole or not at all."""
        replace_file(self.path / "run.json", msgspec.json.format(msgspec.json.encode(info), indent=2))

    def write_verdict(self, verdict: RunVerdict) -> None:
        """Replace ``verdict.json``, whole or not at all."""
        replace_file(self.verdict, msgspec.json.encode(verdict))

    def read_run(self) -> RunInfo:
        """Return what was run; raises :class:`FileMissing`, :class:`FileMalformed`."""
        return _decoded(self.path / "run.json", RunInfo)

    def read_verdict(self) -> RunVerdict:
        """Return what came out; raises :class:`FileMissing`, :class:`FileMalformed`."""
        return _decoded(self.verdict, RunVerdict)

    def read_history(self) -> Iterator[Event]:
        """Yield the events; raises :class:`FileMissing`, and :class:`FileMalformed` with the line."""
        for number, line in _lines(self.history):
            try:
                yield parse_line(line, number)
            except HistoryError as bad:
                raise FileMalformed(self.history, bad.detail.partition(": ")[2], line=number) from bad

    def read_faults(self) -> list[FaultNote]:
        """Return the faults by their start, none if none were noted; raises :class:`FileMalformed` with the line."""
        found: dict[tuple[int, str, tuple[str, ...]], FaultNote] = {}
        if not self.faults.exists():
            return []
        for number, line in _lines(self.faults):
            try:
                note = msgspec.json.decode(line, type=FaultNote)
            except msgspec.MsgspecError as bad:
                raise FileMalformed(self.faults, str(bad), line=number) from bad
            found[note.start, note.fault, tuple(note.target)] = note
        return sorted(found.values(), key=lambda note: note.start)

    def settle(self, verdict: str) -> None:
        """Keep what a reader of this verdict needs: data directories unless it is valid; of each log the first
        1 MiB and the end, 64 MiB at most. Again does nothing.
        """
        if verdict == "valid":
            shutil.rmtree(self.data, ignore_errors=True)
        for log in sorted(self.logs.glob("*.log")):
            _shorten(log)


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file, whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _named(part: str) -> str:
    return re.sub(r"[^A-Za-z0-9_+.]+", "_", part)[:NAME_CHARS_MAX] or "_"


def _point(link: Path, name: str) -> None:
    """Let ``link`` lead to ``name`` beside it; there is no moment without a link."""
    beside = link.with_name(f".{link.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(name)
    beside.replace(link)


def _decoded(path: Path, kind: type[_T]) -> _T:
    try:
        with path.open("rb") as file:
            content = file.read(JSON_BYTES_MAX + 1)
    except FileNotFoundError as bad:
        raise FileMissing(path) from bad
    if len(content) > JSON_BYTES_MAX:
        raise FileMalformed(path, f"more than {JSON_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as bad:
        raise FileMalformed(path, str(bad)) from bad


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line without its end); a last line without an end was not written to its end."""
    try:
        file = path.open("rb")
    except FileNotFoundError as bad:
        raise FileMissing(path) from bad
    with file:
        number = 0
        while line := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                raise FileMalformed(path, f"a line has more than {LINE_BYTES_MAX} bytes", line=number)
            if not line.endswith(b"\n"):
                return
            if line.strip():
                yield number, line


def _shorten(log: Path) -> None:
    size = log.stat().st_size
    if size <= LOG_BYTES_MAX:
        return
    beside = log.with_name(f".{log.name}.new")
    gap = f"\n... {size - LOG_BYTES_MAX} bytes left out ...\n".encode()
    with log.open("rb") as old, beside.open("wb") as new:
        new.write(old.read(_HEAD_BYTES))
        new.write(gap)
        old.seek(size - (LOG_BYTES_MAX - _HEAD_BYTES - len(gap)))
        shutil.copyfileobj(old, new)
    beside.replace(log)
