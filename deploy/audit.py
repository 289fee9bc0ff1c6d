"""What is installed, and what is known to be wrong with it: a bill of materials, and an audit of each package.

`make audit` runs it in an environment of its own, of which it tells nothing. The bill (CycloneDX, JSON) needs no
network. The audit asks the advisory service of PyPI; packages of which that has no data are counted, not passed over.
Exit status: 0 nothing is known, 1 something is, 3 there is no data of some.
"""
# ruff: noqa: T201 - a program

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_KNOWN, _NO_DATA = 1, 3


def main() -> int:
    """Run with the tools' directory, the Python to look at, and the directory to write to."""
    tools, python, into = map(Path, sys.argv[1:])
    into.mkdir(parents=True, exist_ok=True)
    bill = into / "sbom.json"
    subprocess.run([tools / "cyclonedx-py", "environment", python, "--of", "JSON", "-o", bill], check=True)
    packages = json.loads(bill.read_text())["components"]
    asked = into / "installed.txt"
    asked.write_text("".join(f"{one['name']}=={one['version']}\n" for one in packages if one["name"] != "oncegate"))
    command = [tools / "pip-audit", "--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
    found = subprocess.run([*command, "-r", asked], capture_output=True, text=True, check=False)
    if not found.stdout:
        print(found.stderr.strip()[-500:], file=sys.stderr)
        return _NO_DATA
    audited = json.loads(found.stdout)["dependencies"]
    unknown = [one["name"] for one in audited if "skip_reason" in one]
    known = [(one["name"], one["version"], fault) for one in audited for fault in one.get("vulns", ())]
    print(f"{bill}: {len(packages)} packages; audited {len(audited) - len(unknown)}, no data of {len(unknown)}")
    for name, version, fault in known:
        print(f"{name} {version}: {fault['id']}, mended in {', '.join(fault['fix_versions']) or 'no version'}")
    return _KNOWN if known else _NO_DATA if unknown else 0


if __name__ == "__main__":
    raise SystemExit(main())
