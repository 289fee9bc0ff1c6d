"""What the routes of sessions tell, against a dictionary of what every session did, at a node that is behind its log.

Each answer reflects everything that was committed before it was asked for, is about the asker's own sessions alone, and
its pages put together are the whole.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from oncegate.gateway import wire
from oncegate.gateway.http.identity import Identity, Scope
from oncegate.gateway.http.routes import sessions
from oncegate.gateway.machine import commands as c
from oncegate.rifl import session
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.rifl.errors import Code
from tests.gateway.lagging_node import LaggingNode, refusal, told

ANN, BOB = (Identity(name, name, frozenset(Scope)) for name in ("ann", "bob"))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333{}-01"
LEASES_MS = (20_000_000, 50_000_000, 80_000_000)
SEALED, EXECUTED = "sealed", "executed"
# Numbers of every kind are plain ones here.
operate: Any = c.Operate
range_of: Any = c.Range


@dataclass
class Owned:
    """A session as its tenant knows it; ``done``: by first number the last one, what became of them, commit, trace."""

    owner: Identity
    number: int
    nonce: str
    lease_ms: int
    window: int
    ends_ms: int
    epoch: int = 1
    first_incomplete: int = 1
    highest: int = 0
    done: dict[int, tuple[int, str, int | None, str]] = field(default_factory=dict)

    @property
    def client_id(self) -> str:
        return f"{self.number:016x}"

    def runs(self) -> list[dict[str, Any]]:
        found, at = list[dict[str, Any]](), self.first_incomplete
        for first, (last, state, commit, trace) in sorted(self.done.items()):
            if at < first:
                found.append({"first": at, "last": first - 1, "state": "never_seen"})
            more = {"commit": commit, "traceparent": trace} if state == EXECUTED else {}
            shown = {"first": first, "last": last, "state": state, **more}
            found.append({name: value for name, value in shown.items() if value})
            at = last + 1
        return found


class Clients:
    """Clients of two tenants: what they do is committed elsewhere, and this node is told of it later."""

    def __init__(self, seed: int) -> None:
        self.dice, self.node = random.Random(seed), LaggingNode()
        self.live = dict[int, Owned]()
        self.given_out = self.commit = self.now_ms = 0
        self.node.commit(c.DeclareTable("rows", "resident", 1 << 30), c.DeclareTable("events", "stream", 1 << 30))

    def some(self) -> Owned:
        return self.live[self.dice.choice(sorted(self.live))]

    async def open(self) -> None:
        dice, owner = self.dice, self.dice.choice((ANN, BOB))
        again = [one for one in self.live.values() if one.owner is owner]
        known = dice.choice(again) if again and dice.random() < 0.2 else None
        nonce = known.nonce if known else f"n{dice.random()}"
        lease_ms, window = dice.choice(LEASES_MS), dice.randint(60, 4_000)
        sent = {"nonce": nonce, "lease_ms": lease_ms, "window": window}
        answered = await told(sessions.open_session, self.node, sent, identity=owner)
        if known is None:
            self.given_out += 1
            known = Owned(owner, self.given_out, nonce, lease_ms, window, self.now_ms + lease_ms)
            self.live[self.given_out] = known
            assert answered.status == 201
        else:
            known.ends_ms = max(known.ends_ms, self.now_ms + known.lease_ms)
            assert answered.status == 200, "it was there before"
        terms = {"lease_ms": known.lease_ms, "window": known.window}
        assert answered.body == {"client_id": known.client_id, "epoch": known.epoch, **terms}

    def operate(self) -> None:
        """Put a row, run a transaction or a range, or find a number sealed; sometimes beyond a gap."""
        one, dice = self.some(), self.dice
        first = one.highest + dice.choice((1, 1, 1, 2, 4))
        trace = dice.choice(("", TRACE.format(dice.randint(1, 9))))
        count = kept = 1
        command: Any
        kind = dice.randrange(4)
        if kind == 0:
            command = c.Resolve(one.number, first, tenant=one.owner.tenant)  # type: ignore[arg-type]
        elif kind == 1:
            count = kept = dice.randint(1, 4)
            prints = bytes(count * FINGERPRINT_BYTES)
            columns = prints, b"", one.owner.tenant, trace
            command = range_of(one.number, one.epoch, one.first_incomplete, "events", first, *columns)
        else:
            ops: list[Any] = [c.Op(first, int(c.OpKind.PUT), "rows", f"k{at}", at, b"1") for at in range(kind)]  # type: ignore[arg-type]
            kept = len(ops)
            made: Any = ops[0] if kind == 2 and dice.random() < 0.5 else c.Transaction(first, 7, [], ops)  # type: ignore[arg-type]
            kept = 1 if made is ops[0] else kept
            command = operate(one.number, one.epoch, one.first_incomplete, [made], one.owner.tenant, trace)
        self.node.commit(command)
        last = first + count - 1
        one.highest = last
        if kind == 0:
            one.done[first] = last, SEALED, None, ""
            return
        begun, self.commit = self.commit + 1, self.commit + kept
        # A transaction is told under its last number, a range under that of its first row.
        one.done[first] = last, EXECUTED, begun if kind == 1 else self.commit, trace
        one.ends_ms = max(one.ends_ms, self.now_ms + one.lease_ms)

    def acknowledge(self) -> None:
        one = self.some()
        ends = [1, *(last + 1 for last, *_ in one.done.values())]
        upto = max(one.first_incomplete, self.dice.choice(ends))
        first = one.highest + 1
        op = c.Op(first, int(c.OpKind.PUT), "rows", "a", 1, b"1")  # type: ignore[arg-type]
        self.node.commit(operate(one.number, one.epoch, upto, [op], one.owner.tenant))
        self.commit += 1
        one.first_incomplete, one.highest = upto, first
        one.done = {at: what for at, what in one.done.items() if at >= upto}
        one.done[first] = first, EXECUTED, self.commit, ""
        one.ends_ms = max(one.ends_ms, self.now_ms + one.lease_ms)

    def wait(self) -> None:
        ms = self.dice.randint(1, 50)
        self.node.commit(after_ms=ms)
        self.now_ms += ms

    async def hand_over(self) -> None:
        one = self.some()
        path: Any = {"identity": one.owner, "client_id": one.client_id}
        if self.dice.random() < 0.5:
            one.epoch, one.nonce = one.epoch + 1, f"n{self.dice.random()}"
            taken = await told(sessions.take_over, self.node, {"nonce": one.nonce}, **path)
            where = {"first_incomplete": one.first_incomplete, "highest_sequence": one.highest}
            assert taken.body == {"epoch": one.epoch, **where}
        else:
            renewed = await told(sessions.renew, self.node, {"epoch": one.epoch}, **path)
            assert renewed.body == {"lease_ms_left": one.lease_ms}
        one.ends_ms = max(one.ends_ms, self.now_ms + one.lease_ms)

    async def close(self) -> None:
        if len(self.live) < 3:
            return
        one = self.some()
        path: Any = {"identity": one.owner, "client_id": one.client_id}
        closed = await told(sessions.close, self.node, query=f"epoch={one.epoch}", **path)
        assert (closed.status, closed.body, closed.headers[wire.H_COMMIT]) == (204, None, str(self.commit))
        del self.live[one.number]

    def state_of(self, one: Owned) -> dict[str, Any]:
        return {
            "epoch": one.epoch,
            "lease_ms_left": one.ends_ms - self.now_ms,
            "first_incomplete": one.first_incomplete,
            "highest_sequence": one.highest,
            "records": len(one.done),
        }

    async def look(self) -> None:
        kind = self.dice.randrange(3)
        if kind == 0:
            await self.look_at_all(self.dice.choice((ANN, BOB)))
            return
        one = self.some()
        path: Any = {"identity": one.owner, "client_id": one.client_id}
        if kind == 1:
            shown = await told(sessions.describe, self.node, **path)
            assert shown.body == self.state_of(one)
            assert shown.headers[wire.H_MEMORY_MS] == str(shown.body["lease_ms_left"])
            return
        limit, after, found = self.dice.choice((1, 2, 3, 100)), 0, list[Any]()
        while True:
            page = await told(sessions.open_requests, self.node, query=f"after={after}&limit={limit}", **path)
            found += page.body["requests"]
            assert page.body["requests"] or not after, "something follows wherever a page says so"
            if page.body["next"] is None:
                break
            assert len(page.body["requests"]) == limit
            after = page.body["next"]
        assert found == one.runs()

    async def look_at_all(self, owner: Identity) -> None:
        limit, least = self.dice.choice((1, 2, 100)), self.dice.choice((0, 1, 2, 3))
        found, after = list[Any](), ""
        while True:
            query = f"limit={limit}&records_min={least}{after}"
            page = await told(sessions.list_own, self.node, identity=owner, query=query)
            assert len(page.body["sessions"]) <= limit
            found += page.body["sessions"]
            if page.body["next"] is None:
                break
            after = f"&after={page.body['next']}"
        own = [one for _, one in sorted(self.live.items()) if one.owner is owner and len(one.done) >= least]
        terms = [{"client_id": one.client_id, "window": one.window, "lease_ms": one.lease_ms} for one in own]
        assert found == [{**self.state_of(one), **more} for one, more in zip(own, terms, strict=True)]

    async def ask_about_others(self) -> None:
        """Whose session it is, and what was given out, says the log; nothing of another tenant's is told."""
        one = self.some()
        other = BOB if one.owner is ANN else ANN
        for handler, body in (
            (sessions.describe, None),
            (sessions.open_requests, None),
            (sessions.renew, {"epoch": one.epoch}),
            (sessions.take_over, {"nonce": "mine"}),
        ):
            refused = await refusal(handler, self.node, body, identity=other, client_id=one.client_id)
            assert refused.code is Code.FORBIDDEN
        for number in range(1, self.given_out + 3):
            if number not in self.live:
                refused = await refusal(sessions.describe, self.node, identity=ANN, client_id=f"{number:016x}")
                assert refused.code is (Code.SESSION_EXPIRED if number <= self.given_out else Code.NOT_FOUND)


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_told_of_sessions_is_all_that_was_committed_of_the_askers_own(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(session, "LOOKS_MAX", 3)  # pages end early, where others' sessions lie between
    clients = Clients(seed)
    await clients.open()
    rare = (clients.open, clients.wait, clients.acknowledge, clients.hand_over, clients.close, clients.ask_about_others)
    for _ in range(160):
        act = clients.dice.choice((*rare, *[clients.operate] * 4, *[clients.look] * 4))
        doing = act()
        if doing is not None:
            await doing


@pytest.mark.parametrize("tenant_max", [2, 3, 100])
async def test_a_session_beyond_the_bounds_is_refused_without_an_entry_and_one_that_is_known_is_found(
    tenant_max: int,
) -> None:
    """A tenant may have what the setting says, and at most as many as it leaves free of those of all."""
    node = LaggingNode(sessions_max=8, tenant_sessions_max=tenant_max)
    node.commit(after_ms=500)
    for number in range(most := min(tenant_max, 4)):
        sent = {"nonce": f"n{number}", "lease_ms": 30_000}
        assert (await told(sessions.open_session, node, sent, identity=ANN)).status == 201
        node.commit(after_ms=1_000)
        node.catch_up()
    refused = await refusal(sessions.open_session, node, {"nonce": "more", "lease_ms": 30_000}, identity=ANN)
    assert (refused.code, len(node.ordered)) == (Code.QUOTA, most)
    # The first lease ends first, 30 s after it began: a second passes with each session, and ends are found in steps.
    assert refused.retry_after_ms is not None
    assert 0 <= refused.retry_after_ms - (30_000 - 1_000 * most) <= 1_000
    again = await told(sessions.open_session, node, {"nonce": "n0"}, identity=ANN)
    assert (again.status, again.body["client_id"]) == (200, f"{1:016x}")
    node.commit(after_ms=29_500)
    node.catch_up()
    late = await refusal(sessions.open_session, node, {"nonce": "late"}, identity=ANN)
    assert late.retry_after_ms is not None
    assert late.retry_after_ms >= 1_000, "not sooner than an end of a lease is noticed"
    assert (await told(sessions.open_session, node, {"nonce": "n0"}, identity=BOB)).status == 201
