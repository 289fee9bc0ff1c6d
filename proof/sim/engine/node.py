"""One machine of the simulated cluster: a disk and a clock that outlive the processes on it.

Owns life and death, and time: while a process waits for its disk the rest of the world goes on, and what comes for it
waits too. What runs in the process is a subclass (:mod:`oncegate.proof.sim.engine.engine_node`). Read next:
:mod:`oncegate.proof.sim.engine.world`.
"""

from __future__ import annotations

import math
from collections import deque

from oncegate.proof.sim.engine.clock import NodeClock
from oncegate.proof.sim.engine.fake_disk import SimDisk


class NodeKilledError(BaseException):
    """The process is gone; unwinds its stack."""


class SimNode:
    """A member; ``boot``, ``run_tick``, ``shut_down`` and what becomes of inputs are the subclass's."""

    def __init__(self, world, name, rng):
        self.world, self.name, self.rng = world, name, rng
        self.disk = SimDisk()
        self.clock = NodeClock(world.scheduler, reading=rng.uniform(0, 1000), rate=rng.uniform(0.98, 1.02))
        self.life = 0
        self.alive = False
        self.dead = None
        """Why this node will never be started again."""
        self.busy = False
        self.frozen_until = 0.0
        self.flush_s = 0.0003
        self.calls_left = None
        """System calls until the kill that is planned, and what it takes along."""
        self.kill_as = None
        self._backlog = deque()
        self._next_tick = math.inf

    # -- to be provided ---------------------------------------------------------------------------------

    def boot(self):
        """Start the process from the disk."""

    def run_tick(self):
        """Do all that is due; returns when the next is, in world time."""

    def shut_down(self):
        """Stop in an orderly way."""

    def forget(self):
        """The process is gone."""

    # -- life -------------------------------------------------------------------------------------------

    @property
    def frozen(self):
        return self.frozen_until > self.world.scheduler.now

    def start(self):
        """Start the process, unless it runs, never will again, or its last life still unwinds."""
        if self.alive or self.dead:
            return
        if self.busy:
            self.world.scheduler.after(0.01, self.start)
            return
        self.life += 1
        self.busy = self.alive = True
        self._next_tick = math.inf
        life = self.life
        self.disk.on_call = lambda call, name: self._disk_called(life, call, name)
        try:
            self._guarded(self.boot)
        finally:
            self.busy = False
        if self.alive:
            self.wake(0.0)
            self._drain()
        elif not self.dead:
            self.world.scheduler.after(self.rng.uniform(0.05, 0.5), self.start)

    def die(self, *, power, down_s):
        """The process ends here and now; with ``power`` the machine loses what it had not flushed."""
        if self.alive:
            self.alive = False
            self._backlog.clear()
            self.frozen_until = 0.0
            self.clock.resume()
            self.calls_left = None
            self.world.network.died(self.name, silent=power and self.rng.random() < 0.5)
            self.world.see.stopped(self.name)
            self.forget()
            self.world.counts["kills"] += 1
        if power:
            self.disk.kill(self.rng)
            self.world.counts["power losses"] += 1
        else:
            self.disk.release()
        self.world.scheduler.after(down_s, self.start)

    def stop(self, down_s):
        """An orderly stop."""
        if not self.alive or self.busy or self.frozen:
            return
        self.busy = True
        try:
            self._guarded(self.shut_down)
        finally:
            self.busy = False
        if self.alive:
            self.disk.close()
            self.world.counts["stops"] += 1
            self.world.counts["kills"] -= 1
            self.die(power=False, down_s=down_s)

    def freeze(self, seconds, *, clock_stops):
        """No instruction runs for a while: SIGSTOP, or, with the clock, a paused virtual machine."""
        if not self.alive or self.frozen:
            return
        self.frozen_until = self.world.scheduler.now + seconds
        if clock_stops:
            self.clock.stop()
        self.world.scheduler.at(self.frozen_until, self._thaw)

    def _thaw(self):
        if self.frozen or not self.alive:
            return
        self.clock.resume()
        if not self.busy:
            self._drain()
            self.wake(0.0)

    def accepts(self, peer):
        """Whether this node would be connected with that one."""
        return True

    def dials(self, peer):
        """Whether this node knows that one as somebody to be connected with."""
        return True

    change_pending = False
    changes_wait = False

    # -- inputs -----------------------------------------------------------------------------------------

    def handle(self, call, *args):
        """Run an input now, or when the process is free again."""
        if not self.alive:
            return
        if self.busy or self._backlog or self.frozen_until > self.world.scheduler.now:
            self._backlog.append((call, args))
        else:
            call(*args)

    def connected(self, peer, epoch):
        self.handle(self._connected, peer, epoch)

    def disconnected(self, peer):
        self.handle(self._disconnected, peer)

    def arrived(self, peer, epoch, message):
        self.handle(self._received, peer, epoch, message)

    def propose(self, command, done):
        """A client's command; ``done`` gets the index it was applied at, or None."""
        self.handle(self._propose, command, done)

    def read(self, read):
        """A client's read, of this node's state."""
        self.handle(self._read, read)

    def wake(self, delay):
        """See to it that a tick runs within ``delay``."""
        self._wake_at(self.world.scheduler.now + delay)

    def _wake_at(self, at):
        if at < self._next_tick:
            self._next_tick = at
            self.world.scheduler.at(at, self._tick_due, at, self.life)

    def _tick_due(self, at, life):
        if life == self.life and at == self._next_tick:
            self.handle(self._tick)

    def _tick(self):
        self._next_tick = math.inf
        self.busy = True
        due = math.inf
        try:
            due = self._guarded(self.run_tick)
        finally:
            self.busy = False
        if self.alive:
            now = self.world.scheduler.now
            if due is not None and due < math.inf:
                self._wake_at(max(due, now + 0.0002))
            else:
                self._wake_at(now + 0.05)
            if not self.frozen:
                self._drain()

    def _drain(self):
        # One at a time: what is handled may end in another tick, which goes on with what is left, in order.
        while self._backlog and self.alive and not self.busy and not self.frozen:
            call, args = self._backlog.popleft()
            call(*args)

    def _guarded(self, call):
        """Run code under test: it may be killed inside, or end itself."""
        life = self.life
        try:
            return call()
        except NodeKilledError:
            if self.alive and self.life == life:
                power, down_s = self.kill_as
                self.die(power=power, down_s=down_s)
        except OSError:
            # What the shell does: a disk that failed ends the process.
            self.world.counts["halts"] += 1
            if self.alive and self.life == life:
                self.die(power=False, down_s=self.rng.uniform(0.1, 1.0))
        return None

    def _disk_called(self, life, call, name):
        if life != self.life or not self.alive:
            raise NodeKilledError
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left <= 0:
                self.calls_left = None
                self.world.killed_inside_call(self)
                raise NodeKilledError
        if call == "sync" and self.world.running:
            scheduler = self.world.scheduler
            until = scheduler.now + self.flush_s * (0.5 + self.rng.random())
            scheduler.run(until)
            while self.alive and self.life == life and self.frozen:
                scheduler.run(self.frozen_until)
            if life != self.life or not self.alive:
                raise NodeKilledError
