"""Operations and ranges of a session, from the first attempt to their end: an answer, a verdict, or given up.

What a server may never say of them is noted as a finding of the check "session protocol". Read next:
:mod:`oncegate.proof.sim.gateway.session`, :mod:`oncegate.rifl.range_rule`.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from oncegate.flows import range_body
from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.caller import NEVER_SAID, Ended, Pending, content
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import format_client_id

SESSION_OVER = {Code.SESSION_EXPIRED, Code.FENCED}


class PendingOfSession(Pending):
    """What has a number of a session."""

    waits = False
    """Whether it may travel in the attempt of another."""

    def __init__(self, session, sequence, deadline, done):
        super().__init__(session, deadline, done)
        self.sequence = sequence

    def written(self, number):
        return f"{format_client_id(self.caller.client_id)}/{number}"

    @property
    def request(self):
        """The written id, of a range that of its first operation."""
        return self.written(self.sequence)

    def settle(self, ended):
        """Nothing is open about its number any more."""
        self.caller.settled(self)
        self.end(ended)

    def refused(self, code, detail):
        """A refusal that comes to nothing but another attempt, if the session goes on."""
        if code in NEVER_SAID:
            self.found(f"{self.request} is refused as {code.value}: {detail}")
            self.settle(Ended("info", error=code.value))
        elif code in SESSION_OVER:
            self.caller.over(code)
        elif code is Code.WINDOW_FULL:
            self.caller.tracker.make_room(told_full=True)


class Operation(PendingOfSession):
    """One operation; travels alone, or with others that wait."""

    def __init__(self, session, work, deadline, done):
        super().__init__(session, work.sequence, deadline, done)
        self.work = work
        self.resolving = False
        self.heir_of = None

    @property
    def waits(self):
        return not self.ended and not self.resolving

    def attempt(self):
        session, world = self.caller, self.world
        if not self.waits or not session.usable:
            return
        if self.late:
            self._give_up()
            return
        batch = [self]
        if session.rng.random() < session.habits.together_share:
            batch += [other for other in session.pending.values() if other is not self and other.waits]
            batch.sort(key=lambda each: each.sequence)
        for name in session.nodes():
            session.send(name, batch)
        world.scheduler.after(session.pause_s(), self.attempt)

    def verdict(self, result):
        session = self.caller
        if result.status != "rejected":
            self.heard(self.sequence, content(result))
            if self.waits:
                self.settle(Ended("ok", result))
                if session.state == "open" and session.rng.random() < session.habits.probe_share:
                    self._probe()
            return
        code, sure = Code(result.code), result.outcome == Outcome.NOT_APPLIED.value
        self.doubt |= not sure
        if not self.waits or not session.usable:
            return
        if code is Code.STALE and sure:
            # Somebody else has sealed it.
            self._sealed()
        elif session.state == "open" or code not in NEVER_SAID:
            self.refused(code, result.detail)

    def _sealed(self):
        if self.said:
            self.found(f"{self.request} is sealed after it had a result")
        self.settle(Ended("fail", error="SEALED"))

    def _give_up(self):
        session = self.caller
        if session.rng.random() < session.habits.resolve_share:
            self.resolving = True
            self._resolve()
            return
        del session.pending[self.sequence]
        if session.state == "zombie":
            self.end(Ended("info", error="TIMEOUT"))
        elif not self.open and not self.doubt:
            # Every attempt has been answered, and none was applied.
            session.tracker.release([self.sequence])
            self.end(Ended("fail", error="NOT_APPLIED"))
        else:
            session.tracker.spend([self.sequence])
            self.end(Ended("info", error="TIMEOUT"))

    def _resolve(self):
        session, world = self.caller, self.world
        if self.ended or not session.usable:
            return
        owned = session.rng.random() < 0.7
        epoch, first_incomplete = (session.epoch, session.first_incomplete) if owned else (0, 1)
        command = c.Resolve(session.client_id, self.sequence, epoch, first_incomplete)
        for name in session.nodes():
            world.wire.send(name, command, self._resolved)
        world.scheduler.after(0.1 + 0.3 * session.rng.random(), self._resolve)

    def _resolved(self, answer):
        if self.ended or not self.caller.usable:
            return
        if isinstance(answer, Exception):
            if answer.code in SESSION_OVER:
                self.caller.over(answer.code)
            return
        state, result = answer.body.state, answer.body.result
        if state == "expired":
            self.caller.over(Code.SESSION_EXPIRED)
        elif state in ("applied", "refused") and self.caller.state == "zombie":
            # The number may be that of another operation by now: of whoever has taken the session over. What became of
            # its own is not known, so the number is held: where nobody has taken over yet, it would be acknowledged.
            self.end(Ended("info", error="OTHERS"))
        elif state in ("applied", "refused"):
            self.heard(self.sequence, content(result))
            self.settle(Ended("ok", result))
        elif state == "sealed":
            self._sealed()
        elif state == "acknowledged" and self.caller.state == "zombie":
            self.settle(Ended("info", error=state))  # whoever has taken the session over had its answer
        else:
            self.found(f"{self.request} was never acknowledged and is {state}")
            self.settle(Ended("info", error=state))

    def _probe(self):
        """Use the id again for something else, or one far above the window: neither may be executed."""
        session, work = self.caller, self.work
        if session.rng.random() < 0.5:
            other = msgspec.structs.replace(work, by=work.by + 1)
            wrong = f"{self.request} was executed for another payload"
        else:
            # So far that it is above the window however late it comes.
            far = session.first_incomplete + session.habits.window + 100_000
            other = msgspec.structs.replace(work, sequence=far, kind=int(c.OpKind.GET), by=0)
            wrong = f"{far} was executed, far above the window"
        other = msgspec.structs.replace(other, fingerprint=c.fingerprint(other))
        self.world.counts["probes"] += 1
        first_incomplete = min(session.first_incomplete, self.sequence)
        command = c.Operate(session.client_id, session.epoch, first_incomplete, [other])
        self.world.wire.send(session.nodes()[0], command, lambda answer: self._probed(answer, wrong))

    def _probed(self, answer, wrong):
        if not isinstance(answer, Exception) and answer.body.results[0].status != "rejected":
            self.found(wrong)


class RangeOfRows(PendingOfSession):
    """Rows of a stream table under adjacent numbers: sent again whole, or cut anywhere, until each has a verdict."""

    resolving = False

    def __init__(self, session, first, rows, deadline, done):
        super().__init__(session, first, deadline, done)
        self._table, self._rows = rows.table, list(rows)
        prints = (c.fingerprint_put(self._table, key, value) for key, value in self._rows)
        self._prints = b"".join(number.to_bytes(FINGERPRINT_BYTES, "big") for number in prints)

    def attempt(self):
        session, world = self.caller, self.world
        rng = session.rng
        if self.ended or not session.usable:
            return
        if self.late:
            del session.pending[self.sequence]
            session.tracker.spend([self.sequence])
            self.end(Ended("info", error="TIMEOUT"))
            return
        count = len(self._rows)
        cuts = sorted({0, count, *(rng.randrange(count) for _ in range(rng.choice((0, 0, 1, 2))))})
        for low, high in pairwise(cuts):
            command = self._command(low, high)
            for name in session.nodes():
                world.wire.send(name, command, self._answered)
        world.scheduler.after(session.pause_s(), self.attempt)

    def _command(self, low, high):
        session = self.caller
        keys, values = zip(*self._rows[low:high], strict=True)
        return c.Range(
            session.client_id,
            session.epoch,
            session.first_incomplete,
            self._table,
            self.sequence + low,
            self._prints[low * FINGERPRINT_BYTES : high * FINGERPRINT_BYTES],
            range_body.encode(keys, values),
        )

    def _answered(self, answer):
        if isinstance(answer, Exception):
            self.failed(answer)
            return
        for part in answer.body.results:
            if part.status == "applied":
                for number in range(part.first, part.last + 1):
                    self.heard(number, part.commit + number - part.first)
            elif not self.ended and self.caller.usable:
                self.refused(Code(part.code), part.detail)
        if len(self.said) == len(self._rows) and not self.ended and self.caller.usable:
            self.settle(Ended("ok", [self.said[self.sequence + at] for at in range(len(self._rows))]))
