"""A client of the session protocol (docs/SEMANTICS.md), with the real tracker of sequence numbers.

Sends an operation under one id until it has a verdict: again after a while, at other nodes, at several at once; renews
the lease, takes a session over, resolves what it gave up. What a server may never say is noted as a finding of the
check "session protocol" or "lease". Read next: :mod:`oncegate.proof.sim.gateway.wire`,
:mod:`oncegate.rifl.request_tracker`.
"""

from __future__ import annotations

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.ranges import PendingRange
from oncegate.proof.sim.gateway.verdicts import NEVER_SAID, Ended, request_of
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import parse_client_id
from oncegate.rifl.request_tracker import RequestTracker

CLOCK_RATE_MAX = 1.03
"""No clock of a simulated machine is faster by itself."""


class Pending:
    """An operation without a verdict."""

    __slots__ = (
        "deadline",
        "done",
        "doubt",
        "ended",
        "heir_of",
        "open",
        "resolving",
        "said",
        "sequence",
        "session",
        "work",
    )

    def __init__(self, session, sequence, work, deadline, done):
        self.session, self.sequence, self.work = session, sequence, work
        self.deadline, self.done = deadline, done
        self.open = 0
        """Attempts without an answer."""
        self.doubt = False
        self.ended = None
        """How it ended."""
        self.resolving = False
        self.heir_of = None
        self.said = None
        """The result that was heard first; every other must be the same."""

    @property
    def request(self):
        return request_of(self)

    def end(self, ended):
        if not self.ended:
            self.ended = ended
            self.done(ended)


class Session:
    """One owner of one session; a successor is another object."""

    def __init__(self, world, rng, habits, *, client_id=None):
        self.world, self.rng, self.habits = world, rng, habits
        self.client_id = client_id
        self.nonce = f"{rng.getrandbits(64):016x}"
        self.epoch = 0
        self.tracker = None
        self.state = "opening"
        self.pending = {}
        self._inherited = []
        self._memory_until = 0.0
        """World time until which the server has promised to remember."""
        self._last_heard = None
        self._then = None

    # -- opening ----------------------------------------------------------------------------------------

    def begin(self, then):
        """Open the session, or take it over; ``then`` is called when it is there, or cannot be any more."""
        self._then = then
        self._knock()

    def _knock(self):
        if self.state != "opening":
            return
        habits = self.habits
        if self.client_id is None:
            command = c.OpenSession(self.nonce, habits.lease_ms, habits.window)
        else:
            command = c.TakeOver(self.client_id, self.nonce)
        asked = self.world.now
        for name in self._nodes():
            self.world.wire.send(name, command, lambda answer: self._opened(answer, asked))
        self.world.scheduler.after(0.1 + 0.4 * self.rng.random(), self._knock)

    def _opened(self, answer, asked):
        if self.state != "opening":
            return
        if isinstance(answer, Exception):
            if answer.code in (Code.SESSION_EXPIRED, Code.FENCED, Code.NOT_FOUND):
                self._over(answer.code)
                self._then(self)
            return
        body = answer.body
        self.epoch = body.epoch
        self.state = "open"
        self._remembered(answer.memory_ms, asked)
        if self.client_id is None:
            self.client_id = parse_client_id(body.client_id)
            self.tracker = RequestTracker(window=self.habits.window)
        else:
            self._resume(body)
        self.world.scheduler.after(self._renew_s(), self._renew)
        self._then(self)

    def _resume(self, taken):
        held = []
        for old in self._inherited:
            if old.sequence < taken.first_incomplete:
                # Until it was fenced the owner before went on, and noted down what it heard.
                heard = old.heir_of.ended
                if heard is None or heard.status == "info":
                    self.world.found("session protocol", f"{old.request} was acknowledged, its owner never heard of it")
                old.end(heard or Ended("info", error="ACKNOWLEDGED"))
                continue
            held.append(old.sequence)
            heir = self._enter(Pending(self, old.sequence, old.work, self._deadline(), old.done))
            # What its owner before has sent may be applied, whatever the attempts of this one come to.
            heir.doubt = True
        self.tracker = RequestTracker.resumed(
            window=self.habits.window, highest=taken.highest_sequence, held=sorted(held)
        )
        for pending in list(self.pending.values()):
            self._attempt(pending)

    def succeed(self, *, zombie):
        """Return the next owner, which inherits what has no verdict; this one goes on sending if it is a zombie."""
        next_owner = Session(self.world, self.rng, self.habits, client_id=self.client_id)
        for pending in self.pending.values():
            if pending.resolving:
                pending.end(Ended("info", error="CRASHED"))
            elif isinstance(pending, PendingRange):
                # What a crashed owner has not noted down one by one nobody sends again.
                pending.end(Ended("info", error="CRASHED"))
            elif not pending.ended:
                heir = Pending(next_owner, pending.sequence, pending.work, 0.0, pending.done)
                heir.heir_of = pending
                next_owner._inherited.append(heir)
                # A forgotten twin tells nobody.
                pending.done = lambda ended: None
        self.state = "zombie" if zombie else "gone"
        return next_owner

    # -- operations -------------------------------------------------------------------------------------

    @property
    def usable(self):
        return self.state in ("open", "zombie")

    def request(self, work, done):
        """Run an operation (a :class:`oncegate.gateway.machine.commands.Op`); ``done`` gets an :class:`Ended`.

        Returns:
            The pending operation, None while the window has no room.
        """
        if not isinstance(work, c.Op):
            return self._request_range(work, done)
        tracker = self.tracker
        if not tracker.room_for_singles:
            tracker.make_room()
            if not tracker.room_for_singles:
                return None
        (sequence,) = tracker.take_singles(1)
        op = msgspec.structs.replace(work, sequence=int(sequence), fingerprint=c.fingerprint(work))
        pending = self._enter(Pending(self, int(sequence), op, self._deadline(), done))
        self._attempt(pending)
        return pending

    def _request_range(self, rows, done):
        tracker = self.tracker
        if not tracker.room_for_range:
            tracker.make_room()
            if not tracker.room_for_range:
                return None
        first = int(tracker.take_range(len(rows)))
        pending = self.pending[first] = PendingRange(self, first, rows, self._deadline(), done)
        pending.attempt()
        return pending

    def _deadline(self):
        return self.world.now + self.rng.choice(self.habits.patience_s)

    def _enter(self, pending):
        self.pending[pending.sequence] = pending
        return pending

    def _nodes(self):
        rng, names = self.rng, list(self.world.serving)
        count = 1
        if rng.random() < self.habits.copies_share:
            count = rng.randint(2, len(names))
        nodes = rng.sample(names, count)
        if count == 1 and self._last_heard in names and rng.random() < 0.6:
            nodes = [self._last_heard]
        return nodes

    def _attempt(self, pending):
        world, rng = self.world, self.rng
        if pending.ended or pending.resolving or not self.usable:
            return
        if world.now >= pending.deadline and not world.quiet:
            self._give_up(pending)
            return
        batch = [pending]
        if rng.random() < 0.3:
            batch += [other for other in self.pending.values() if other is not pending and self._waits(other)]
            batch.sort(key=lambda each: each.sequence)
        for name in self._nodes():
            asked = world.now
            command = self._command([each.work for each in batch])
            for each in batch:
                each.open += 1
            world.wire.send(
                name, command, lambda answer, name=name, asked=asked: self._answered(name, batch, answer, asked)
            )
        world.scheduler.after(rng.choice((0.03, 0.1, 0.4)) * (0.5 + rng.random()), self._attempt, pending)

    def _waits(self, pending):
        return type(pending) is Pending and not pending.ended and not pending.resolving

    def _command(self, ops):
        return c.Operate(self.client_id, self.epoch, int(self.tracker.first_incomplete), ops)

    def _answered(self, name, batch, answer, asked):
        for pending in batch:
            pending.open -= 1
        if isinstance(answer, Exception):
            for pending in batch:
                pending.doubt |= answer.outcome is not Outcome.NOT_APPLIED
            return
        self._last_heard = name
        if len(answer.body.results) != len(batch):
            text = f"{len(batch)} operations from {batch[0].request} on got {len(answer.body.results)} results"
            self.world.found("session protocol", text)
            return
        if self.state == "open":
            self._remembered(answer.memory_ms, asked)
        for pending, result in zip(batch, answer.body.results, strict=True):
            self._verdict(pending, result)

    def _verdict(self, pending, result):
        if result.status != "rejected":
            self._heard(pending, (result.status, result.commit, result.version, repr(result.value), result.code))
            if not pending.ended and not pending.resolving:
                self._settle(pending)
                pending.end(Ended("ok", result))
                if self.state == "open" and self.rng.random() < self.habits.probe_share:
                    self._probe(pending)
            return
        code = Code(result.code)
        if result.outcome != Outcome.NOT_APPLIED.value:
            pending.doubt = True
        if pending.ended or pending.resolving or not self.usable:
            return
        if code is Code.STALE and result.outcome == Outcome.NOT_APPLIED.value:
            # Somebody else has sealed it.
            if pending.said is not None:
                self.world.found("session protocol", f"{pending.request} is sealed after it had a result")
            self._settle(pending)
            pending.end(Ended("fail", error="SEALED"))
        elif code in NEVER_SAID and self.state == "open":
            self.world.found("session protocol", f"{pending.request} is refused as {code.value}: {result.detail}")
            self._settle(pending)
            pending.end(Ended("info", error=code.value))
        elif code in (Code.SESSION_EXPIRED, Code.FENCED):
            self._over(code)
        elif code is Code.WINDOW_FULL:
            self.tracker.make_room(told_full=True)

    def _heard(self, pending, said):
        if pending.said is None:
            pending.said = said
        elif pending.said != said:
            self.world.found("session protocol", f"{pending.request} was answered {pending.said}, and then {said}")

    def _settle(self, pending):
        """Nothing is open about this number any more."""
        if self.pending.pop(pending.sequence, None) is not None and pending.sequence in self.tracker._held:
            self.tracker.complete([pending.sequence])

    def _give_up(self, pending):
        if self.rng.random() < self.habits.resolve_share:
            pending.resolving = True
            self._resolve(pending)
            return
        del self.pending[pending.sequence]
        if self.state == "zombie":
            pending.end(Ended("info", error="TIMEOUT"))
            return
        if not pending.open and not pending.doubt:
            # Every attempt has been answered, and none was applied.
            self.tracker.release([pending.sequence])
            pending.end(Ended("fail", error="NOT_APPLIED"))
            return
        self.tracker.abandon([pending.sequence])
        pending.end(Ended("info", error="TIMEOUT"))

    # -- what a client must not do -------------------------------------------------------------------------

    def _probe(self, pending):
        """Use an id again for something else, or one far above the window: neither may be executed."""
        work = pending.work
        if self.rng.random() < 0.5:
            other = msgspec.structs.replace(work, by=work.by + 1)
            wrong = f"{request_of(pending)} was executed for another payload"
        else:
            # So far that it is above the window however late it comes.
            far = int(self.tracker.first_incomplete) + self.habits.window + 100_000
            other = msgspec.structs.replace(work, sequence=far, kind=int(c.OpKind.GET), by=0)
            wrong = f"{far} was executed, far above the window"
        other = msgspec.structs.replace(other, fingerprint=c.fingerprint(other))
        self.world.counts["probes"] += 1
        first_incomplete = min(int(self.tracker.first_incomplete), pending.sequence)
        command = c.Operate(self.client_id, self.epoch, first_incomplete, [other])
        self.world.wire.send(self._nodes()[0], command, lambda answer: self._probed(answer, wrong))

    def _probed(self, answer, wrong):
        if not isinstance(answer, Exception) and answer.body.results[0].status != "rejected":
            self.world.found("session protocol", wrong)

    # -- resolving --------------------------------------------------------------------------------------

    def _resolve(self, pending):
        if pending.ended or not self.usable:
            return
        owned = self.rng.random() < 0.7
        command = c.Resolve(
            self.client_id,
            pending.sequence,
            self.epoch if owned else 0,
            int(self.tracker.first_incomplete) if owned else 1,
        )
        for name in self._nodes():
            self.world.wire.send(name, command, lambda answer: self._resolved(pending, answer))
        self.world.scheduler.after(0.1 + 0.3 * self.rng.random(), self._resolve, pending)

    def _resolved(self, pending, answer):
        if pending.ended or not self.usable:
            return
        if isinstance(answer, Exception):
            if answer.code in (Code.FENCED, Code.SESSION_EXPIRED):
                self._over(answer.code)
            return
        state, result = answer.body.state, answer.body.result
        if state == "expired":
            self._over(Code.SESSION_EXPIRED)
        elif state == "applied":
            self._heard(pending, (result.status, result.commit, result.version, repr(result.value), result.code))
            self._settle(pending)
            pending.end(Ended("ok", result))
        elif state == "sealed":
            if pending.said is not None:
                self.world.found("session protocol", f"{pending.request} is sealed after it had a result")
            self._settle(pending)
            pending.end(Ended("fail", error="SEALED"))
        else:
            self.world.found("session protocol", f"{pending.request} was never acknowledged and is {state}")
            self._settle(pending)
            pending.end(Ended("info", error=state))

    # -- the lease --------------------------------------------------------------------------------------

    def _renew_s(self):
        return self.habits.lease_ms / 1000 * self.rng.uniform(0.2, 0.5)

    def _renew(self):
        if self.state != "open" or self.world.stopped:
            return
        if self.rng.random() < self.habits.pause_share:
            # A client that sleeps too long; what it holds may be gone when it wakes.
            self.world.scheduler.after(self.habits.lease_ms / 1000 * self.rng.uniform(0.9, 3.0), self._renew)
            return
        asked = self.world.now
        command = c.RenewSession(self.client_id, self.epoch)
        for name in self._nodes():
            self.world.wire.send(name, command, lambda answer: self._renewed(answer, asked))
        self.world.scheduler.after(self._renew_s(), self._renew)

    def _renewed(self, answer, asked):
        if self.state != "open":
            return
        if not isinstance(answer, Exception):
            self._remembered(answer.memory_ms, asked)
        elif answer.code in (Code.SESSION_EXPIRED, Code.FENCED):
            self._over(answer.code)

    def _remembered(self, memory_ms, asked):
        """The promise counts from when the request was sent: it was applied later."""
        self._memory_until = max(self._memory_until, asked + memory_ms / 1000 / CLOCK_RATE_MAX)

    def _over(self, code):
        """The session is gone, or somebody else's: of what was pending nothing is known."""
        world = self.world
        if code is Code.SESSION_EXPIRED and world.now < self._memory_until and world.plan.clocks_keep_time:
            early_s = self._memory_until - world.now
            world.found("lease", f"session {self.client_id} has expired {early_s:.3f} s before the end of its lease")
        if code is Code.FENCED and self.state == "open":
            world.found("session protocol", f"session {self.client_id} is fenced, but nobody has taken it over")
        if self.state == "opening":
            for old in self._inherited:
                old.end(Ended("info", error=code.value))
        self.state = "over"
        world.counts[f"sessions {code.value.lower()}"] += 1
        for pending in list(self.pending.values()):
            pending.end(Ended("info", error=code.value))
        self.pending.clear()
