"""A check of a workload says nothing against a history that came to pass: made-up clusters that keep every promise.

Workers' operations overlap; each takes effect at one moment between its begin and its end, or never, or after nobody
waits for it any more. Clocks stand still now and then, sums meet their bounds, watches have gaps. A check that finds
something here would accuse a cluster of what it has not done; what one has to find the histories beside this show.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from oncegate.gateway.machine.ending import SESSION_END, TTL_END
from oncegate.proof.check.recorder import LANES
from oncegate.proof.check.workloads import bank, leases, watch, workload_of
from oncegate.proof.lincheck import Event, operations
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


class Holds(Cluster):
    """Rows that end as late as they may, of sessions that are closed or expire."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.time_ms = 1
        self.rows: dict[str, dict[str, Any]] = {}
        self.sessions = {process: f"s{process}" for process in self.processes}
        self.over: dict[str, int] = {}
        """Sessions whose lease is over, and since when."""
        self.values = 0

    def between(self) -> None:
        self.time_ms += self.dice.choice((0, 0, 1, leases.LATE_MS // 2, leases.REAPED_MS // 2))
        for key, row in [*self.rows.items()]:
            ends_ms, over_ms = row.get("ends_ms"), self.over.get(row.get("owner", ""))
            if self._ends(ends_ms, 0.3, leases.LATE_MS) or self._ends(over_ms, 0.2, leases.REAPED_MS):
                del self.rows[key]
        for process, session in self.sessions.items():
            if session not in self.over and self.dice.random() < 0.02:
                self.over[session] = self.time_ms
            elif session in self.over and self.dice.random() < 0.05:
                self.sessions[process] = f"{session}'"

    def _ends(self, due_ms: int | None, likely: float, late_ms: int) -> bool:
        """Tell whether a row whose end has come, or that of its lease, goes now: it may stay for ``late_ms`` more."""
        if due_ms is None or self.time_ms < due_ms:
            return False
        return self.dice.random() < likely or self.time_ms > due_ms + late_ms

    def begin(self, process: int) -> Call:
        dice, session = self.dice.random(), self.sessions[process]
        key = self.dice.choice(("h0", "h1"))
        if dice < 0.4:
            self.values += 1
            bound = self.dice.random() < 0.5
            ttl_ms = self.dice.choice((0, 1, 700) if bound else (1, 400, 900))
            hold = {"value": self.values, "ttl_ms": ttl_ms, "bound": bound, "session": session}
            return Call("hold", key, hold, lambda: self.hold(key, hold), f"{session}/{self.values}")
        if dice < 0.8:
            return Call("look", key, None, lambda: self.look(key))
        session = self.dice.choice([row.get("owner", session) for row in self.rows.values()] or [session])
        return Call("close", session, None, lambda: self.close(session))

    def hold(self, key: str, hold: dict[str, Any]) -> Any:
        session = hold["session"]
        if session in self.over:
            raise Refused("SESSION_EXPIRED")
        self.commit += 1
        if key in self.rows:
            return {"refused": "CONDITION_FAILED", "commit": self.commit}
        self.rows[key] = {"value": hold["value"], "version": self.commit}
        if hold["ttl_ms"]:
            self.rows[key]["ends_ms"] = self.time_ms + hold["ttl_ms"]
        if hold["bound"]:
            self.rows[key]["owner"] = session
        return {"commit": self.commit}

    def look(self, key: str) -> Any:
        return {"at_ms": self.time_ms, "commit": self.commit, **self.rows.get(key, {})}

    def close(self, session: str) -> Any:
        self.commit += 1
        if session not in self.over:
            self.over[session] = self.time_ms
            self.rows = {key: row for key, row in self.rows.items() if row.get("owner") != session}
        elif any(row.get("owner") == session for row in self.rows.values()):
            raise Refused("SESSION_EXPIRED")
        return None


class Calls(Cluster):
    """Sessions of calls in order, some of which were never applied or whose end nobody was told."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sessions = {process: process + 1 for process in self.processes}
        self.numbers = 0
        self.scanned: list[list[int]] = []

    def begin(self, process: int) -> Call:
        # What nobody knows the end of may be applied when its session is over, but not behind calls that follow it.
        if self.dice.random() < 0.2 or self._late:
            self.sessions[process] += 100
        numbers = [self.numbers + 1 + at for at in range(5)]
        self.numbers += 5
        return Call("calls", f"p{process}", [self.sessions[process], numbers], lambda: self.call(numbers))

    def call(self, numbers: list[int]) -> Any:
        told = {}
        for number in numbers:
            applied = self.dice.random() < 0.8
            for _ in range(self.dice.randint(1, 3) if applied else 0):
                self.commit += 1
                self.scanned.append([number, self.commit])
            known = "applied" if applied else "not_applied"
            told[str(number)] = self.dice.choice((known, known, "unknown"))
        return told

    def finish(self) -> None:
        self.note("scan", "n1", self.dice.sample(self.scanned, len(self.scanned)))


class Items(Cluster):
    """Writes of one flow, alone and many at once, in batches and in a store."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.items: list[list[Any]] = []
        self.values = 0

    def begin(self, process: int) -> Call:
        rows = [[self.dice.choice("kl"), self.values + 1 + at] for at in range(self.dice.randint(1, 3))]
        self.values += len(rows)
        return Call("write", "changes", rows, lambda: self.write(rows))

    def write(self, rows: list[list[Any]]) -> Any:
        if self.dice.random() < 0.2:
            raise Refused("OVERLOADED")
        commits = [self.commit + 1 + at for at in range(len(rows))]
        self.commit += len(rows) + self.dice.randint(0, 2)
        self.items += [[*row, commit] for row, commit in zip(rows, commits, strict=True)]
        return commits

    def finish(self) -> None:
        left, number = list(self.items), 0
        while left:
            size, number = self.dice.randint(1, 5), number + 1
            batch = {"etag": f"e{number}", "crc": number, "bytes": size, "items": left[:size]}
            self.note("batch", f"changes/{number}", batch)
            self.note("batch", f"changes/{number}", {name: batch[name] for name in ("etag", "crc", "bytes")})
            left = left[size:]
        newest = {key: [key, value, commit] for key, value, commit in self.items}
        for row in newest.values():
            self.note("stored", "changes", [row])


CLUSTERS: dict[str, type[Cluster]] = {
    "bank": Accounts, "watch": Rows, "leases": Holds, "order": Calls, "flow": Items
}  # fmt: skip


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("workload", CLUSTERS)
def test_a_history_that_came_to_pass_is_valid(workload: str, part: int) -> None:
    for seed in range(part * 10, part * 10 + 10):
        found = workload_of(workload).check(CLUSTERS[workload](seed).run())
        assert [(seed, one.name, one.failures, one.reason) for one in found if one.verdict != "valid"] == []


@pytest.mark.parametrize("part", range(4))
def test_balances_of_an_older_state_are_named_exactly_if_a_later_one_was_known_when_they_were_asked_for(
    part: int,
) -> None:
    named = 0
    for seed in range(part * 25, part * 25 + 25):
        ran = Accounts(seed)
        events, dice = ran.run(), random.Random(seed)
        told = [at for at, one in enumerate(events) if one.f == "balances" and one.value and "asked" not in one.value]
        at = dice.choice(told)
        older = [number for number, (end, _) in ran.then.items() if end <= events[at].value["commit"]]
        if not older:
            continue
        commit, held = ran.then[dice.choice(older)]
        events[at] = msgspec.structs.replace(events[at], value={"commit": commit, "held": held})
        listed = operations(events)
        (read,) = [op for op in listed if op.result is events[at].value]
        places = {name: version - bank.WRITES + 1 for name, version, _ in ran.receipts}
        before = [op for op in listed if op.status == "ok" and (op.returned or 0) < read.invoked and op.f != "balance"]
        is_late = any((places.get(str(op.key)) or op.result["commit"]) > commit for op in before)
        (found,) = [one for one in workload_of("bank").check(events) if one.name.startswith("what begins behind")]
        assert (found.verdict == "invalid") == is_late, seed
        named += is_late
    assert 0 < named < 25
