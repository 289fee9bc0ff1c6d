"""What a release consists of: the same bytes from any copy of the source, with all files, and sound words about it."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from packaging.metadata import Metadata

from oncegate import __version__
from oncegate.proof.check.earlier_build import extract
from tests.release.conftest import ROOT, Built, build

pytestmark = pytest.mark.packaging
PACKAGES = ("consensus", "flows", "gateway", "proof", "rifl", "spark_sink", "stores")
NOT_SHIPPED = ("__pycache__", ".pyc", ".so")


def test_source_distribution_builds_the_same_bytes_elsewhere_without_git(
    uv: Path, built: Built, tmp_path: Path
) -> None:
    with tarfile.open(built.sdist) as archive:
        extract(archive, tmp_path)
    (source,) = tmp_path.iterdir()
    assert not (source / ".git").exists()
    for path in source.rglob("*"):  # as another user's copy of another day
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1, 1))
    (tmp_path / "again").mkdir()
    again = build(uv, source, tmp_path / "again")
    assert (again.wheel.name, again.wheel.read_bytes()) == (built.wheel.name, built.wheel.read_bytes())
    assert (again.sdist.name, again.sdist.read_bytes()) == (built.sdist.name, built.sdist.read_bytes())


def test_every_file_of_the_packages_is_in_both(built: Built) -> None:
    here = {
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not any(part.endswith(NOT_SHIPPED) for part in path.parts)
    }
    kinds = {path.suffix for path in here}
    assert {".py", ".css", ".js", ".html", ".c", ".lock", ".tmpl"} <= kinds, "assets of pages, a shim, a sample"
    public = {path.relative_to(ROOT) for path in (ROOT / "oncegate").iterdir() if path.is_file()}
    with zipfile.ZipFile(built.wheel) as wheel, tarfile.open(built.sdist) as sdist:
        installed = {PurePosixPath(name) for name in wheel.namelist()}
        packed = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in sdist.getnames()}
    assert {"oncegate" / PurePosixPath(path) for path in here} | set(map(PurePosixPath, public)) == {
        path for path in installed if path.parts[0] == "oncegate"
    }
    assert {path.parts[0] for path in installed} == {"oncegate", f"oncegate-{__version__}.dist-info"}
    assert {PurePosixPath(path) for path in here | public} <= packed
    beside = {"CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "docs/guide.md", "deploy/oncegate.toml"}
    assert beside <= set(map(str, packed))
    assert not {path for path in packed if path.parts and path.parts[0] in ("tests", "bench", ".git", "build")}


def test_words_about_the_package_are_valid_and_name_no_host(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        found = wheel.read(f"oncegate-{__version__}.dist-info/METADATA")
        assert f"oncegate-{__version__}.dist-info/licenses/LICENSE" in wheel.namelist()
    said = Metadata.from_email(found, validate=True)
    assert (said.name, str(said.version), said.license_expression) == ("oncegate", __version__, "Apache-2.0")
    assert str(said.requires_python) == ">=3.11"
    assert said.description_content_type == "text/markdown"
    assert said.description == (ROOT / "README.md").read_text()
    assert not said.project_urls, "the project has no address of its own"
    assert not said.home_page
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(said.classifiers or [])
    assert not [one for one in said.classifiers or [] if one.startswith("License ::")], "the expression says it"
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)$", text, re.MULTILINE)
