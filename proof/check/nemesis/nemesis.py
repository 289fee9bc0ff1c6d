"""Carries out a plan on a cluster, and makes the cluster whole again.

Owns the timetable (each action has a task that waits for its moment, and a thread in which it is done) and the healing:
first network, processes, room and clocks, then the members, then the proof that all of it is as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable
from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.errors import CheckError, NotHealed
from oncegate.proof.check.folder import FaultNote
from oncegate.proof.check.nemesis import members
from oncegate.proof.check.nemesis.fault import FAULTS, Action, Injection
from oncegate.proof.check.nemesis.plan import FaultPlan

HEAL_S: Final = 90.0
CLOCK_OFF_S: Final = 5.0
"""More than this between a node's clock and ours is a fault that is still there."""
_STEP_S: Final = 15.0
_THREADS: Final = 8
_FAILURES: Final = (CheckError, OSError, RuntimeError, RequestRefused, Unreachable)
"""What may keep one fault from being carried out while others are there; the end of the run judges the cluster."""
T = TypeVar("T")


@dataclass
class _Underway:
    """A fault between its injection and its healing."""

    fault: Injection
    start: int
    details: list[str] = field(default_factory=list)
    noted: bool = False


class Nemesis:
    """One run of one plan, on a cluster with the plan's equipment.

    Args:
        note: called once for each fault when it is over, on the event loop.
        clock: nanoseconds since the run began, the history's clock; by default since now.
    """

    def __init__(
        self,
        cluster: CheckCluster,
        plan: FaultPlan,
        note: Callable[[FaultNote], None],
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._cluster, self._plan, self._note = cluster, plan, note
        began = time.monotonic_ns()
        self._now = clock or (lambda: time.monotonic_ns() - began)
        self._pool = ThreadPoolExecutor(_THREADS, "nemesis")
        self._underway: list[_Underway] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._knobs: dict[str, str] = {}
        """What is turned now (:attr:`Fault.excludes`), and by which fault."""

    async def run(self, until: float | None = None) -> None:
        """Carry the plan out; returns when every fault has ended.

        ``until`` is a moment of ``time.monotonic()`` at which whatever is there is healed and nothing else begins; by
        default the plan's end. May be cancelled; :meth:`heal` ends what was under way.
        """
        began = time.monotonic()
        latest = began + self._plan.seconds if until is None else until
        self._tasks = [
            asyncio.create_task(self._carry_out(action, began, latest), name=f"{action.fault} at {action.start:g} s")
            for action in self._plan.actions
        ]
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()

    async def heal(self, timeout_s: float = HEAL_S) -> None:
        """End what is left of the faults, then :func:`make_whole`; raises NotHealed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._underway:
            self._over(one)
        try:
            await self._in_thread(lambda: make_whole(self._cluster, timeout_s))
        finally:
            self._pool.shutdown(wait=False)

    async def _carry_out(self, action: Action, began: float, latest: float) -> None:
        await asyncio.sleep(max(0.0, began + action.start - time.monotonic()))
        if time.monotonic() >= latest:
            return
        row = FAULTS[action.fault]
        fault = Injection(row, action)
        one = _Underway(fault, self._now())
        self._underway.append(one)
        other = self._knobs.get(row.excludes) if row.excludes else None
        if other is not None:
            # The plan parts them, but a healing takes as long as it takes.
            one.details.append(f"left out: {other} is not over")
            self._over(one)
            return
        self._knobs[row.excludes] = row.name
        try:
            await self._step(one, lambda: self._inject(fault))
            await asyncio.sleep(max(0.0, min(began + action.end, latest) - time.monotonic()))
            await self._step(one, lambda: fault.heal(self._cluster))
            self._over(one)
        finally:
            self._knobs.pop(row.excludes, None)

    def _inject(self, fault: Injection) -> str:
        fault.settle(self._cluster)
        return fault.inject(self._cluster)

    async def _step(self, one: _Underway, work: Callable[[], str | None]) -> None:
        try:
            said = await self._in_thread(work)
        except _FAILURES as failure:
            said = f"incomplete: {failure}"
        if said:
            one.details.append(said)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread; a cancellation waits for it, so that nothing goes on behind the healing's back."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # retrieved, so that asyncio does not warn
            raise

    def _over(self, one: _Underway) -> None:
        if one.noted:
            return
        one.noted = True
        detail = "; ".join(one.details)
        self._note(FaultNote(one.start, self._now(), one.fault.action.fault, list(one.fault.targets), detail))


def make_whole(cluster: CheckCluster, timeout_s: float) -> None:
    """Undo every fault there may be, and wait until the cluster is as it was.

    Raises NotHealed if it is not within ``timeout_s``, or a node ended by itself while the faults were there.
    """
    cluster.links.heal()
    cluster.thaw(*cluster.ids)
    for disk in cluster.disks.values():
        disk.give_back()
    for clock in cluster.clocks.values():
        clock.step(0)
    for control in cluster.flushes.values():
        control.slow(0)
    if cluster.certificates is not None:
        cluster.certificates.renew()
    for node_id in list(cluster.run_earlier):
        cluster.kill(node_id)
        cluster.run_earlier.discard(node_id)
    wrong: dict[str, str] = {"cluster": "nothing has been looked at"}

    def whole() -> bool:
        nonlocal wrong
        failed: dict[str, str] = {}
        try:
            for target in cluster.targets.values():
                target.start()
            _restore_members(cluster)
        except members.NO_QUORUM as failure:
            failed = {"members": str(failure)}
        wrong = failed | _wrong(cluster)
        return not wrong

    with contextlib.suppress(TimeoutError):
        wait_for(whole, timeout_s, "the cluster is whole", despite=members.NO_QUORUM)
    wrong |= cluster.crashes
    if wrong:
        raise NotHealed(wrong)


def _restore_members(cluster: CheckCluster) -> None:
    """Bring the members back to those of the beginning, all of them voters; one step may fail and is tried again."""
    for node_id in cluster.first_ids:
        if node_id not in cluster.absent:
            cluster.start(node_id)
    for node_id in list(cluster.damaged):
        members.settle_damage(cluster, node_id, _STEP_S)
    for node_id in list(cluster.spoiled):
        members.repair_state(cluster, node_id, _STEP_S)
    voters = members.voters(cluster)
    for node_id in voters:
        if node_id not in cluster.first_ids:
            members.remove_member(cluster, node_id, _STEP_S)
    for node_id in cluster.ids:
        if node_id not in cluster.first_ids:
            members.retire(cluster, node_id)
    for node_id in cluster.first_ids:
        if node_id in cluster.absent and node_id in voters:
            # Its removal was begun and may still come to be.
            members.remove_member(cluster, node_id, _STEP_S)
        if node_id in cluster.absent or node_id not in voters:
            members.join_member(cluster, node_id, _STEP_S)


def _wrong(cluster: CheckCluster) -> dict[str, str]:
    """What is not as it was, by node."""
    found: dict[str, str] = {}
    for node_id in cluster.first_ids:
        if not cluster.is_running(node_id):
            found[node_id] = f"does not run: {cluster.log_tail(node_id, 1)}"
        elif node_id in cluster.frozen:
            found[node_id] = "stands still"
        elif not cluster.is_ready(node_id):
            found[node_id] = "runs, and is not ready"
        elif node_id in cluster.clocks and abs(off := clock_off_s(cluster, node_id)) > CLOCK_OFF_S:
            found[node_id] = f"its clock is {off:+.0f} s off"
        elif node_id in cluster.disks and not cluster.disks[node_id].free_bytes:
            found[node_id] = "its disk is full"
    for node_id in cluster.ids:
        if node_id not in cluster.first_ids and cluster.is_running(node_id):
            found[node_id] = "was added, and runs still"
    if troubled := cluster.links.troubled:
        found["links"] = ", ".join(troubled)
    for name, target in cluster.targets.items():
        if not target.is_running():
            found[name] = "does not run"
    if not found:
        voters = members.voters(cluster)
        if voters != dict.fromkeys(cluster.first_ids, True):
            found["members"] = ", ".join(f"{name} {'votes' if votes else 'learns'}" for name, votes in voters.items())
    return found


def clock_off_s(cluster: CheckCluster, node_id: str) -> float:
    """How far the wall clock that a node sees is off ours, by the date of its answers: to a second.

    Raises OSError if it does not answer.
    """
    with urllib.request.urlopen(f"{cluster.endpoint(node_id)}/livez", timeout=5) as answer:  # noqa: S310
        date = answer.headers["Date"]
    return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
