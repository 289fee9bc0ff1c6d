"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
CASES = (ROOT / "docs" / "cases.md").read_text()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[^`\s]+)`", GUARANTEES + CASES))))
def test_test_named_by_a_guarantee_exists(named: str) -> None:
    path, _, test = named.partition("::")
    text = (ROOT / path).read_text()
    if test:
        assert re.search(rf"^\s*(async )?def {re.escape(test)}\(", text, re.MULTILINE), f"{path} has no {test}"


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
        "CONTRIBUTING.md",
        "docs/guide.md",
        "docs/cases.md",
        "docs/middleware.md",
        "docs/decisions/README.md",
    ],
)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    base = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#\s]+)\)", (ROOT / page).read_text())
    missing = [link for link in links if "://" not in link and not (base / link).exists()]
    assert not missing
