"""``python -m bench.experiments``: every experiment, one after the other, and ``docs/experiments.md``.

``--quick`` runs a sample of each, a quarter of an hour in all; ``page`` draws the page again from what is stored. An
experiment that fails ends the command only when all others have run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from bench.experiments import page
from bench.options import command_of, end_in_order, folder

COMMANDS: Final = tuple(f"bench.{part.name}" for part in page.PARTS)
PAGE: Final = "page"


def run(command: Sequence[str]) -> int:
    """Run a command to its end; returns its exit status. When this process is stopped, so is the command, in order."""
    with subprocess.Popen(command) as child:
        try:
            return child.wait()
        except BaseException as ending:
            if not isinstance(ending, KeyboardInterrupt):  # Ctrl-C reaches both by itself
                child.terminate()
            child.wait()  # it kills what it has started, and deletes its data
            raise


def main() -> int:
    """Run what the command line says; the greatest exit status of all experiments."""
    options = argparse.ArgumentParser(
        command_of(), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("what", nargs="*", metavar="EXPERIMENT", help=f"of {', '.join(COMMANDS)}; or page alone")
    options.add_argument("--quick", action="store_true", help="a sample of each")
    options.add_argument("--no-save", action="store_true", help="print only")
    options.add_argument("--directory", type=folder, help="parent of the data; the system's temporary one by default")
    found = options.parse_args()
    if found.what == [PAGE]:
        print(f"drawn: {page.write()}")
        return 0
    wanted = [f"bench.{name.removeprefix('bench.')}" for name in found.what]
    if unknown := {*wanted} - {*COMMANDS}:
        options.error(f"no such experiment: {', '.join(sorted(unknown))}; there are {', '.join(COMMANDS)}")
    end_in_order()
    failed = {}
    words = [*(["--quick"] if found.quick else []), *(["--no-save"] if found.no_save else [])]
    words += ["--directory", str(found.directory)] if found.directory is not None else []
    for command in wanted or COMMANDS:
        print(f"#### {command}", flush=True)
        status = run([sys.executable, "-m", command, *words])
        if status:
            failed[command] = status
    for command, status in failed.items():
        print(f"failed: python -m {command} (exit status {status})", file=sys.stderr)
    if not found.no_save:
        print(f"drawn: {page.write()}")
    return max(failed.values(), default=0)


if __name__ == "__main__":
    sys.exit(main())
