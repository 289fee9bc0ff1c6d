"""Changes are made, named, tried and listed as ``make mutate`` says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutate import survivors, trial
from tests.mutate.changes import Change, changes
from tests.mutate.targets import ROOT, SURVIVORS, TARGETS

CODE = '''"""A module."""

__slots__ = ("a",)
Amount = NewType("Amount", int)
Pair: TypeAlias = tuple[int, int]
MOST: int = 3
Either = Amount | str


class Seen(Struct, frozen=True, tag=True):
    amount: Amount


def clamp(value: int, seen: list[int]) -> int:
    """Keep below."""
    seen.append(value)
    match value:
        case 0:
            return 1
        case _:
            assert_never(value)
    if value > MOST:
        raise ValueError("far too much", value)
    return value
'''


def _changes() -> set[tuple[str, str]]:
    return {(change.was, change.now) for change in changes("a.py", CODE)}


def test_limits_comparisons_and_effects_are_changed() -> None:
    assert {
        ("MOST: int = 3", "MOST: int = 4"),
        ("if value > MOST:", "if value >= MOST:"),
        ("seen.append(value)", "pass"),
    } <= _changes()


def test_words_annotations_and_lists_of_names_are_not_changed() -> None:
    assert not [
        was
        for was, _ in _changes()
        if "__slots__" in was or "NewType" in was or "TypeAlias" in was or was.startswith(('"""', "def", "Either"))
    ]
    assert not [was for was, now in _changes() if ("assert_never" in was) != ("assert_never" in now)]
    assert [now for was, now in _changes() if was.startswith("class")] == [
        "class Seen(Struct, frozen=True, tag=False):"
    ]
    assert ('raise ValueError("far too much", value)', "raise ValueError(None, value)") not in _changes()


def test_equal_changes_of_a_file_are_told_apart_by_their_number() -> None:
    code = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"
    names = [change.name for change in changes("a.py", code)]
    assert names == [("a.py", "return 1", "return 2", 1), ("a.py", "return 1", "return 2", 2)]


def test_a_listed_survivor_is_read_as_it_was_written(tmp_path: Path) -> None:
    change = Change("a.py", "if a > b:", "if a >= b:", 2, 7, "")
    (tmp_path / "list").write_text(f"# A heading.\n\n{survivors.written(change)}  equal ones\n  are one.\n")
    assert survivors.read(tmp_path / "list") == {change.name: "equal ones are one."}


def test_a_survivor_without_a_reason_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(survivors.written(Change("a.py", "a", "b", 1, 1, "")))
    with pytest.raises(survivors.SurvivorsError):
        survivors.read(tmp_path / "list")


def test_the_list_names_targets_and_targets_and_tests_exist() -> None:
    assert {path for path, *_ in survivors.read(SURVIVORS)} <= set(TARGETS)
    for path, _, test in (name.partition("::") for target, tests in TARGETS.items() for name in (target, *tests)):
        assert f"def {test}" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"


def test_a_change_of_what_the_import_calls_is_imported_afresh() -> None:
    path = "rifl/rule.py"
    code = (
        (ROOT / path)
        .read_text()
        .replace("return Condition(words, holds, refusal,", "return Condition(words, holds, None,")
    )
    tests = ("tests/rifl/test_rule.py::test_one_operation_is_decided_as_the_table_says",)
    (found,) = trial.run([Change(path, "", "", 1, 1, code)], tests, jobs=1, seconds_max=60.0)
    assert found.verdict == "killed"


@pytest.mark.parametrize(
    ("edit", "verdict"),
    [
        (lambda code: code, "survived"),
        (lambda code: code.replace("items >= flow.max_items", "items > flow.max_items"), "killed"),
        (lambda code: code + "\ndel is_full\n", "killed"),
        (lambda code: code.replace("def is_full", "while True: pass\ndef is_full"), "timeout"),
        (lambda code: "(", "killed"),
    ],
    ids=["unchanged", "inside a function", "outside of functions", "endless", "no Python"],
)
def test_a_change_is_tried_in_a_process_of_its_own(edit: Callable[[str], str], verdict: str) -> None:
    path, tests = "flows/batcher.py", ("tests/flows/test_batcher.py::test_segment_is_full_at_either_bound",)
    code = (ROOT / path).read_text()
    seconds_max = 1.0 if verdict == "timeout" else 60.0
    (found,) = trial.run([Change(path, "", "", 1, 1, edit(code))], tests, jobs=1, seconds_max=seconds_max)
    assert found.verdict == verdict
    assert (ROOT / path).read_text() == code
