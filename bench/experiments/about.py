"""What stands above each table: when, where and on what a run was measured. Pure."""

from __future__ import annotations

from bench.experiments.results import Line
from bench.markdown import prose


def header_of(line: Line) -> str:
    """Return the paragraph; a sample says at its beginning that it is one, and a disturbed run too."""
    warning = "**A sample (`--quick`): sizes and windows are too small to judge by.** " if line["quick"] else ""
    if line.get("disturbed"):
        warning += f"**Disturbed, {line['disturbed']}: not judged.** "
    run = f", {line['run']}" if line["run"] else ""
    watched = "" if "disturbed" in line else "; whether anything else had the machine was not looked at"
    load = f"; load of the machine before: {line['load_average']:.1f}" if line["load_average"] is not None else ""
    return prose(
        f"{warning}Commit {line['commit']}{run}, {line['cpu']}, {line['cores']} cores, "
        f"Linux {line['kernel']}, Python {line['python']}, seed {line['seed']}; {line['durability']}. Calibrations: "
        f"{line['fdatasync_4k_ms']:.3f} ms for `fdatasync` of 4 KiB, {line['bare_posts_per_s']:,.0f} bare aiohttp "
        f"POSTs/s{load}{watched}."
    )
