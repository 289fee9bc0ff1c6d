"""Places for immutable files, by URL: a directory, or a bucket of an S3-like store.

Owns: which library reads a URL, what its errors become, and that a file appears whole or not at all. Must not know what
the files hold. Used by archives (:mod:`oncegate.stores.archive`) and backups.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.fs

from oncegate.flows.directories import put_durably
from oncegate.stores.errors import StoreCode, StoreError

_USER: Final = re.compile("://.*@")


class FilePlace(NamedTuple):
    """A file system, and the path in it below which the files are."""

    files: pyarrow.fs.FileSystem
    root: str

    def put(self, path: str, data: bytes) -> None:
        """Write a file, whole and durable on return; one of the same name is replaced. Raises STORE_UNAVAILABLE."""
        with unavailable(self.root):
            if isinstance(self.files, pyarrow.fs.LocalFileSystem):
                whole = Path(path)
                put_durably(whole, whole.with_name(f".{whole.name}.{os.getpid()}"), data)
            else:  # an object store shows an object whole, or not at all
                with self.files.open_output_stream(path) as stream:
                    stream.write(data)


def file_place(url: str, what: str) -> FilePlace:
    """Return the place that ``url`` names: `file:///directory`, an absolute path, `s3://bucket/prefix?…`.

    Raises:
        StoreError: BAD_OPTION, when no ``what`` can be there.
    """
    try:
        files, root = pyarrow.fs.FileSystem.from_uri(url)
    except (pa.ArrowException, OSError, ValueError) as error:
        # pyarrow repeats the URL, and people put keys into it.
        why = _USER.sub("://…@", str(error))
        raise StoreError(StoreCode.BAD_OPTION, f"no {what} can be there: {why}") from None
    return FilePlace(files, root.rstrip("/"))


@contextmanager
def unavailable(where: str) -> Iterator[None]:
    """Turn an error of the file system into STORE_UNAVAILABLE."""
    try:
        yield
    except OSError as error:
        raise StoreError(StoreCode.STORE_UNAVAILABLE, f"{where}: {error}") from error
