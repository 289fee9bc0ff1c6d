"""The leader's process is killed, again and again, while 64 callers write: how long nobody got an answer.

Owns: when to kill, when a node comes back, and which gap belongs to which kill. A kill leaves the page cache as it is:
lost acknowledgements would be the protocol's fault, a missing flush does not show.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from bench.peers.measure import LoadFailed, running
from bench.peers.peer import NODES, Peer, Standing
from oncegate.gateway.local.waiting import wait_for

CALM_S: Final = 0.7
"""Writes have to go on so long before a kill, and after it before the node comes back."""
RECOVERY_S: Final = 60.0
CATCH_UP_S: Final = 60.0
READ_BACK_S: Final = 180.0


class Kill(NamedTuple):
    """One kill, as wall clock: when, and until when gaps are its own: the node comes back then."""

    killed_ns: int
    until_ns: int


class _Progress(threading.Thread):
    """Reads what the load says; knows since when writes have gone on without a pause, and the result."""

    PAUSE_NS: Final = 250_000_000

    def __init__(self, load: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self._load = load
        self._acknowledged = 0
        self._last_ns = 0
        self._since_ns: int | None = None
        self.result: dict[str, Any] | None = None

    def run(self) -> None:
        assert self._load.stdout is not None
        for line in self._load.stdout:
            event = json.loads(line)
            if event["event"] == "result":
                self.result = event
            elif event["acknowledged"] > self._acknowledged:
                if self._since_ns is None or event["at_ns"] - self._last_ns > self.PAUSE_NS:
                    self._since_ns = event["at_ns"]
                self._acknowledged, self._last_ns = event["acknowledged"], event["at_ns"]

    def calm_since(self, since_ns: int) -> bool:
        """Whether writes have gone on for ``CALM_S`` after ``since_ns``, to this moment."""
        began_ns, now_ns = self._since_ns, time.time_ns()
        if began_ns is None or now_ns - self._last_ns > self.PAUSE_NS:
            return False
        return now_ns - max(began_ns, since_ns) >= CALM_S * 1e9


def run(peer: Peer, kills: int) -> dict[str, Any]:
    """Kill the leader of a running system ``kills`` times; returns the row of the system.

    Raises:
        LoadFailed: the load ended by itself.
        TimeoutError: no write was acknowledged for a minute, or a node did not come back.
    """
    done: list[Kill] = []
    with running(peer.steady_command()) as load:
        progress = _Progress(load)
        progress.start()

        def calm(since_ns: int) -> bool:
            if load.poll() is not None:
                raise LoadFailed(f"{peer.name}: {_last_words(load)}")
            return progress.calm_since(since_ns)

        for _ in range(kills):
            began_ns = time.time_ns()
            wait_for(partial(calm, began_ns), RECOVERY_S, f"{peer.name} takes writes", state=peer.log_tails)
            standing = _all_in_sync(peer)
            killed_ns = time.time_ns()
            peer.kill(standing.leader)
            wait_for(partial(calm, killed_ns), RECOVERY_S, f"{peer.name} recovers", state=peer.log_tails)
            done.append(Kill(killed_ns, time.time_ns()))
            peer.restart(standing.leader)
        _all_in_sync(peer)
        assert load.stdin is not None
        load.stdin.close()
        progress.join(READ_BACK_S)
        if progress.result is None:
            load.kill()
            raise LoadFailed(f"{peer.name}: nothing was read back: {_last_words(load)}")
    found = {name: value for name, value in progress.result.items() if name not in ("event", "gaps")}
    return {"peer": peer.name, "mode": peer.kill_case.mode, "gaps_s": gaps_of(done, progress.result["gaps"]), **found}


def gaps_of(kills: Sequence[Kill], gaps: Sequence[dict[str, int]]) -> list[float]:
    """Return the longest gap of each kill in seconds: of those that overlap the time until the node came back."""
    return [
        max(
            (gap["until_ns"] - gap["from_ns"] for gap in gaps
             if gap["until_ns"] > kill.killed_ns and gap["from_ns"] < kill.until_ns),
            default=0,
        ) / 1e9
        for kill in kills
    ]  # fmt: skip


def _all_in_sync(peer: Peer) -> Standing:
    """Wait until all nodes keep up: two killed at once would be another test."""

    def standing() -> Standing | None:
        found = peer.standing()
        return found if found is not None and found.in_sync == NODES else None

    return wait_for(standing, CATCH_UP_S, f"{peer.name}: all nodes in sync", state=peer.log_tails, every_s=0.1)


def _last_words(load: subprocess.Popen[str]) -> str:
    """Return what an ended load said last."""
    assert load.stderr is not None
    return load.stderr.read()[-2000:]
