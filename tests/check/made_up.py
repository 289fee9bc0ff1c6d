"""Made-up clusters that keep every promise: histories of workloads that came to pass.

Workers' operations overlap; each takes effect at one moment between its begin and its end, or never, or after nobody
waits for it any more. Clocks stand still now and then, sums meet their bounds, watches have gaps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from oncegate.gateway.machine.ending import SESSION_END, TTL_END
from oncegate.proof.check.recorder import LANES
from oncegate.proof.check.workloads import bank, watch
from oncegate.proof.lincheck import Event
from tests.check.histories import FINAL

Do = Callable[[], Any]
"""Takes effect once, and returns what the caller is told; ``Refused`` for an error that tells that nothing was done."""


class Refused(Exception):
    """Nothing was done."""


class Call:
    """An operation under way."""

    def __init__(self, f: str, key: Any, argument: Any, do: Do, request: str | None = None) -> None:
        self.f, self.key, self.argument, self.do, self.request = f, key, argument, do, request
        self.done, self.result, self.error = False, None, ""

    def take_effect(self) -> None:
        self.done = True
        try:
            self.result = self.do()
        except Refused as refused:
            self.error = str(refused)


class Cluster:
    """Runs operations of several workers at once and writes down what they see."""

    processes = range(4)
    doubtful = True
    """Whether a worker may never learn of an end."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now, self.commit = 1, 0
        self.events: list[Event] = []
        self._open: dict[int, Call] = {}
        self._lanes = {process: process for process in (*self.processes, FINAL)}
        self._late: list[Call] = []

    def begin(self, process: int) -> Call | None:
        raise NotImplementedError

    def between(self) -> None:
        """Do what happens by itself."""

    def run(self, steps: int = 120) -> list[Event]:
        for _ in range(steps):
            self.between()
            self._late_one()
            self._step(self.dice.choice(self.processes))
        for process in [*self._open]:
            self._end(process, self._open.pop(process))
        while self._late:
            self._late_one()
        self.finish()
        return self.events

    def finish(self) -> None:
        """Read everything in the end."""

    def _note(self, kind: str, process: int, call: Call, value: Any, error: str | None = None) -> None:
        self.now += self.dice.choice((0, 0, 1))
        lane = self._lanes[process]
        self.events.append(Event(lane, kind, call.f, call.key, value, self.now, "n1", call.request, error))  # type: ignore[arg-type]

    def _late_one(self) -> None:
        if self._late and self.dice.random() < 0.2:
            self._late.pop(0).take_effect()

    def _step(self, process: int) -> None:
        call = self._open.get(process)
        if call is None:
            begun = self.begin(process)
            if begun is not None:
                self._open[process] = begun
                self._note("invoke", process, begun, begun.argument)
        elif not call.done and self.dice.random() < 0.7:
            call.take_effect()
        else:
            self._end(process, self._open.pop(process))

    def _end(self, process: int, call: Call) -> None:
        if self.doubtful and (not call.done or self.dice.random() < 0.1):
            self._note("info", process, call, None, "TIMEOUT")
            self._lanes[process] += LANES
            if not call.done and self.dice.random() < 0.5:
                self._late.append(call)
            return
        if not call.done:
            call.take_effect()
        self._note("fail" if call.error else "ok", process, call, call.result, call.error or None)

    def note(self, f: str, key: Any, result: Any) -> None:
        """Add a final read."""
        call = Call(f, key, None, lambda: None)
        self._note("invoke", FINAL, call, None)
        self._note("ok", FINAL, call, result)


class Accounts(Cluster):
    """Transfers up to the last coin, and balances of now and of then."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.held = dict.fromkeys(bank.ACCOUNTS, 0)
        self.versions: dict[str, int] = {}
        self.then: dict[int, tuple[int, dict[str, int]]] = {}
        """Of each commit number of a transfer, its last one, and the balances at it."""
        self.receipts: list[list[Any]] = []
        self.sent = 0

    def begin(self, process: int) -> Call:
        dice = self.dice.random()
        if dice < 0.6:
            payer, payee = self.dice.sample(bank.ACCOUNTS, 2)
            room = self.held[payer] - bank.FLOOR
            amount = max(1, self.dice.choice((room, room + 1, self.dice.randint(1, bank.AMOUNT_MAX))))
            self.sent += 1
            name = f"t{self.sent}"
            return Call("transfer", name, [payer, payee, amount], lambda: self.transfer(name, payer, payee, amount))
        if dice < 0.8:
            return Call("balances", "all", None, self.balances)
        name = self.dice.choice(bank.NAMES)
        return Call("balance", name, None, lambda: self.balance(name))

    def transfer(self, name: str, payer: str, payee: str, amount: int) -> Any:
        if self.held[payer] - amount < bank.FLOOR:
            self.commit += 1
            return {"refused": "CONDITION_FAILED", "commit": self.commit}
        if self.dice.random() < 0.1:
            raise Refused("OVERLOADED")
        first = self.commit + 1
        self.commit += bank.WRITES
        self.held[payer] -= amount
        self.held[payee] += amount
        self.versions |= {payer: first, payee: first + 1}
        self.then |= dict.fromkeys(range(first, self.commit + 1), (self.commit, dict(self.held)))
        self.receipts.append([name, self.commit, [payer, payee, amount]])
        return {"commit": self.commit, "held": [self.held[payer], self.held[payee]]}

    def balances(self) -> Any:
        if self.then and self.dice.random() < 0.4:
            asked = self.dice.choice(sorted(self.then))
            commit, held = self.then[asked]
            return {"commit": commit, "held": held, "asked": asked}
        return {"commit": self.commit, "held": dict(self.held)}

    def balance(self, name: str) -> Any:
        account = f"{bank.TABLES[0]}/{name}"
        if account not in self.versions:
            return {"version": 0}
        return {"version": self.versions[account], "value": self.held[account]}

    def finish(self) -> None:
        self.note("balances", "all", {"commit": self.commit, "held": dict(self.held)})
        self.note("receipts", "all", list(self.receipts))


class Rows(Cluster):
    """Rows that are written alone and together and end by themselves; two watch them, now and then with a gap."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.rows: dict[str, tuple[int, str, int]] = {}
        """Value, how it was written, and by which session."""
        self.changes: list[list[Any]] = []
        self.borders = [0]
        """Commit numbers at which no transaction is under way."""
        self.at = [0, 0]
        self.values = 0

    def begin(self, process: int) -> Call:
        if process < len(watch.PREFIXES):
            return Call("told", watch.PREFIXES[process], None, lambda: self.tell(process))
        if self.dice.random() < 0.2:
            return Call("scan", "all", None, self.scan)
        writes = [self.write() for _ in range(self.dice.choice((1, 1, 1, 2, 3)))]
        if len(writes) == 1 and self.dice.random() < 0.8:
            ((f, key, value),) = writes
            return Call(f, key, value, lambda: self.apply(process, writes))
        return Call("transaction", "many", writes, lambda: self.apply(process, writes))

    def write(self) -> list[Any]:
        self.values += 1
        f, key = self.dice.choice(("put", "hold", "hold", "delete")), self.dice.choice(("a0", "a1", "b0", "b1"))
        return [f, key, None if f == "delete" else self.values]

    def apply(self, process: int, writes: list[Any]) -> Any:
        if self.dice.random() < 0.1:
            raise Refused("OVERLOADED")
        if self.dice.random() < 0.1:
            self.commit += 1
            self.borders.append(self.commit)
            return {"refused": "CONDITION_FAILED"}
        first, made = self.commit + 1, list[list[Any]]()
        for f, key, value in writes:
            self.commit += 1
            if f != "delete" or self.rows.pop(key, None):
                made.append([self.commit, key, value, 0, ""])
            if f != "delete":
                self.rows[key] = value, f, process
        self.tells(made)
        return first

    def tells(self, made: list[list[Any]]) -> None:
        """Note changes that are told together, up to the last of them."""
        for one in made:
            one[3] = made[-1][0]
        self.changes += made
        self.borders.append(self.commit)

    def between(self) -> None:
        held = [key for key, (_, f, _) in self.rows.items() if f == "hold"]
        if not held or self.dice.random() > 0.2:
            return
        key = self.dice.choice(held)
        owner = self.rows[key][2]
        gone = [key] if owner % 2 else [one for one in held if self.rows[one][2] == owner]
        made = list[list[Any]]()
        for one in gone:
            self.commit += 1
            del self.rows[one]
            made.append([self.commit, one, None, 0, TTL_END if owner % 2 else SESSION_END])
        self.tells(made)

    def tell(self, watcher: int) -> Any:
        start = self.at[watcher]
        if self.dice.random() < 0.15:  # no node keeps what was before
            start = max(start, self.dice.choice(self.borders[-4:]))
        end = self.dice.choice([at for at in self.borders if at >= start][:6])
        self.at[watcher] = end
        prefix = watch.PREFIXES[watcher]
        return [start, end, [one for one in self.changes if start < one[0] <= end and one[1].startswith(prefix)]]

    def scan(self) -> Any:
        return [self.commit, sorted([key, value] for key, (value, *_) in self.rows.items())]

    def finish(self) -> None:
        for key in ("a0", "a1", "b0", "b1"):
            self.note("read", key, self.rows[key][0] if key in self.rows else None)
        for watcher, prefix in enumerate(watch.PREFIXES):
            self.borders = [self.commit]
            self.note("told", prefix, self.tell_rest(watcher))

    def tell_rest(self, watcher: int) -> Any:
        start, prefix = self.at[watcher], watch.PREFIXES[watcher]
        rest = [one for one in self.changes if start < one[0] and one[1].startswith(prefix)]
        return [start, self.commit, rest]
