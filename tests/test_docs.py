"""What the documents name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.gateway.docs.sections import SECTIONS, fill, filled_pages

ROOT = Path(__file__).parent.parent
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
CASES = (ROOT / "docs" / "cases.md").read_text()
SECURITY = (ROOT / "SECURITY.md").read_text()
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[^`\s]+)`", GUARANTEES + CASES + SECURITY))))
def test_test_named_by_a_guarantee_or_a_threat_exists(named: str) -> None:
    path, _, test = named.partition("::")
    text = (ROOT / path).read_text()
    if test:
        assert re.search(rf"^\s*(async )?def {re.escape(test)}\(", text, re.MULTILINE), f"{path} has no {test}"


def test_every_line_of_the_threat_model_names_what_stands_against_it_and_a_test() -> None:
    boundaries = re.findall(r"^## (.+)\n(?:(?!## ).*\n)*?\| threat \|", SECURITY, re.MULTILINE)
    assert boundaries == ["Client port", "Peer port", "Disk", "Store", "Spark job", "Command line"]
    lines = [
        line for line in SECURITY.splitlines() if line.startswith("|") and not line.startswith(("| threat", "|--"))
    ]
    without = [line for line in lines if not re.fullmatch(r"\| [^|]+ \| [^|]+ \| `tests/[^|]+::[^|]+` \|", line)]
    assert not without


def test_every_case_of_the_contract_has_its_tests() -> None:
    contract = (ROOT / "docs" / "SEMANTICS.md").read_text().split("## Cases every release must pass")[1]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", contract, re.MULTILINE)]
    rows = re.findall(r"^\| (\d+(?:, \d+)*) \| .* \| (.*) \|$", CASES, re.MULTILINE)
    assert [int(number) for row, _ in rows for number in row.split(", ")] == numbers
    assert all("`tests/" in tests for _, tests in rows)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "docs/guide.md",
        "docs/deploy.md",
        "docs/operations.md",
        "docs/cases.md",
        "docs/metrics.md",
        "docs/middleware.md",
        "docs/ARCHITECTURE.md",
        "docs/settings.md",
        "docs/decisions/README.md",
    ],
)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    base = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#\s]+)\)", (ROOT / page).read_text())
    missing = [link for link in links if "://" not in link and not (base / link).exists()]
    assert not missing


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that can be wrapped: no code, no table, nothing generated."""
    kept = re.sub(
        r"(?ms)^<!-- generated: .*?^<!-- end: |^ *```.*?^ *```", lambda part: "\n" * part[0].count("\n"), text
    )
    for number, line in enumerate(kept.splitlines(), 1):
        if not line.startswith("|"):
            yield number, line


def _cannot_be_wrapped(line: str) -> bool:
    """Whether the line is one word or one link, perhaps of a list."""
    return " " not in re.sub(r"\[[^\]]*\]\([^)]*\)", "link", line).lstrip(" -")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_ends_at_120_columns(page: Path) -> None:
    long = [
        f"{page.name}:{number}: {len(line)} columns"
        for number, line in _prose(page.read_text())
        if len(line) > 120 and not _cannot_be_wrapped(line)
    ]
    assert not long


def test_generated_pages_are_what_is_generated_now() -> None:
    stale = [str(path.relative_to(ROOT)) for path, present, text in filled_pages(ROOT, SECTIONS) if text != present]
    assert not stale, "run `make docs`"


@pytest.mark.parametrize(("opening", "closing"), [("<!-- ", " -->"), ("# ", "")])
def test_generated_lines_replace_what_stands_between_the_markers_and_nothing_else(opening: str, closing: str) -> None:
    def page(*lines: str) -> str:
        first, last = (f"{opening}{words}{closing}" for words in ("generated: x (make docs)", "end: x"))
        return "\n".join(["before", first, *lines, last, "after", ""])

    assert fill(page("old", "", "older"), "x", ["new"]) == fill(page("new"), "x", ["new"]) == page("new")
    for broken in ("no markers", page() + page(), page().replace("end: x", "end: y")):
        with pytest.raises(ValueError, match="markers of 'x'"):
            fill(broken, "x", ["new"])


def test_each_of_the_twenty_questions_is_answered_by_a_name_that_is_there() -> None:
    table = (ROOT / "docs" / "ARCHITECTURE.md").read_text().split("## Twenty questions")[1].split("##")[0]
    answers = re.findall(r"^\| [^|]+\? \| (.+) \|$", table, re.MULTILINE)
    assert len(answers) == 20
    for path, name in re.findall(r"`([\w/]+\.py)` `(\w+)`", " ".join(answers)):
        defined = rf"^\s*((async )?def|class) {name}\b|^{name}\b.* = "
        assert re.search(defined, (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"
