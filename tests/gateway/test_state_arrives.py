"""What a node has received of a state is of the moment that was named, and stays once it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.consensus.ports import SavedPoint, SnapshotManifest
from oncegate.gateway.machine.state.errors import StateCorrupt
from tests.gateway.logs import RandomLog
from tests.gateway.state_harness import Member, point, received, ship


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Member]:
    member = Member(tmp_path / "leader", RandomLog(11))
    member.apply(20)
    member.save()
    yield member
    member.close()


@pytest.mark.parametrize("other", [SavedPoint(20, 2, point(20).configuration), SavedPoint(20, 1, b"another")])
def test_a_state_of_another_term_or_configuration_is_not_the_one_that_was_named(
    leader: Member, tmp_path: Path, other: SavedPoint
) -> None:
    follower = Member(tmp_path / "follower", leader.log)
    source = leader.state.open_snapshot()
    assert source.manifest.point == point(20)
    files = source.manifest.files
    source.manifest = SnapshotManifest(other, files)
    with pytest.raises(StateCorrupt, match="it stands at"):
        received(source, follower.state)
    source.close()
    follower.close()


def test_giving_up_behind_the_end_takes_nothing_away(leader: Member, tmp_path: Path) -> None:
    follower = Member(tmp_path / "follower", leader.log)
    sink = ship(leader.state, follower.state)
    sink.install()
    sink.abort()
    follower.at = 20
    assert follower.wrong() is None
    follower.close()
    again = Member(tmp_path / "follower", leader.log)
    assert (again.at, again.wrong()) == (20, None)
    again.close()
