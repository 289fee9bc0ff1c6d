"""What the user's cache holds so that a session of this process starts in half the time. Bounded; may be deleted.

Owns: the class-data archive of the JVM, and a home of Spark without zipped Python. Read next: `session`.

PySpark puts `python/lib/pyspark.zip` of Spark's home in front of the path of every worker. Python keeps nothing
compiled of a zip, so each of the dozen processes that plan and run a query compiles PySpark again, 0.5 to 0.6 s each.
The home here has links to all of the installed one but its `python`: workers import the installed package.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pyspark

_ARCHIVES_MAX: Final = 3
"""Of 140 to 190 MB each: one for each Java and installation of PySpark that was used last."""
_PARTS: Final = ("bin", "jars", "sbin")
"""Of a home: what programs and the JVM look for there."""


def plain_home(directory: Path) -> Path | None:
    """Return a home of Spark in ``directory`` for the installed PySpark, made if it is missing; None: it is no home."""
    installed = Path(pyspark.__file__).resolve().parent
    if not all((installed / part).is_dir() for part in ("bin", "jars")):
        return None
    directory.mkdir(parents=True, exist_ok=True)
    for other in directory.glob("home-*"):
        if not (other / "jars").exists():  # of an installation that is gone
            shutil.rmtree(other, ignore_errors=True)
    home = directory / f"home-{_mark(str(installed), pyspark.__version__)}"
    if not home.exists():
        draft = Path(tempfile.mkdtemp(prefix="draft-", dir=directory))
        for part in _PARTS:
            if (installed / part).exists():
                (draft / part).symlink_to(installed / part)
        try:
            draft.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(draft)
    return home


def archive_options(directory: Path, java: str) -> list[str]:
    """Return options to use the archive that fits this Java and this Spark, or to write it when the JVM ends."""
    version = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
    place = os.environ.get("SPARK_HOME", pyspark.__file__)
    mark = _mark(version.decode(errors="replace"), pyspark.__version__, place)
    quiet = ["-Xlog:disable", "-Xlog:all=error:stderr", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    whole = directory / f"{mark}.jsa"
    directory.mkdir(parents=True, exist_ok=True)
    for draft in directory.glob("*.jsa.*"):
        # A JVM writes its archive while it ends: a later run takes over the archive of an ended one.
        if not Path("/proc", draft.suffix[1:]).exists():
            if draft.stem == whole.name and not whole.exists():
                draft.replace(whole)
            else:
                draft.unlink(missing_ok=True)
    if whole.exists():
        os.utime(whole)
        for old in sorted(directory.glob("*.jsa"), key=_used_at, reverse=True)[_ARCHIVES_MAX:]:
            old.unlink(missing_ok=True)
        return [f"-XX:SharedArchiveFile={whole}", *quiet]
    return [f"-XX:ArchiveClassesAtExit={whole}.{os.getpid()}", *quiet]


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _mark(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
