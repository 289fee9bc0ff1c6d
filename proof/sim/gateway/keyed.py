"""A caller without a session: repeats an operation under one idempotency key until it has a verdict.

Read next: :mod:`oncegate.proof.sim.gateway.session`, :mod:`oncegate.rifl.key_table`.
"""

from __future__ import annotations

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.verdicts import NEVER_SAID, Ended
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.key_table import NO_TIME

LIFETIME_MS = 9_000
"""Longer than any copy can be under way in a simulated world whose clocks keep time."""


class KeyedCaller:
    """What of :class:`oncegate.proof.sim.gateway.session.Session` processes call."""

    state = "open"

    def __init__(self, world, rng, habits):
        self.world, self.rng, self.habits = world, rng, habits
        self._count = 0
        self._name = f"{rng.getrandbits(32):08x}"

    def begin(self, then):
        then(self)

    def request(self, work, done):
        self._count += 1
        return _Keyed(self, f"{self._name}-{self._count}", work, done)


class _Keyed:
    """One operation."""

    request = None

    def __init__(self, caller, key, work, done):
        self._caller, self._world, self._done = caller, caller.world, done
        op = msgspec.structs.replace(work, fingerprint=c.fingerprint(work))
        self._command = c.Keyed(LIFETIME_MS, [c.KeyedOp(key, NO_TIME, op)])
        self._key = key
        self._open, self._doubt, self._ended, self._said = 0, False, False, None
        self._deadline = self._world.now + caller.rng.choice(caller.habits.patience_s)
        self._world.scheduler.after(0.0, self._attempt)

    def _end(self, ended):
        if not self._ended:
            self._ended = True
            self._done(ended)

    def _attempt(self):
        world, rng = self._world, self._caller.rng
        if self._ended:
            return
        if world.now >= self._deadline and not world.quiet:
            sure = not self._open and not self._doubt
            self._end(Ended("fail", error="NOT_APPLIED") if sure else Ended("info", error="TIMEOUT"))
            return
        count = rng.randint(2, len(world.serving)) if rng.random() < self._caller.habits.copies_share else 1
        for name in rng.sample(list(world.serving), min(count, len(world.serving))):
            self._open += 1
            world.wire.send(name, self._command, self._answered)
        world.scheduler.after(rng.choice((0.03, 0.1, 0.4)) * (0.5 + rng.random()), self._attempt)

    def _answered(self, answer):
        self._open -= 1
        if isinstance(answer, Exception):
            self._doubt |= answer.outcome is not Outcome.NOT_APPLIED
            return
        (result,) = answer.body.results
        if result.status == "rejected":
            self._doubt |= result.outcome != Outcome.NOT_APPLIED.value
            if Code(result.code) in NEVER_SAID | {Code.SESSION_EXPIRED}:
                self._world.found("session protocol", f"key {self._key} is refused as {result.code}: {result.detail}")
            return
        said = (result.sequence, result.status, result.commit, result.version, repr(result.value))
        if self._said is None:
            self._said = said
        elif self._said != said:
            self._world.found("session protocol", f"key {self._key} was answered {self._said}, and then {said}")
        self._end(Ended("ok", result))
