"""The wheel and the source distribution, built once, and environments that they are installed in."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from oncegate.testing import FakeGateway

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
EPOCH = "1700000000"


@pytest.fixture
async def fake() -> AsyncIterator[FakeGateway]:
    """One node with a table."""
    async with FakeGateway() as gateway:
        gateway.declare("rows")
        yield gateway


def ended(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without the variables of this project."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEGATE_", "PYTHON"))}
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean | variables, capture_output=True, text=True, timeout=600, check=False
    )


def run(*command: str | Path, cwd: Path, code: int = 0, **variables: str) -> str:
    """Run one that must end with this code, and return all that it prints."""
    done = ended(*command, cwd=cwd, **variables)
    assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def uv() -> Path:
    """What builds and installs."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("uv is not installed: pip alone can neither build both distributions nor take the lowest versions")
    return Path(found)


class Built(NamedTuple):
    """What a build leaves."""

    wheel: Path
    sdist: Path


def build(uv: Path, source: Path, target: Path) -> Built:
    """Build both from a directory: the wheel from its files, not from the source distribution."""
    run(uv, "build", "--quiet", "--sdist", "--wheel", "--out-dir", target, source, cwd=target, SOURCE_DATE_EPOCH=EPOCH)
    return Built(next(target.glob("*.whl")), next(target.glob("*.tar.gz")))


@pytest.fixture(scope="session")
def built(uv: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, of this checkout."""
    return build(uv, ROOT, tmp_path_factory.mktemp("built"))


class Environment(NamedTuple):
    """A virtual environment of its own."""

    path: Path

    def python(self, *words: str | Path, code: int = 0, cwd: Path | None = None) -> str:
        """Run its Python, away from this checkout."""
        return run(self.path / "bin/python", *words, cwd=cwd or self.path, code=code)

    def oncegate(self, *words: str | Path, code: int = 0) -> str:
        """Run its command."""
        return run(self.path / "bin/oncegate", *words, cwd=self.path, code=code)


def environment(uv: Path, path: Path, *requirements: str | Path) -> Environment:
    """Install requirements, as options of ``uv pip install``, into a new environment, and see that they fit.

    They are pinned, so what was fetched before is what would be fetched. It is asked for first: where an index says of
    no file how long it stays the same, uv fetches and builds a source distribution (pyspark: 1.8 GB) anew each time,
    and keeps every one.
    """
    run(uv, "venv", "--quiet", "--python", sys.executable, path, cwd=path.parent)
    made = Environment(path)
    install = (uv, "pip", "install", "--quiet", "--python", path / "bin/python", *requirements)
    if ended(*install, "--offline", cwd=path.parent).returncode:
        run(*install, cwd=path.parent)
    run(uv, "pip", "check", "--quiet", "--python", path / "bin/python", cwd=path.parent)
    return made


def requires(name: str) -> str:
    """Return what an installed distribution says of itself, as settings of uv."""
    found = importlib.metadata.metadata(name)
    told = {"name": name, "version": found["Version"]}
    lists = {"requires-dist": found.get_all("Requires-Dist", []), "provides-extra": found.get_all("Provides-Extra", [])}
    return "\n".join(
        ["[[dependency-metadata]]", *(f"{key} = {json.dumps(value)}" for key, value in (told | lists).items())]
    )


def lowest(uv: Path, path: Path, wheel: Path, *extras: str, also: tuple[str, ...] = ()) -> Environment:
    """Install a wheel with the lowest versions that its extras allow; ``also`` in the versions of the lock.

    The bounds are read from pyproject.toml: of a wheel only the wheel itself is a direct requirement. What pyspark
    requires is told, or its source distribution would be fetched and built to be asked.
    """
    pins, told = path.with_suffix(".txt"), path.with_suffix(".toml")
    told.write_text(requires("pyspark"))
    named = [word for extra in extras for word in ("--extra", extra)]
    compile_ = (uv, "pip", "compile", "--quiet", "--no-header", "--python", sys.executable)
    wanted = ("--resolution", "lowest-direct", "--config-file", told, *named, ROOT / "pyproject.toml")
    run(*compile_, *wanted, "-o", pins, cwd=path.parent)
    made = environment(uv, path, "--requirement", pins)
    install = (uv, "pip", "install", "--quiet", "--python", path / "bin/python")
    run(*install, "--no-deps", wheel, cwd=path.parent)
    if also:
        run(*install, "--constraint", pins, *also, cwd=path.parent)
    return made
