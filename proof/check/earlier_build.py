"""The build that a rolling upgrade comes from, for nodes of two versions in one cluster: unpacked from the repository.

It is there where the history of the repository is. :func:`python` runs it.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from oncegate.proof.check.errors import Unavailable

COMMIT: Final = "5f7154d"
"""Empty while no earlier commit has the formats of this one (docs/decisions/0072-formats-begin-anew.md)."""
_FOLDERS: Final = ("consensus", "flows", "gateway", "oncegate", "proof", "rifl", "spark_sink", "stores")
_ROOT: Final = Path(__file__).resolve().parents[2]


def look_for_history() -> None:
    """Raise Unavailable where the earlier build cannot be had."""
    if not COMMIT:
        raise Unavailable("no earlier build has the formats of this one")
    _git("cat-file", "-e", COMMIT)


def unpack(directory: Path, commit: str = COMMIT) -> Path:
    """Put its packages, or those of another commit, into ``directory``, and return it; raises Unavailable.

    By ``git archive``: the links of its ``oncegate/`` lead to the folders beside it.
    """
    if not commit:
        look_for_history()
    packed = _git("archive", commit, *_FOLDERS)
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        extract(archive, directory)
    return directory


def extract(archive: tarfile.TarFile, directory: Path) -> None:
    """Extract an archive; Python knows the filter of harmless members from 3.11.4 on, and asks for one from 3.12 on."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(directory, filter="data")
    else:
        archive.extractall(directory)  # noqa: S202 - of our own making


def python(tree: Path) -> list[str]:
    """Return how a Python begins that has the packages of a tree, whatever is installed or in its directory."""
    return ["env", f"PYTHONPATH={tree}", sys.executable, "-P"]


def _git(*words: str) -> bytes:
    git = shutil.which("git")
    if git is None:
        raise Unavailable("git is not installed: the build before cannot be unpacked")
    done = subprocess.run([git, "-C", _ROOT, *words], capture_output=True, check=False)
    if done.returncode:
        raise Unavailable(f"the history of the repository is not here: {done.stderr.decode().strip()}")
    return done.stdout
