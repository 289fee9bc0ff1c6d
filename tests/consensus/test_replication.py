"""The leader's appends: what goes to whom, and when."""

from __future__ import annotations

from itertools import pairwise

import pytest

from oncegate.consensus.messages import Append
from tests.consensus.one_engine import OneEngine


@pytest.mark.parametrize("answers", [("n2", "n3"), ("n2",)], ids=["all answer", "one is silent"])
def test_an_idle_leader_sends_every_follower_a_heartbeat_in_time(answers):
    one = OneEngine(heartbeat_ms=100).lead()
    one.sent.clear()
    seen = {"n2": [one.now], "n3": [one.now]}
    end = one.now + 3.0
    while one.now < end:
        # As the owner does: no tick comes earlier, since nothing happens.
        one.tick(max(one.engine.deadline(), one.now + 0.001))
        for peer, times in seen.items():
            times += [at for at, to, message in one.sent if to == peer and type(message) is Append]
        one.acknowledge(*answers)
        one.sent.clear()
    for times in seen.values():
        assert len(times) >= 30
        assert max(later - earlier for earlier, later in pairwise(times)) < 0.1 + 0.002
