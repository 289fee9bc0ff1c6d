"""What happened during a run is judged: copies by their moment, kills, acknowledgements."""

from __future__ import annotations

import pytest

from examples.demo.plan import RANGE_ROWS, SINGLES, When, copies, plan
from examples.demo.recording import Answer, Copied, Delivered, Kill, Recording, Verdict
from examples.demo.verdict import check_nodes, check_run


def _recording() -> Recording:
    recording = Recording(20)
    for number in range(1, 21):
        recording.acknowledge(number, 100 + number, replayed=number == 1)
        recording.answers.append(Answer(number / 10, 0.002, number, 1))
    recording.copied = [
        Copied(1, When.AT_ONCE, False, Verdict.FIRST, 101),
        Copied(2, When.LATER, True, Verdict.REPLAYED, 102),
        Copied(3, When.ACKNOWLEDGED, True, Verdict.STALE, None),
    ]
    recording.kills = [Kill("n1", 0.55, pending=15)]
    recording.delivered = [Delivered(1.5, 1, 300), Delivered(3.0, 2, 700)]
    return recording


def _failed(recording: Recording) -> set[str]:
    return {check.name for check in check_run(recording, 1) if not check.passed}


def test_a_good_run_passes() -> None:
    assert not _failed(_recording())


@pytest.mark.parametrize(
    "copied",
    [
        Copied(4, When.ACKNOWLEDGED, False, Verdict.REPLAYED, 104),
        Copied(4, When.LATER, False, Verdict.STALE, None),
        Copied(4, When.AT_ONCE, False, Verdict.REPLAYED, 105),
        Copied(4, When.LATER, False, Verdict.UNEXPECTED, None),
    ],
)
def test_copy_with_the_wrong_answer_is_found(copied: Copied) -> None:
    recording = _recording()
    recording.copied.append(copied)
    assert _failed(recording) == {"Copies answered from memory, or refused as stale"}


def test_copy_executed_beside_its_original_is_found() -> None:
    recording = _recording()
    recording.copied.append(Copied(4, When.AT_ONCE, False, Verdict.FIRST, 104))
    assert _failed(recording) == {"Copies that executed a second time"}


def test_too_few_copies_are_found() -> None:
    recording = _recording()
    recording.copied = []
    assert _failed(recording) == {"Operations sent more than once on purpose"}


def test_message_without_acknowledgement_is_found() -> None:
    recording = _recording()
    recording.commits[7] = 0
    assert _failed(recording) == {"Messages acknowledged"}


def test_kill_after_the_last_write_does_not_count() -> None:
    recording = _recording()
    recording.kills = [Kill("n1", 5.0, pending=0)]
    assert _failed(recording) == {"Leaders killed while writes ran"}


def test_delivery_after_the_last_write_only_is_found() -> None:
    recording = _recording()
    assert recording.rows_while_writing() == 300
    del recording.delivered[0]
    assert _failed(recording) == {"Rows delivered while messages were written"}


def test_gap_is_measured_from_the_kill_on() -> None:
    recording = _recording()
    recording.answers = [Answer(at, 0.001, 1, 1) for at in (0.1, 2.0, 2.1, 3.3, 3.4)]
    assert recording.gap_s(Kill("n1", 1.9)) == pytest.approx(1.2)
    assert recording.gap_s(Kill("n1", 1.0)) == pytest.approx(1.2)
    assert recording.gap_s(Kill("n1", 4.0)) is None


def test_differing_batches_are_found() -> None:
    same = {"n1": ("a", "b"), "n2": ("a", "b")}
    assert check_nodes(same).passed
    assert not check_nodes({**same, "n3": ("a", "c")}).passed
    assert not check_nodes({**same, "n3": ("a",)}).passed


@pytest.mark.parametrize("messages", [1, 40, 3_000, 59_835])
def test_plan_covers_each_line_once_and_copies_enough(messages: int) -> None:
    slices = plan(messages, seed=3)
    assert [n for s in slices for n in range(s.first, s.first + s.length)] == list(range(1, messages + 1))
    assert sum(copies(slices).values()) >= 0.05 * messages
    for item in slices:
        assert 1 <= item.length <= (RANGE_ROWS if item.ranged else SINGLES)[1]
        if item.copy is not None:
            assert 0 <= item.copy.offset < item.copy.offset + item.copy.length <= item.length


def test_plan_follows_from_the_seed() -> None:
    assert plan(5_000, seed=3) == plan(5_000, seed=3)
    assert plan(5_000, seed=3) != plan(5_000, seed=4)


def test_plan_copies_ranges_and_single_operations_at_all_moments() -> None:
    copied = {(s.ranged, s.copy.when) for s in plan(59_835, seed=3) if s.copy is not None}
    assert copied == {(ranged, when) for ranged in (True, False) for when in When}
