"""The report is one whole file, with and without kills, and says what failed."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np

from examples.demo.plan import When
from examples.demo.recording import Answer, Copied, Delivered, Kill, Recording, Verdict
from examples.demo.recount import Check
from examples.demo.report import Run, render

VOID = {"meta", "br", "img", "link", "input", "hr"}


class _Balanced(HTMLParser):
    """Checks that every element is closed, and collects ids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _run(kills: list[Kill], checks: list[Check] | None = None) -> Run:
    recording = Recording(400)
    for number in range(1, 401):
        recording.acknowledge(number, number, replayed=False)
        recording.answers.append(Answer(1 + number / 100, 0.001 * (1 + number % 7), number, 1))
    recording.copied = [Copied(1, When.LATER, True, Verdict.REPLAYED, 1)]
    recording.kills = kills
    recording.delivered = [Delivered(2.5, 3, 500), Delivered(6.0, 7, 1_200)]
    recording.phases = {"writing": 4.0}
    passed = [Check("Timeline rows", "1,200", "1,200", True)]
    return Run(recording, checks or passed, np.full(400, 3, dtype=np.int64), {"machine": "a <fast> one"}, 7.25)


def _parsed(page: str) -> _Balanced:
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == []
    assert len(set(parser.ids)) == len(parser.ids)
    return parser


def test_report_marks_each_kill() -> None:
    kills = [Kill("n1", 2.0, 3.5, 4.0, 300), Kill("n3", 4.2, None, None, 100)]
    page = render(_run(kills))
    _parsed(page)
    assert page.count("kill -9 n1") == page.count("kill -9 n3") == 3
    assert "killed with kill -9 twice" in page
    assert "Every count is exact" in page


def test_report_without_kills_says_so() -> None:
    page = render(_run([]))
    _parsed(page)
    assert "No leader was killed" in page
    assert "Shaded" not in page


def test_report_without_anything_renders() -> None:
    run = _run([])
    empty = Run(Recording(1), run.checks, np.ones(1, dtype=np.int64), {}, 0.0)
    _parsed(render(empty))


def test_report_needs_nothing_else() -> None:
    page = render(_run([Kill("n1", 2.0)]))
    assert not re.search(r"""(src|href)=|@import|url\(|https?://""", page)


def test_failed_check_is_named_and_escaped() -> None:
    page = render(_run([], [Check("Rows", "2", "1", False, ("missing: <user> 7",))]))
    _parsed(page)
    assert "The counts do not agree" in page
    assert "FAIL" in page
    assert "missing: &lt;user&gt; 7" in page
    assert "none executed twice" not in page
