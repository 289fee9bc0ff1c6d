"""Processes of a run: each does one operation after another, on a session that it may share.

Read next: :mod:`oncegate.proof.sim.gateway.session`, :mod:`oncegate.proof.sim.gateway.workloads`.
"""

from __future__ import annotations

from oncegate.proof.lincheck import Event
from oncegate.rifl.errors import Code

READ_PATIENCE_S = 1.0


class Owner:
    """A client: the session that its processes share, and what becomes of it."""

    def __init__(self, world, rng):
        self.world, self.rng = world, rng
        self.session = None
        self.lanes = [Process(world, self.usable, rng) for _ in range(rng.choice(world.workload.habits.lanes))]

    def next(self):
        """Begin."""
        self._renew_session()

    def stop(self):
        """Begin nothing more; what is under way ends."""

    @property
    def idle(self):
        return all(lane.idle for lane in self.lanes)

    def _renew_session(self):
        self.session = self.world.workload.caller(self.world, self.rng, self.world.workload.habits)
        self.session.begin(self._opened)
        hand_over_s = self.world.workload.habits.hand_over_s
        if hand_over_s:
            self.world.scheduler.after(self.rng.uniform(*hand_over_s), self._hand_over)

    def _opened(self, session):
        for lane in self.lanes:
            lane.go_on()

    def _hand_over(self):
        """The process that owns the session dies, or only seems to; another one goes on for it."""
        if self.world.stopped or self.session.state != "open":
            return
        self.world.counts["hand-overs"] += 1
        before, zombie = self.session, self.rng.random() < 0.6
        self.session = before.succeed(zombie=zombie)
        if zombie:
            Process(self.world, lambda: before if before.state == "zombie" else None, self.rng).go_on()
        self.session.begin(self._opened)
        self.world.scheduler.after(self.rng.uniform(*self.world.workload.habits.hand_over_s), self._hand_over)

    def usable(self):
        """Return the session if operations can be sent; a new one is opened where it is over."""
        if self.session is None or self.session.state == "over":
            if not self.world.stopped:
                self._renew_session()
            return None
        return self.session if self.session.state == "open" else None


class Process:
    """One operation at a time, in the session that ``usable`` returns, if there is one."""

    def __init__(self, world, usable, rng):
        self.world, self._usable, self.rng = world, usable, rng
        self.process = world.history.new_process()
        self.idle = True
        self._waiting = False
        self._seen = {}

    def go_on(self):
        """Begin the next operation, unless one is under way."""
        if self.idle and not self._waiting:
            self._next()

    def _soon(self, delay_s):
        if not self._waiting:
            self._waiting = True
            self.world.scheduler.after(delay_s, self._woken)

    def _woken(self):
        self._waiting = False
        if self.idle:
            self._next()

    def _next(self):
        world, rng = self.world, self.rng
        if world.stopped:
            return
        habits = world.workload.habits
        if rng.random() < habits.sleep_share:
            self._soon(habits.lease_ms / 1000 * rng.uniform(0.8, 2.0))
            return
        if rng.random() < habits.read_share:
            key = rng.choice(world.workload.keys)
            self.idle = False
            read(
                world,
                self.process,
                world.workload.read_f,
                key,
                rng.choice(world.serving),
                lambda ok, value: self._was_read(key, ok, value),
            )
            return
        session = self._usable()
        if session is None:
            self._soon(0.05 + 0.05 * rng.random())
            return
        f, key, argument, work = world.workload.write(rng, self._seen)
        pending = session.request(work, lambda ended: self._ended(f, key, argument, ended))
        if pending is None:
            self._soon(0.05)
            return
        self.idle = False
        world.history.note(self.process, "invoke", f, key, argument)

    def _was_read(self, key, ok, value):
        if ok:
            self._seen[key] = value
        self._done()

    def _ended(self, f, key, argument, ended):
        world = self.world
        world.counts[f"operations {ended.status}"] += 1
        world.workload.ended(self._seen, f, key, argument, ended)
        value = argument
        if ended.status == "ok":
            value = world.workload.result(f, argument, ended.result)
            world.counts["acknowledged"] += 1
        world.history.note(self.process, ended.status, f, key, value, error=ended.error or None)
        if ended.status == "info":
            self.process = world.history.new_process()
        self._done()

    def _done(self):
        self.idle = True
        self._soon(self.world.plan.think_s * (0.5 + self.rng.random()))


def read(world, process, f, key, name, then):
    """Read a row at a node, linearizable; ``then`` gets whether it worked and the value."""
    history = world.history
    history.note(process, "invoke", f, key, node=name)
    done = False

    def end(ok, value, error=None):
        nonlocal done
        if done:
            return
        done = True
        world.counts["reads ok" if ok else "reads failed"] += 1
        history.note(process, "ok" if ok else "fail", f, key, value, node=name, error=error)
        then(ok, value)

    def answered(answer):
        if isinstance(answer, Exception):
            if answer.code is Code.NOT_FOUND and answer.detail.startswith("no row "):
                end(True, world.workload.read_value(None))
            else:
                end(False, None, answer.code.value)
            return
        end(True, world.workload.read_value(answer))

    world.wire.read(name, world.workload.tables[0][0], key, answered)
    world.scheduler.after(READ_PATIENCE_S, end, False, None, "TIMEOUT")


class History:
    """Events in the order in which clients saw them."""

    def __init__(self, world):
        self._world = world
        self.events = []
        self._processes = 0

    def new_process(self):
        """Return the number of a process that has done nothing yet."""
        self._processes += 1
        return self._processes

    def note(self, process, kind, f, key=None, value=None, **more):
        """Enter an event now."""
        self._world.note(process, kind, f, key, value, *more.values())
        self.events.append(Event(process, kind, f, key, value, round(self._world.now * 1e9), **more))
