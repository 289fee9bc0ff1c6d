"""A range of a session: sent again whole, or cut anywhere, until every operation of it has a verdict.

Read next: :mod:`oncegate.proof.sim.gateway.session`, :mod:`oncegate.rifl.range_rule`.
"""

from __future__ import annotations

from itertools import pairwise

from oncegate.flows import range_body
from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.verdicts import NEVER_SAID, Ended, request_of
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.rifl.errors import Code, Outcome


class PendingRange:
    """Rows of a stream table under adjacent numbers of a session."""

    resolving = False

    def __init__(self, session, first, rows, deadline, done):
        self.session, self.sequence, self.done, self.deadline = session, first, done, deadline
        self._world = session.world
        self._table, self._rows = rows.table, list(rows)
        prints = (c.fingerprint_put(self._table, key, value) for key, value in self._rows)
        self._prints = b"".join(number.to_bytes(FINGERPRINT_BYTES, "big") for number in prints)
        self._said = {}
        """Commit numbers by sequence number."""
        self._open = 0
        self._doubt = self.ended = False

    @property
    def request(self):
        return request_of(self)

    def end(self, ended):
        if not self.ended:
            self.ended = True
            self.done(ended)

    def attempt(self):
        session, world = self.session, self._world
        rng = session.rng
        if self.ended or not session.usable:
            return
        if world.now >= self.deadline and not world.quiet:
            del session.pending[self.sequence]
            session.tracker.abandon([self.sequence])
            self.end(Ended("info", error="TIMEOUT"))
            return
        count = len(self._rows)
        cuts = sorted({0, count, *(rng.randrange(count) for _ in range(rng.choice((0, 0, 1, 2))))})
        for low, high in pairwise(cuts):
            command = self._command(low, high)
            for name in session._nodes():
                world.wire.send(name, command, self._answered)
        world.scheduler.after(rng.choice((0.03, 0.1, 0.4)) * (0.5 + rng.random()), self.attempt)

    def _command(self, low, high):
        session = self.session
        keys, values = zip(*self._rows[low:high], strict=True)
        return c.Range(
            session.client_id,
            session.epoch,
            int(session.tracker.first_incomplete),
            self._table,
            self.sequence + low,
            self._prints[low * FINGERPRINT_BYTES : high * FINGERPRINT_BYTES],
            range_body.encode(keys, values),
        )

    def _answered(self, answer):
        if isinstance(answer, Exception):
            self._doubt |= answer.outcome is not Outcome.NOT_APPLIED
            return
        for part in answer.body.results:
            self._part(part)
        if len(self._said) == len(self._rows) and not self.ended and self.session.usable:
            self.session._settle(self)
            commits = [self._said[self.sequence + at] for at in range(len(self._rows))]
            self.end(Ended("ok", commits))

    def _part(self, part):
        session = self.session
        if part.status == "applied":
            for number in range(part.first, part.last + 1):
                commit = part.commit + number - part.first
                if self._said.setdefault(number, commit) != commit:
                    text = f"{session.client_id}/{number} has commit {self._said[number]}, and then {commit}"
                    self._world.found("session protocol", text)
        elif not self.ended and session.usable:
            code = Code(part.code)
            if code in NEVER_SAID:
                self._world.found(
                    "session protocol", f"range at {part.first} is refused as {code.value}: {part.detail}"
                )
                session._settle(self)
                self.end(Ended("info", error=code.value))
            elif code in (Code.SESSION_EXPIRED, Code.FENCED):
                session._over(code)
            elif code is Code.WINDOW_FULL:
                session.tracker.make_room(told_full=True)
