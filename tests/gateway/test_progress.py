"""Bars of long work: on a terminal's standard error and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Standard output says at its end what was imported, so that nothing else may stand there.
PROGRAM = """
import sys
from oncegate.gateway.cli.progress import Unit, progress

try:
    with progress("saving [b]", Unit("{unit}"), {total}) as advance:
        for _ in range(4):
            advance(25 * {scale})
        print("a line", file=sys.stderr)
        if {fails}:
            raise OSError("the disk is full")
except OSError as fault:
    print(fault, file=sys.stderr)
print("rich" in sys.modules)
"""


def _program(unit: str, total: int | None, *, scale: int = 1, fails: bool = False) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(unit=unit, total=total, scale=scale, fails=fails)]


def _on_a_terminal(command: list[str], **environment: str) -> tuple[str, str]:
    """Run a command whose standard error is a terminal; returns standard output and what the terminal got."""
    outer, inner = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environment}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=inner, text=True, env=variables)
    os.close(inner)
    shown = b""
    try:
        while piece := os.read(outer, 65_536):
            shown += piece
    except OSError:
        pass  # the process has ended, and with it the terminal's other end
    os.close(outer)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    return printed, shown.decode()


@pytest.mark.parametrize("fails", [False, True])
def test_where_nobody_looks_there_is_nothing_not_even_the_library(fails: bool) -> None:
    ran = subprocess.run(_program("bytes", 100, fails=fails), capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
    assert ran.stderr == "a line\n" + "the disk is full\n" * fails


def test_a_terminal_that_cannot_redraw_a_line_gets_no_bar() -> None:
    assert _on_a_terminal(_program("bytes", 100), TERM="dumb") == ("False\n", "a line\r\n")


@pytest.mark.parametrize(
    ("unit", "total", "scale", "shown"),
    [
        ("bytes", 104_857_600, 2**20, ["100.0/100.0 MiB", r"/s", r"0:00:00"]),
        ("runs", 100, 1, ["100/100", "runs", r"/min", r"0:00:00"]),
        ("steps", None, 1, [r"0:00:0\d"]),
    ],
)
def test_on_a_terminal_the_bar_says_how_much_how_fast_and_how_long(
    unit: str, total: int | None, scale: int, shown: list[str]
) -> None:
    printed, seen = _on_a_terminal(_program(unit, total, scale=scale))
    assert printed == "True\n"  # standard output is a pipe, and has nothing of it
    assert "saving [b]" in seen  # not markup
    for each in shown:
        assert re.search(each, seen), seen
    assert "a line\r\n" in seen
    assert seen.rindex("\x1b[2K") > seen.rindex("saving")  # the bar is wiped in the end


def test_an_error_takes_the_bar_away_and_is_told_below_what_was_said() -> None:
    printed, seen = _on_a_terminal(_program("bytes", 100, fails=True))
    assert printed == "True\n"
    assert seen.endswith("the disk is full\r\n")
    assert seen.index("a line") < seen.index("the disk is full")


def test_no_color_is_kept_to() -> None:
    _, seen = _on_a_terminal(_program("bytes", 100), NO_COLOR="1")
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]", seen)


def test_every_long_command_has_its_bar() -> None:
    """Kept by hand: a new one is to be thought of."""
    commands = Path(__file__).parent.parent.parent / "gateway" / "cli"
    bars = {path.stem: path.read_text().count("progress(") for path in commands.glob("*.py")}
    assert {name: count for name, count in bars.items() if count and name != "progress"} == {
        "snapshot": 4,
        "verify": 1,
        "check": 1,
        "cassandra": 1,
    }
