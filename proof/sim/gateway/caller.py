"""What all clients have in common: whom they ask and how often, and what they hold against the answers.

A :class:`Caller` sends; a :class:`Pending` is an operation of it that has no verdict. The simplest caller has no
session: it repeats an operation under one idempotency key. Read next: :mod:`oncegate.proof.sim.gateway.session`,
:mod:`oncegate.rifl.key_table`.
"""

from __future__ import annotations

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.key_table import NO_TIME

NEVER_SAID = {Code.STALE, Code.BAD_ACK, Code.PAYLOAD_MISMATCH, Code.FORBIDDEN}
"""Refusals that an honest owner of a session never gets for what it still waits for."""
LIFETIME_MS = 9_000
"""Of a key: longer than any copy can be under way in a simulated world whose clocks keep time."""


class Ended(msgspec.Struct):
    """How an operation ended: ok with the server's result, fail (certainly not applied), or info."""

    status: str
    result: object = None
    error: str = ""


def content(result):
    """What of a result must be the same in every answer."""
    told = result.status, result.commit, result.version, repr(result.value), result.code
    return told if not result.writes and not result.failed else (*told, repr(result.writes), result.failed)


class Caller:
    """Asks one node, or several at once; mostly the one that answered last."""

    def __init__(self, world, rng, habits):
        self.world, self.rng, self.habits = world, rng, habits
        self.last_heard = None

    def nodes(self):
        rng, names = self.rng, list(self.world.serving)
        count = rng.randint(2, len(names)) if rng.random() < self.habits.copies_share else 1
        nodes = rng.sample(names, count)
        if count == 1 and self.last_heard in names and rng.random() < 0.6:
            nodes = [self.last_heard]
        return nodes

    def deadline(self):
        return self.world.now + self.rng.choice(self.habits.patience_s)

    def pause_s(self):
        """Seconds until the next attempt."""
        return self.rng.choice((0.03, 0.1, 0.4)) * (0.5 + self.rng.random())


class Pending:
    """An operation, or a range, without a verdict; ``written`` of a kind says the id of one of its numbers."""

    def __init__(self, caller, deadline, done):
        self.caller, self.world, self.deadline, self.done = caller, caller.world, deadline, done
        self.open = 0
        """Attempts without an answer."""
        self.doubt = False
        self.ended = None
        """How it ended."""
        self.said = {}
        """By number: the result that was heard first; every other must be the same."""

    def end(self, ended):
        if not self.ended:
            self.ended = ended
            self.done(ended)

    @property
    def late(self):
        """Whether it is to be given up."""
        return self.world.now >= self.deadline and not self.world.quiet

    def failed(self, error):
        """An attempt ended without a verdict."""
        self.doubt |= error.outcome is not Outcome.NOT_APPLIED

    def heard(self, number, said):
        known = self.said.setdefault(number, said)
        if known != said:
            self.found(f"{self.written(number)} was answered {known}, and then {said}")

    def found(self, text):
        self.world.found("session protocol", text)


class KeyedCaller(Caller):
    """A caller without a session; has what processes call of :class:`oncegate.proof.sim.gateway.session.Session`."""

    state = "open"

    def __init__(self, world, rng, habits):
        super().__init__(world, rng, habits)
        self._count = 0
        self._name = f"{rng.getrandbits(32):08x}"

    def begin(self, then):
        then(self)

    def request(self, work, done):
        self._count += 1
        return _Keyed(self, f"{self._name}-{self._count}", work, done)


class _Keyed(Pending):
    """One operation under a key."""

    def __init__(self, caller, key, work, done):
        super().__init__(caller, caller.deadline(), done)
        op = msgspec.structs.replace(work, fingerprint=c.fingerprint(work))
        self._command = c.Keyed(LIFETIME_MS, [c.KeyedOp(key, NO_TIME, op)])
        self._key = key
        self.world.scheduler.after(0.0, self._attempt)

    def written(self, number):
        return f"key {self._key}"

    def _attempt(self):
        if self.ended:
            return
        if self.late:
            sure = not self.open and not self.doubt
            self.end(Ended("fail", error="NOT_APPLIED") if sure else Ended("info", error="TIMEOUT"))
            return
        for name in self.caller.nodes():
            self.open += 1
            self.world.wire.send(name, self._command, self._answered)
        self.world.scheduler.after(self.caller.pause_s(), self._attempt)

    def _answered(self, answer):
        self.open -= 1
        if isinstance(answer, Exception):
            self.failed(answer)
            return
        (result,) = answer.body.results
        if result.status == "rejected":
            self.doubt |= result.outcome != Outcome.NOT_APPLIED.value
            if Code(result.code) in NEVER_SAID | {Code.SESSION_EXPIRED}:
                self.found(f"{self.written(0)} is refused as {result.code}: {result.detail}")
            return
        self.heard(0, (result.sequence, *content(result)))
        self.end(Ended("ok", result))
