"""docs/features.md: whatever a row names is there, and what is not there yet is said to be missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from oncegate.gateway.cli.main import command_line

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "features.md").read_text()
MARK = "**not yet**"

NOT_YET: frozenset[str] = frozenset()
"""Rows of what is not there yet. One that has come loses its mark in the page and its line here, and is then held to
what it names."""


def rows() -> dict[str, str]:
    """Return what each row says, and what it names."""
    found = re.findall(r"^\| (?!what \|)([^|]+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert len(dict(found)) == len(found) > 60
    return dict(found)


def missing(named: str) -> list[str]:
    """Return which commands, pages, headings and files of a cell are not there."""
    words = re.findall(r"`([^`]+)`", named)
    commands = [word for word in words if word.startswith("oncegate ")]
    links = re.findall(r"\]\(([^)]+)\)", named)
    assert commands or links or words or MARK in named, named
    return [
        *(word for word in commands if not _is_command(word)),
        *(link for link in links if not _is_there(link)),
        *(word for word in words if word not in commands and not (ROOT / word).exists()),
    ]


def _is_command(line: str) -> bool:
    words = line.split()[1:]
    command: Any = typer.main.get_command(command_line(words[0])) if words[0] in _names() else None
    while words and not words[0].startswith("-"):
        if (command := getattr(command, "commands", {}).get(words.pop(0))) is None:
            return False
    if not words:
        return True
    found = [one for one in command.params if words[0] in one.opts]
    return bool(found) and all(value in getattr(found[0].type, "choices", ()) for value in words[1:])


def _names() -> set[str]:
    return set(typer.main.get_command(command_line()).commands)  # type: ignore[attr-defined]


def _is_there(link: str) -> bool:
    page, _, anchor = link.partition("#")
    path = ROOT / "docs" / page
    if not path.exists():
        return False
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return not anchor or anchor in {_slug(heading) for heading in headings}


def _slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


@pytest.mark.parametrize("row", [row for row in rows() if row not in NOT_YET])
def test_whatever_a_row_names_is_there(row: str) -> None:
    assert MARK not in rows()[row], "is it there? then without the mark; or name it in NOT_YET"
    assert missing(rows()[row]) == []


def test_rows_that_are_not_there_yet_are_marked_and_no_others() -> None:
    assert {row for row, named in rows().items() if MARK in named} == NOT_YET


def test_row_that_has_come_is_no_longer_called_missing() -> None:
    for row in NOT_YET:
        named = rows()[row].partition(MARK)[0]
        assert not named.strip() or missing(named), f"{row} is all there: take {MARK} and the line of NOT_YET away"


@pytest.mark.parametrize(
    "wrong",
    [
        *("`oncegate conjure`", "`oncegate member conjure`", "`oncegate status --conjure`"),
        *("`oncegate status -o conjure`", "[x](conjured.md)", "[x](guide.md#conjured)", "`tests/conjured.py`"),
    ],
)
def test_what_is_not_there_is_found_missing(wrong: str) -> None:
    assert len(missing(wrong)) == 1
