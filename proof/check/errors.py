"""Errors of a check: the machine lacks something, the cluster did not recover, a run's folder is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from oncegate.rifl.errors import Code, OncegateError, Outcome


class CheckError(Exception):
    """A run cannot go on; what is wrong is in the message."""


class Unavailable(CheckError):
    """This machine does not allow it; the message says what is missing."""


class NotHealed(CheckError):
    """Faults have ended, and the cluster is not whole again within its deadline.

    ``wrong`` says what, by node id (or name of a target).
    """

    def __init__(self, wrong: Mapping[str, str]) -> None:
        super().__init__("not healed: " + "; ".join(f"{name}: {what}" for name, what in sorted(wrong.items())))
        self.wrong = dict(wrong)


class FolderError(OncegateError):
    """A run's folder cannot be read or written; ``path`` is the file, ``arguments`` those of the subclass after it."""

    def __init__(self, code: Code, path: Path, detail: str, *arguments: object) -> None:
        super().__init__(code, f"{path}: {detail}", outcome=Outcome.NOT_APPLIED)
        self.path = path
        self._arguments = arguments

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, *self._arguments)


class FileMissing(FolderError):
    """The folder lacks the file: no run, or one that did not come that far."""

    def __init__(self, path: Path) -> None:
        super().__init__(Code.NOT_FOUND, path, "there is no such file")


class FileMalformed(FolderError):
    """The file is not what its name says; ``line`` counts from 1, None where lines mean nothing."""

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        super().__init__(Code.BAD_REQUEST, path, reason if line is None else f"line {line}: {reason}", reason, line)
        self.reason, self.line = reason, line


class FileFull(FolderError):
    """The file has reached its bound of ``bytes_max``; the run has to end."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        super().__init__(Code.QUOTA, path, f"it would have more than {bytes_max} bytes", bytes_max)
        self.bytes_max = bytes_max


class FolderTaken(FolderError):
    """Too many runs have this name already."""

    def __init__(self, path: Path) -> None:
        super().__init__(Code.CONFLICT, path, "too many runs of this name")
