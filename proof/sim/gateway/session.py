"""A client of the session protocol (docs/SEMANTICS.md), with the real tracker of sequence numbers.

Sends an operation under one id until it has a verdict: again after a while, at other nodes, at several at once; renews
the lease, takes a session over. What a server may never say is noted as a finding of the check "session protocol" or
"lease". Unlike the SDK it has many copies of a request under way, and compares all answers. Read next:
:mod:`oncegate.proof.sim.gateway.operations`, :mod:`oncegate.rifl.request_tracker`.
"""

from __future__ import annotations

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.caller import Caller, Ended
from oncegate.proof.sim.gateway.operations import SESSION_OVER, Operation, RangeOfRows
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import parse_client_id
from oncegate.rifl.request_tracker import RequestTracker

CLOCK_RATE_MAX = 1.03
"""No clock of a simulated machine is faster by itself."""


class Session(Caller):
    """One owner of one session; a successor is another object."""

    def __init__(self, world, rng, habits, *, client_id=None):
        super().__init__(world, rng, habits)
        self.client_id = client_id
        self.nonce = f"{rng.getrandbits(64):016x}"
        self.epoch = 0
        self.tracker = None
        self.state = "opening"
        self.pending = {}
        self._inherited = []
        self._memory_until = 0.0
        """World time until which the server has promised to remember."""
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
        self._ask(command, self._opened)
        self.world.scheduler.after(0.1 + 0.4 * self.rng.random(), self._knock)

    def _ask(self, command, answered):
        """Send to some nodes; ``answered`` gets the answer, and when it was asked for."""
        asked = self.world.now
        for name in self.nodes():
            self.world.wire.send(name, command, lambda answer: answered(answer, asked))

    def _opened(self, answer, asked):
        if self.state != "opening":
            return
        if isinstance(answer, Exception):
            if answer.code in SESSION_OVER | {Code.NOT_FOUND}:
                self.over(answer.code)
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
                    old.found(f"{old.request} was acknowledged, its owner never heard of it")
                old.end(heard or Ended("info", error="ACKNOWLEDGED"))
                continue
            held.append(old.sequence)
            heir = self.pending[old.sequence] = Operation(self, old.work, self.deadline(), old.done)
            # What its owner before has sent may be applied, whatever the attempts of this one come to.
            heir.doubt = True
        self.tracker = RequestTracker.resumed(
            window=self.habits.window, highest=taken.highest_sequence, held=sorted(held)
        )
        for pending in list(self.pending.values()):
            pending.attempt()

    def succeed(self, *, zombie):
        """Return the next owner, which inherits what has no verdict; this one goes on sending if it is a zombie."""
        next_owner = Session(self.world, self.rng, self.habits, client_id=self.client_id)
        for pending in self.pending.values():
            if isinstance(pending, RangeOfRows) or pending.resolving:
                # What a crashed owner has not noted down one by one nobody sends again.
                pending.end(Ended("info", error="CRASHED"))
            elif not pending.ended:
                heir = Operation(next_owner, pending.work, 0.0, pending.done)
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

    @property
    def first_incomplete(self):
        return int(self.tracker.first_incomplete)

    def request(self, work, done):
        """Run an operation (a :class:`oncegate.gateway.machine.commands.Op`), or a range of rows.

        ``done`` gets an :class:`oncegate.proof.sim.gateway.caller.Ended`.

        Returns:
            The pending operation, None while the window has no room.
        """
        tracker = self.tracker
        if not self._has_room(work):
            tracker.make_room()
            if not self._has_room(work):
                return None
        if isinstance(work, c.Op | c.Transaction):
            (sequence,) = tracker.take_singles(1)
            op = msgspec.structs.replace(work, sequence=int(sequence))
            if isinstance(work, c.Op):
                op = msgspec.structs.replace(op, fingerprint=c.fingerprint(work))
            pending = Operation(self, op, self.deadline(), done)
        else:
            pending = RangeOfRows(self, int(tracker.take_range(len(work))), work, self.deadline(), done)
        self.pending[pending.sequence] = pending
        if self.habits.gather_s:
            self.world.scheduler.after(self.habits.gather_s * self.rng.random(), pending.attempt)
        else:
            pending.attempt()
        return pending

    def _has_room(self, work):
        single = isinstance(work, c.Op | c.Transaction)
        return self.tracker.room_for_singles if single else self.tracker.room_for_range

    def send(self, name, batch):
        """Send operations in one request."""
        asked = self.world.now
        command = c.Operate(self.client_id, self.epoch, self.first_incomplete, [each.work for each in batch])
        for each in batch:
            each.open += 1
        self.world.wire.send(name, command, lambda answer: self._answered(name, batch, answer, asked))

    def _answered(self, name, batch, answer, asked):
        for pending in batch:
            pending.open -= 1
        if isinstance(answer, Exception):
            for pending in batch:
                pending.failed(answer)
            return
        self.last_heard = name
        if len(answer.body.results) != len(batch):
            batch[0].found(f"{len(batch)} operations from {batch[0].request} on got {len(answer.body.results)} results")
            return
        if self.state == "open":
            self._remembered(answer.memory_ms, asked)
        for pending, result in zip(batch, answer.body.results, strict=True):
            pending.verdict(result)

    def settled(self, pending):
        """Nothing is open about a number any more."""
        if self.pending.pop(pending.sequence, None) is not None and pending.sequence in self.tracker._held:
            self.tracker.complete([pending.sequence])

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
        self._ask(c.RenewSession(self.client_id, self.epoch), self._renewed)
        self.world.scheduler.after(self._renew_s(), self._renew)

    def _renewed(self, answer, asked):
        if self.state != "open":
            return
        if not isinstance(answer, Exception):
            self._remembered(answer.memory_ms, asked)
        elif answer.code in SESSION_OVER:
            self.over(answer.code)

    def _remembered(self, memory_ms, asked):
        """The promise counts from when the request was sent: it was applied later."""
        self._memory_until = max(self._memory_until, asked + memory_ms / 1000 / CLOCK_RATE_MAX)

    def over(self, code):
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
