"""A bank of two tables: each transfer is one transaction, and balances are read at one commit number.

A transfer takes from one account, gives to another of either table, and writes a receipt, whose version is a commit
number. So the receipts tell in the end in which order all transfers took effect, also those whose outcome no caller has
learnt. From that follows what every answer, refusal and balance must have been: no search is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from oncegate.gateway.client import OncegateError
from oncegate.gateway.client.paths import ROWS, table_path
from oncegate.proof.check.checks import LOST, Findings, acknowledged, refused
from oncegate.proof.check.workload import Worker, Workload, World
from oncegate.proof.check.workloads.rows import versioned
from oncegate.proof.lincheck import Event, Operation, Result, operations

TABLES: Final = ("giro", "savings")
NAMES: Final = ("ann", "bob", "cid")
ACCOUNTS: Final = tuple(f"{table}/{name}" for table in TABLES for name in NAMES)
RECEIPTS: Final = "receipts"
WRITES: Final = 3
"""Writes of a transfer, the receipt the last of them."""
FLOOR: Final = -100
"""No account may hold less; all begin at 0, without a row."""
AMOUNT_MAX: Final = 60
PAGE_ROWS: Final = 2
ROWS_MAX: Final = 1_000
"""Receipts of a page."""


class Bank(Workload):
    """Transfers with an overdraft guard, a floor or a condition, sent under one id to one node after another."""

    name = "bank"
    proves = "a transfer between tables happens as a whole, once, in one order, and overdraws no account"
    table = TABLES[0]
    keys = NAMES
    f = "balance"
    seen = staticmethod(versioned)

    def __init__(self) -> None:
        self._numbers = count(1)

    async def set_up(self, world: World) -> None:
        await super().set_up(world)
        await world.declare(TABLES[1])
        await world.declare(RECEIPTS)

    async def step(self, worker: Worker) -> None:
        dice = worker.random.random()
        if dice < 0.7:
            await self._transfer(worker)
        elif dice < 0.85:
            await self._balances(worker)
        elif dice < 0.95:
            await self.read(worker, worker.random.choice(NAMES))
        else:
            await self._scan(worker)

    async def _transfer(self, worker: Worker) -> None:
        random, receipt = worker.random, f"t{next(self._numbers)}"
        payer, payee = random.sample(ACCOUNTS, 2)
        amount = random.randint(1, AMOUNT_MAX)
        take, give = _increment(payer, -amount), _increment(payee, amount)
        put = {"op": "put", "table": RECEIPTS, "key": receipt, "value": [payer, payee, amount]}
        operation: dict[str, Any] = {"op": "transaction", "writes": [take, give, put]}
        if random.random() < 0.5:
            take["floor"] = FLOOR
        else:
            enough = {"at_least": FLOOR + amount}
            operation["conditions"] = [{"table": take["table"], "key": take["key"], "if": enough}]
        await worker.write(operation, "transfer", put["value"], key=receipt, answer=_done, refused=_stopped)

    async def _balances(self, worker: Worker) -> None:
        node = worker.node()
        recorded = worker.begin("balances", "all", node=node)
        reply = await worker.world.nodes.call(node, "POST", ROWS, _asked())
        if reply.done:
            recorded.ok(_balances_of(reply.body))
        else:
            recorded.fail(reply.code)

    async def _scan(self, worker: Worker) -> None:
        """Scan both tables at one commit number, a few rows a page: of the first page, or of a row.

        A row's version is inside the transfer that wrote it, whose end it means; that may be long ago.
        """
        recorded = worker.begin("balances", "all")
        asked: int | None = None
        held: dict[str, Any] = dict.fromkeys(ACCOUNTS, 0)
        async with worker.world.client(worker.random.randrange(9)) as client:
            try:
                if worker.random.random() < 0.5:
                    row = await client.get(*worker.random.choice(ACCOUNTS).split("/"))
                    asked = None if row is None else row.version
                commit = asked
                for table in worker.random.sample(TABLES, 2):
                    scan = client.rows(table, page_rows=PAGE_ROWS, commit=commit)
                    held |= {f"{table}/{row.key}": row.value async for row in scan}
                    commit = scan.commit
            except OncegateError as failure:
                recorded.fail(failure.code)
                return
        recorded.ok({"commit": commit, "held": held} | ({} if asked is None else {"asked": asked}))

    async def finish(self, world: World) -> None:
        """Read balances and receipts at every node."""
        for node in world.nodes.ids:
            balances = await world.insist("POST", ROWS, _asked(), node=node)
            world.note("balances", "all", _balances_of(balances.body), node=node)
            receipts = list[list[Any]]()
            query: str | None = ""
            while query is not None:
                path = f"{table_path(RECEIPTS)}/rows?limit={ROWS_MAX}{query}"
                page = (await world.insist("GET", path, node=node)).body
                receipts += [[row["key"], row["version"], row["value"]] for row in page["rows"]]
                query = page["page"] and f"&page={page['page']}"
            world.note("receipts", "all", receipts, node=node)

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [_receipts(found), _money(found), _replayed(found), _in_time(found)]


def _increment(account: str, by: int) -> dict[str, Any]:
    table, key = account.split("/")
    return {"op": "increment", "table": table, "key": key, "by": by}


def _asked() -> dict[str, Any]:
    return {"rows": [dict(zip(("table", "key"), account.split("/"), strict=True)) for account in ACCOUNTS]}


def _balances_of(read: Mapping[str, Any]) -> dict[str, Any]:
    held = [0 if row is None else row["value"] for row in read["rows"]]
    return {"commit": read["commit"], "held": dict(zip(ACCOUNTS, held, strict=True))}


def _done(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"commit": result["commit"], "held": [one.get("value") for one in result.get("writes", ())[:2]]}


def _stopped(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"refused": result.get("code"), "commit": result["commit"]}


def _transfers(found: Sequence[Operation]) -> dict[str, Operation]:
    return {str(op.key): op for op in found if op.f == "transfer"}


def _reads(found: Sequence[Operation], f: str) -> list[Operation]:
    return [op for op in found if op.f == f and op.status == "ok"]


def _effects(found: Sequence[Operation]) -> list[tuple[int, Operation]]:
    """Return the transfers that took effect, each with its first commit number."""
    sent, reads = _transfers(found), _reads(found, "receipts")
    receipts = reads[0].result if reads else ()
    return [(version - WRITES + 1, sent[key]) for key, version, _ in receipts if key in sent]


def _placed(found: Sequence[Operation]) -> list[tuple[int, Operation]]:
    """Return transfers that took effect, refusals and reads, each with its place among the commit numbers."""
    stopped = [op for op in _transfers(found).values() if op.status == "ok" and refused(op)]
    told = [(op.result["commit"], op) for op in [*stopped, *_reads(found, "balances")]]
    return [*_effects(found), *told, *((op.result["version"], op) for op in _reads(found, "balance"))]


def _receipts(found: Sequence[Operation]) -> Result:
    """Check that whoever was acknowledged has a receipt, and nobody else, by what every node tells in the end."""
    findings = Findings(LOST)
    sent, reads = _transfers(found), _reads(found, "receipts")
    findings.saw("all", len(sent))
    for read in reads:
        there = {key: (version, moved) for key, version, moved in read.result}
        for key, (version, moved) in there.items():
            op = sent.get(key)
            if op is None or moved != op.argument:
                findings.violated(key, f"the receipt {key} says {moved}, and nobody sent that", [read])
            elif refused(op):
                findings.violated(key, f"{key} was refused and has a receipt at {read.node}", [op, read])
            elif op.status == "ok" and op.result["commit"] != version:
                words = f"{key} was acknowledged at {op.result['commit']}, its receipt says {version}"
                findings.violated(key, words, [op, read])
        for key, op in sent.items():
            if acknowledged(op) and key not in there:
                findings.violated(key, f"{key} was acknowledged and has no receipt at {read.node}", [op, read])
    if not reads:
        findings.undecided("the receipts were not read")
    return findings.result()


def _money(found: Sequence[Operation]) -> Result:
    """Check the sum and the smallest of all balances in every read of them."""
    findings = Findings("money is neither made nor lost, and no account is overdrawn")
    for op in _reads(found, "balances"):
        findings.saw(op.key)
        held = op.result["held"].values()
        if sum(held) or min(held) < FLOOR:
            words = f"the balances at {op.result['commit']} come to {sum(held)}, the smallest is {min(held)}"
            findings.violated(op.key, words, [op])
    return findings.result()


def _replayed(found: Sequence[Operation]) -> Result:
    """Do the transfers again in their order, and hold every answer and every read against the balances then."""
    findings = Findings("every balance, answer and refusal is what the transfers before it come to")
    held = dict.fromkeys(ACCOUNTS, 0)
    for at, op in sorted(_placed(found), key=lambda one: (one[0], one[1].f != "transfer")):
        findings.saw(op.key)
        if op.f == "balances" and op.result["held"] != held:
            findings.violated(op.key, f"the balances at {at} are {op.result['held']}, the transfers say {held}", [op])
        elif op.f == "balance" and op.result.get("value", 0) != held[f"{TABLES[0]}/{op.key}"]:
            findings.violated(op.key, f"{op.key} was read as {op.result}, the transfers say {held}", [op])
        elif op.f == "transfer":
            payer, payee, amount = op.argument
            enough = held[payer] - amount >= FLOOR
            if refused(op):
                if enough:
                    findings.violated(op.key, f"{op.key} was refused at {at}, but {payer} has {held[payer]}", [op])
                continue
            if not enough:
                findings.violated(op.key, f"{op.key} takes {amount} from {payer}, which has {held[payer]}", [op])
            held[payer] -= amount
            held[payee] += amount
            if op.status == "ok" and op.result["held"] != [held[payer], held[payee]]:
                words = f"{op.key} was answered {op.result['held']}, and made it {[held[payer], held[payee]]}"
                findings.violated(op.key, words, [op])
    return findings.result()


def _in_time(found: Sequence[Operation]) -> Result:
    """Check that what had ended before an operation began comes before it in the commit order.

    Balances that were asked for at a number are those at the end of the transfer with that number, however old it is.
    """
    findings = Findings("what begins behind an acknowledged transfer or read is not before it")
    placed = _placed(found)
    done = [one for one in placed if one[1].status == "ok" and one[1].f != "balance"]
    ended = sorted(done, key=lambda one: one[1].returned or 0)
    newest: dict[str, tuple[int, Operation]] = {}
    at = 0
    for place, op in sorted(placed, key=lambda one: one[1].invoked):
        findings.saw(op.key)
        while at < len(ended) and (ended[at][1].returned or 0) < op.invoked:
            for account in _touched(ended[at][1]):
                newest[account] = max(newest.get(account, ended[at]), ended[at], key=lambda one: one[0])
            at += 1
        if op.f == "balances" and "asked" in op.result:
            if not op.result["asked"] <= place < op.result["asked"] + WRITES:
                words = f"{op.f} {op.key} asked for at {op.result['asked']}, which is inside a transfer, are at {place}"
                findings.violated(op.key, words, [op])
            continue
        before = newest.get(f"{TABLES[0]}/{op.key}" if op.f == "balance" else "any")
        if before is not None and (place < before[0] or (place == before[0] and op.f == "transfer")):
            words = f"{op.f} {op.key} is at {place}, behind {before[1].f} {before[1].key} at {before[0]}"
            findings.violated(op.key, f"{words}, which had ended before it began", [before[1], op])
    return findings.result()


def _touched(op: Operation) -> list[str]:
    """Return the accounts whose version an operation has moved, and ``any``, which stands for the commit number."""
    return ["any", *op.argument[:2]] if op.f == "transfer" and not refused(op) else ["any"]
