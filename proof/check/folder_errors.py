"""Why the folder of a run is not read or written: below :class:`oncegate.rifl.errors.OncegateError`, with the file
named.
"""

from __future__ import annotations

from pathlib import Path

from oncegate.rifl.errors import Code, OncegateError, Outcome


class FolderError(OncegateError):
    """Root of what a run's folder refuses; ``path`` is the file."""

    def __init__(self, code: Code, path: Path, detail: str) -> None:
        super().__init__(code, f"{path}: {detail}", outcome=Outcome.NOT_APPLIED)
        self.path = path


class FileMissing(FolderError):
    """The folder lacks the file: no run, or one that did not come that far."""

    def __init__(self, path: Path) -> None:
        super().__init__(Code.NOT_FOUND, path, "there is no such file")

    def __reduce__(self) -> tuple[object, ...]:
        return FileMissing, (self.path,)


class FileMalformed(FolderError):
    """The file is not what its name says; ``line`` counts from 1, None where lines mean nothing."""

    def __init__(self, path: Path, reason: str, *, line: int | None = None) -> None:
        super().__init__(Code.BAD_REQUEST, path, reason if line is None else f"line {line}: {reason}")
        self.reason, self.line = reason, line

    def __reduce__(self) -> tuple[object, ...]:
        return _malformed, (self.path, self.reason, self.line)


class FileFull(FolderError):
    """The file has reached its bound of ``bytes_max``; the run has to end."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        super().__init__(Code.QUOTA, path, f"it would have more than {bytes_max} bytes")
        self.bytes_max = bytes_max

    def __reduce__(self) -> tuple[object, ...]:
        return FileFull, (self.path, self.bytes_max)


class FolderTaken(FolderError):
    """Too many runs have this name already."""

    def __init__(self, path: Path) -> None:
        super().__init__(Code.CONFLICT, path, "too many runs of this name")

    def __reduce__(self) -> tuple[object, ...]:
        return FolderTaken, (self.path,)


def _malformed(path: Path, reason: str, line: int | None) -> FileMalformed:
    return FileMalformed(path, reason, line=line)
