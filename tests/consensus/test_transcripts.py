"""What nodes of the core decide, scenario by scenario: see :mod:`tests.consensus.transcript`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.consensus.transcript import Script
from tests.consensus.transcript_text import scenarios

FILES = sorted(Path(__file__).parent.glob("transcripts/*.txt"))
ALL = [
    pytest.param(path, number, id=f"{path.stem}: {sentence}")
    for path in FILES
    for number, (sentence, _) in enumerate(scenarios(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("path", "number"), ALL)
def test_nodes_decide_what_the_transcript_says(path: Path, number: int) -> None:
    text = path.read_text(encoding="utf-8")
    _, steps = scenarios(text)[number]
    script = Script()
    came = [(command, script.run(command)) for command, _ in steps]
    if came != steps and os.environ.get("ONCEGATE_REWRITE"):
        assert text.count(lines(steps)) == 1
        path.write_text(text.replace(lines(steps), lines(came)), encoding="utf-8")
        return
    assert lines(came) == lines(steps)


def lines(steps: list[tuple[str, list[str]]]) -> str:
    return "".join("\n".join([f"> {command}", *out]) + "\n" for command, out in steps)
