"""Servers and the load generator, built once from pinned packages into ``.peers/``.

Owns: the cache, and that what is in it is what was pinned. Go checks ``go.sum``, npm its lock file; Maven's files are
compared with ``SHA256SUMS``. An entry is named by a digest of its sources: a change builds it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
CACHE: Final = HERE.parent.parent / ".peers"
BUILD_S: Final = 900.0


class NotBuilt(RuntimeError):
    """A program or a package is missing, or is not what was pinned; the text says which."""


def go_program(source: Path, package: str = ".") -> Path:
    """Return a program built from the Go module in ``source``.

    Raises:
        NotBuilt: no Go, or it does not build.
    """

    def build(target: Path) -> None:
        _run("Go", ["go", "build", "-o", str(target / "program"), package], source)

    return _cached(source, build) / "program"


def maven_jars(source: Path) -> Path:
    """Return a folder of the jars that ``pom.xml`` names, each with the digest that ``SHA256SUMS`` has for it.

    Raises:
        NotBuilt: no Maven, no package, or other bytes.
    """

    def build(target: Path) -> None:
        words = ["-q", "-B", "--strict-checksums", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        _run("Maven", ["mvn", *words, f"-DoutputDirectory={target}"], source)
        differing = wrong_sums(target, (source / "SHA256SUMS").read_text())
        if differing:
            raise NotBuilt(f"{source.name}: other files than SHA256SUMS says: {', '.join(differing)}")

    return _cached(source, build)


def npm_packages(source: Path) -> Path:
    """Return a folder with the files of ``source`` and ``node_modules`` as its lock file says.

    Raises:
        NotBuilt: no npm, no package, or other bytes.
    """

    def build(target: Path) -> None:
        shutil.copytree(source, target, dirs_exist_ok=True)
        _run("npm", ["npm", "ci", "--silent", "--no-audit", "--no-fund"], target)

    return _cached(source, build)


def wrong_sums(folder: Path, sums: str) -> list[str]:
    """Return the files that differ from ``sums`` (lines of ``sha256sum``), are missing, or are not in it."""
    wanted = {name: digest for digest, name in (line.split() for line in sums.splitlines() if line)}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def _cached(source: Path, build: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256()
    for path in sorted(source.iterdir()):
        if path.is_file():
            digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    entry = CACHE / f"{source.name}-{digest.hexdigest()[:16]}"
    if entry.exists():
        return entry
    CACHE.mkdir(exist_ok=True)
    print(f"building {source.name}", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{source.name}-") as directory:
        target = Path(directory) / "built"
        target.mkdir()
        build(target)
        with contextlib.suppress(OSError):  # another bench may have built the same meanwhile
            target.rename(entry)
    if not entry.exists():
        raise NotBuilt(f"{source.name}: what was built cannot be kept in {CACHE}")
    return entry


def _run(tool: str, command: Sequence[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise NotBuilt(f"{folder.name}: {tool} is not installed")
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=BUILD_S)
    if built.returncode:
        raise NotBuilt(f"{folder.name}: {(built.stderr or built.stdout).strip()[-2000:]}")
