"""`make audit` tells what it knows from what it was not told: packages without data are no clean bill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOUND = {"name": "a", "version": "1", "vulns": []}
FLAWED = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("told", "status", "said"),
    [
        ([SOUND], 0, "audited 1, no data of 0"),
        ([SOUND, FLAWED], 1, "b 2: CVE-1, mended in 3"),
        ([SOUND, UNKNOWN], 3, "audited 1, no data of 1"),
        (None, 3, ""),
    ],
)
def test_audit_ends_well_only_when_every_package_was_audited(
    told: list[object] | None, status: int, said: str, tmp_path: Path
) -> None:
    bill = json.dumps({"components": [{"name": "a", "version": "1"}, {"name": "oncegate", "version": "0"}]})
    tool(tmp_path / "cyclonedx-py", f"open(sys.argv[sys.argv.index('-o') + 1], 'w').write({bill!r})")
    answer = "" if told is None else json.dumps({"dependencies": told})
    tool(tmp_path / "pip-audit", f"assert open(sys.argv[-1]).read() == 'a==1\\n'; print({answer!r}, end='')")
    command = [sys.executable, ROOT / "deploy" / "audit.py", tmp_path, sys.executable, tmp_path / "runs"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    assert said in ended.stdout


def tool(path: Path, does: str) -> None:
    path.write_text(f"#!{sys.executable}\nimport sys\n{does}\n")
    path.chmod(0o755)
