"""A checkpoint's directory, as far as it is ours to look into.

Owns: what a killed Spark leaves that it does not take up by itself. Read next: `oncegate.spark_sink.jobs.job`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit


def clear_drafts(checkpoint: str) -> None:
    """Remove the draft of a query's first note, if Spark was killed while it wrote it.

    Spark takes such a checkpoint for one whose notes are lost, and refuses it for ever. A checkpoint that holds a note
    is left as it is, and one that is not on a disk of this machine.
    """
    place = urlsplit(checkpoint)
    if place.scheme not in ("", "file"):
        return
    notes = Path(place.path, "offsets")
    found = list(notes.iterdir()) if notes.is_dir() else []
    if all(one.name.startswith(".") and ".tmp" in one.name for one in found):
        for one in found:
            with suppress(FileNotFoundError):
                one.unlink()
