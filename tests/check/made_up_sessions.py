"""Made-up clusters of holds, calls in order, and items of a flow; see :mod:`tests.check.made_up`."""

from __future__ import annotations

from typing import Any

from oncegate.proof.check.workloads import leases
from tests.check.made_up import Call, Cluster, Refused


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
