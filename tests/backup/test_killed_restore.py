"""A restore that is killed at any of its steps is none, and keeps nobody from the next one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncegate.consensus.ports import SavedPoint
from oncegate.flows import segment
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.backup import restoring
from oncegate.gateway.backup.restoring import NewCluster, Restored, restore
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.state import MachineState
from oncegate.gateway.node.settings import MemberAddress
from tests.gateway.logs import RandomLog

LAST = 25
NEW = NewCluster("second", MemberAddress("n1", "127.0.0.1", 1, 2))


class KilledError(BaseException):
    """The process ends here: what stands behind ``except`` and ``finally`` is not run, as far as it cleans up."""


class Log:
    """A lost cluster's log, from its first entry on, with the batches that it sealed."""

    cluster = "old"

    def __init__(self) -> None:
        self._log, self._sealed = RandomLog(3), dict[tuple[str, int], bytes]()

    def load(self, state: MachineState) -> SavedPoint:
        for at in range(1, LAST + 1):
            apply(state.machine, at, 1, self._log.at(at))
            for batch in state.machine.flows.take_sealed():
                payload = segment.build(batch.chunks, batch.flow, batch.table, batch.number)
                self._sealed[batch.flow, batch.number] = payload
            state.machine.flows.take_dropped()
        return SavedPoint(LAST, 1, b"")

    def batch(self, flow: str, number: int) -> bytes | None:
        return self._sealed[flow, number]

    def age_ms(self, now_ms: int) -> int:
        return 0


def files(directory: Path) -> list[str]:
    return sorted(str(one.relative_to(directory)) for one in directory.rglob("*") if one.is_file())


STEPS: list[tuple[Any, str]] = [
    (restoring, "fence"),
    (restoring, "begin_behind"),
    (SegmentStore, "put"),
    (MachineState, "begin_save"),
    (Path, "rename"),
    (restoring, "flush_directory"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Restored, list[str]]:
    """A restore that nothing disturbs."""
    directory = tmp_path_factory.mktemp("whole") / "new"
    return restore(Log(), directory, NEW), files(directory)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(("of", "step"), STEPS)
def test_restore_that_was_killed_leaves_no_node_or_a_whole_one_and_the_next_one_is_as_the_first(
    of: Any, step: str, tmp_path: Path, whole: tuple[Restored, list[str]], *, behind: bool
) -> None:
    directory = tmp_path / "new"
    original: Callable[..., Any] = getattr(of, step)

    def killed(*arguments: Any, **named: Any) -> None:
        if behind:
            original(*arguments, **named)
        raise KilledError

    if behind:
        directory.mkdir()  # an empty one may be there
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, step, killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KilledError):
            restore(Log(), directory, NEW)
    if directory.exists() and any(directory.iterdir()):
        assert (step, behind) in {("rename", True), ("flush_directory", False), ("flush_directory", True)}
        assert files(directory) == whole[1]
        return
    again = restore(Log(), directory, NEW)
    assert again.commit == whole[0].commit
    assert again.missing == []
    assert files(directory) == whole[1]
    assert {one.name for one in tmp_path.iterdir()} == {"new"}
