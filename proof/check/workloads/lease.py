"""Lease expiry races: sessions with the shortest lease there is, used just before, at and after its end.

Renewal and expiry race in the log. Whatever it decides, a request is executed at most once, and after a session was
told that it has expired nothing of it is executed any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import ClassVar, Final

from oncegate.gateway.client.paths import session_path
from oncegate.proof.check.checks import Findings
from oncegate.proof.check.direct_session import DirectSession
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workload import SessionLoop
from oncegate.proof.check.workloads.append import TABLE, OnLists, append_of, items, list_checks
from oncegate.proof.check.workloads.dedup import Held
from oncegate.proof.lincheck import Event, Result, operations
from oncegate.rifl.ids import LEASE_MS_MIN

HELD_MAX: Final = 4
EXPIRED: Final = "SESSION_EXPIRED"


class LeaseRaces(OnLists, SessionLoop):
    """Appends around the end of a lease; what was answered is sent again after it."""

    name: ClassVar[str] = "lease"
    proves: ClassVar[str] = "renewal and expiry race safely: nothing is executed twice or after the session's end"
    lease_ms: ClassVar[int] = LEASE_MS_MIN

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, list[Held]] = {}

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Wait a while that may outlast the lease, then append, renew, or send again."""
        held = self._held.setdefault(process, [])
        if random.random() < 0.25:
            await asyncio.sleep(random.uniform(0.8, 1.3) * self.lease_ms / 1000)
        if random.random() < 0.1:
            await world.read(process, TABLE, self._lists.current(random), random, answer=items)
        if held and random.random() < 0.3:
            await self._send(world, process, random.choice(held))
        renewal = None
        if random.random() < 0.3:
            path = f"{session_path(session.client_id)}/renew"
            renewal = session.nodes.call(random.choice(session.nodes.ids), "POST", path, {"epoch": session.epoch})
        key, item = self._lists.next(random)
        one = Held(session, session.take(), append_of(key, item))
        if renewal is None:
            known = await self._send(world, process, one)
        else:
            known, _ = await asyncio.gather(self._send(world, process, one), renewal)
        if session.over:
            # The whole point: what this session has outstanding comes late, after it was told of its end.
            for late in [*held, one]:
                await self._send(world, process, late)
            held.clear()
        elif known:
            held.append(one)
            if len(held) > HELD_MAX:
                session.acknowledge(held.pop(0).sequence)
        else:
            session.acknowledge(one.sequence)

    async def _send(self, world: World, process: int, one: Held) -> bool:
        """Send a request, as another attempt of the same operation; tell whether it was answered."""
        session, operation = one.session, one.operation
        request = session.request(one.sequence)
        recorded = world.recorder.begin(process, "append", operation["key"], operation["item"], request=request)
        verdict = await session.perform(one.sequence, operation)
        if verdict.answered:
            replayed = bool(verdict.result.get("replayed"))
            recorded.ok({"commit": verdict.result["commit"], "replayed": replayed}, verdict.node)
        else:
            recorded.no_result(verdict.code, verdict.node, failed=verdict.kind == "failed")
        return verdict.answered

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        return [*list_checks(operations(history)), ended(history)]


def ended(history: Sequence[Event]) -> Result:
    """Check attempt by attempt: after a session's end was told nothing of it is executed; one commit a request."""
    findings = Findings("a session that was told of its end executes nothing any more")
    invoked: dict[int, int] = {}
    over: dict[str, int] = {}
    commits: dict[str, int] = {}
    for event in history:
        if event.type == "invoke":
            invoked[event.process] = event.time
        if event.f != "append" or event.request is None or event.type == "invoke":
            continue
        findings.saw(event.request.partition("/")[0])
        session = event.request.partition("/")[0]
        if event.error == EXPIRED:
            over.setdefault(session, event.time)
        elif event.type == "ok":
            began = invoked[event.process]
            if not event.value["replayed"] and over.get(session, began) < began:
                findings.violated(event.key, f"request {event.request} was executed after its session's end was told")
            if commits.setdefault(event.request, event.value["commit"]) != event.value["commit"]:
                findings.violated(event.key, f"request {event.request} has two commit numbers")
    return findings.result()
