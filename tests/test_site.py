"""The documentation as a site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def built(root: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "--site-dir", target]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.packaging
def test_site_is_built_whole_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = built(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    names = {page.relative_to(tmp_path).with_suffix(".md").as_posix() for page in pages}
    assert {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} - names == {
        "decisions/README.md"  # is the index of its folder
    }
    for page in pages:
        loaded = re.findall(r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"?(https?:[^\"\s>]+)", page.read_text())
        assert not [url for url in loaded if "canonical" not in url], page
    reference = (tmp_path / "sdk.html").read_text()
    assert all(name in reference for name in ("Client", "idempotency_key", "OutboxUnresolved"))


@pytest.mark.packaging
@pytest.mark.parametrize("link", ["not-there.md", "guide.md#no-such-heading"])
def test_link_that_leads_nowhere_fails_the_build(tmp_path: Path, link: str) -> None:
    for name in ("docs", "deploy", "oncegate", "README.md", "mkdocs.yml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").unlink()
    (tmp_path / "docs").mkdir()
    for page in ("guide.md", "SEMANTICS.md"):
        (tmp_path / "docs" / page).write_text("# A page\n")
    (tmp_path / "docs" / "guide.md").write_text(f"# First steps\n[see]({link})\n")  # a nav without pages warns too
    done = built(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert (link.partition("#")[2] or link) in done.stderr
