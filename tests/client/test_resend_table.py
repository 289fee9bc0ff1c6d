"""What a restart makes of each end of an entry that was sent again, and of each refusal of what it asks before.

The table is that of :mod:`oncegate.gateway.client.recovery`; sender, outbox and cluster are fakes that note
what is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

import pytest

from oncegate import (
    Code,
    DeadlineExceeded,
    NeverKnown,
    NotKnownYet,
    OperationFailed,
    OutboxEntry,
    OutboxUnresolved,
    Outcome,
    OutcomeUnknown,
    RequestId,
    Resolution,
    WriteResult,
)
from oncegate.gateway.client.fates import SEALED
from oncegate.gateway.client.outbox_file import Head
from oncegate.gateway.client.recovery import Recovered, hand_over, resend, resume
from oncegate.gateway.wire import Operation
from oncegate.rifl.ids import ClientId, SequenceNumber
from tests.client.test_recovery_table import OTHER, OWNER, Cluster, Outbox

UNKNOWN, STAYS, RAISED = "unknown", "stays", "raised"


def result(sequence: int, *, applied: bool) -> WriteResult:
    return WriteResult(ClientId(OWNER), SequenceNumber(sequence), applied, 10 * sequence, 1, None, True, 0)


def refusal(code: Code, **more: Any) -> OperationFailed:
    return OperationFailed(code, f"why {code}", outcome=Outcome.NOT_APPLIED, **more)


ENDS: list[Any] = [
    True,
    False,
    ValueError("a bug"),
    OutcomeUnknown(Code.TIMEOUT),
    DeadlineExceeded(Code.TIMEOUT, outcome=Outcome.NOT_APPLIED),
    refusal(Code.FENCED),
    refusal(Code.QUOTA, retry_after_ms=5),
    refusal(Code.OVERLOADED, retry_after_ms=0),
    refusal(Code.QUOTA),
    refusal(Code.NOT_FOUND),
    refusal(Code.FORBIDDEN),
    refusal(Code.SESSION_EXPIRED),
    OutcomeUnknown(Code.INTERNAL, "why"),
    refusal(Code.PAYLOAD_MISMATCH),
]
"""Of the sending: a result, applied or not, or a failure."""
TOLD = "applied", "refused", "sealed", "later", "never"
"""Of the question that follows."""


class Case(NamedTuple):
    end: Any
    told: str

    @property
    def becomes(self) -> str:
        """The table."""
        end = self.end
        if isinstance(end, bool):
            return "applied" if end else "refused"
        if not isinstance(end, OperationFailed) or end.code in (Code.TIMEOUT, Code.FENCED):
            return RAISED
        if end.retry_after_ms is not None:
            return RAISED
        if end.code is Code.PAYLOAD_MISMATCH:
            return UNKNOWN
        return {"later": STAYS, "never": UNKNOWN}.get(self.told, self.told)


CASES = [Case(*one) for one in product(ENDS, TOLD)]


class World:
    """A sender, an outbox and a cluster; ``does``: what was done, in order."""

    path = "worker.outbox"

    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases
        self.does: list[tuple[str, int]] = []
        self.entries = [entry_of(number) for number in range(1, len(cases) + 1)]

    def again(self, operation: Operation) -> Any:
        return Waiting(operation.sequence)

    async def resend(self, pendings: list[Any]) -> None:
        for pending in pendings:
            self.does.append(("sent", pending.number))
            end = self.cases[pending.number - 1].end
            if isinstance(end, bool):
                pending.promise.set_result(result(pending.number, applied=end))
            else:
                pending.promise.set_exception(end)

    async def settle(self, request: RequestId, owner: Mapping[str, int], timeout_s: float | None) -> Resolution:
        assert (request.client_id, owner, timeout_s) == (OWNER, {}, None)
        self.does.append(("asked", request.sequence))
        match self.cases[request.sequence - 1].told:
            case "later":
                raise NotKnownYet(Code.FORBIDDEN)
            case "never":
                raise NeverKnown(Code.SESSION_EXPIRED)
            case "sealed":
                return SEALED
            case told:
                return Resolution(told, result(request.sequence, applied=told == "applied"))  # type: ignore[arg-type]

    def resolved(self, request: RequestId, fate: Resolution) -> Resolution:
        self.does.append(("told", request.sequence))
        return fate

    def give_up(self, request: RequestId) -> None:
        assert request.client_id == OWNER
        self.does.append(("given up", request.sequence))

    async def mark(self, entries: Iterable[OutboxEntry]) -> None:
        self.does += [("marked", entry.sequence) for entry in entries]

    async def forget(self, entries: Iterable[OutboxEntry]) -> None:
        self.does += [("forgotten", entry.sequence) for entry in entries]

    async def unknown(self, entry: OutboxEntry) -> None:
        await asyncio.sleep(0)
        self.does.append(("handed", entry.sequence))

    def done(self, what: str) -> list[int]:
        return [number for one, number in self.does if one == what]

    async def run(self, *, hands_over: bool = True) -> list[Recovered]:
        world: Any = self
        return await resend(world, world, world, world, self.entries, self.unknown if hands_over else None)


class Waiting:
    def __init__(self, number: int) -> None:
        self.number = number
        self.promise: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


def entry_of(number: int) -> OutboxEntry:
    operation = Operation(number, op="put", table="t", key="k")
    return OutboxEntry(ClientId(OWNER), SequenceNumber(number), "put", "t", "k", operation, False, 0, None)


def is_true(one: Recovered, case: Case) -> None:
    """What is told of an entry is what became of it."""
    number, became = one.entry.sequence, case.becomes
    if became == "sealed":
        assert one.result is None
        assert one.failure is not None
        assert (one.failure.code, one.failure.detail) == (case.end.code, case.end.detail), "why it was refused"
        assert (one.failure.request_id, one.failure.outcome) == (one.entry.request_id, Outcome.NOT_APPLIED)
        assert one.fate == SEALED
    else:
        assert one.failure is None
        assert one.result == result(number, applied=became == "applied")
        assert one.fate == Resolution(became, one.result)  # type: ignore[arg-type]


async def test_end_of_each_entry_that_is_sent_again_is_as_the_table_says() -> None:
    for case in CASES:
        world = World([case])
        if case.becomes == RAISED:
            with pytest.raises((OperationFailed, ValueError)) as raised:
                await world.run()
            assert raised.value is case.end
            assert world.does == [("sent", 1)], "it stays as it is"
            continue
        recovered = await world.run(hands_over=case.becomes == UNKNOWN)
        assert len(recovered) == (case.becomes not in (UNKNOWN, STAYS))
        for one in recovered:
            is_true(one, case)
        gone = [("handed", 1), ("forgotten", 1), ("given up", 1)]
        assert [one for one in world.does if one in gone] == (gone if case.becomes == UNKNOWN else [])
        asked = not isinstance(case.end, bool) and case.end.code is not Code.PAYLOAD_MISMATCH
        assert bool(world.done("asked")) == asked
        assert bool(world.done("told")) == (asked and case.told in ("applied", "refused", "sealed"))
        assert not world.done("marked")


@pytest.mark.parametrize("hands_over", [True, False])
async def test_each_of_many_entries_ends_as_it_would_alone(hands_over: bool) -> None:
    cases = [case for case in CASES if case.becomes != RAISED]
    world, numbers = World(cases), range(1, len(cases) + 1)
    unknown = [number for number in numbers if cases[number - 1].becomes == UNKNOWN]
    if not hands_over:
        with pytest.raises(OutboxUnresolved) as unresolved:
            await world.run(hands_over=False)
        assert [entry.sequence for entry in unresolved.value.entries] == unknown == world.done("marked")
        assert unresolved.value.path == world.path
        assert not world.done("forgotten")
        assert not world.done("given up")
        return
    recovered = await world.run()
    settled = [number for number in numbers if cases[number - 1].becomes not in (UNKNOWN, STAYS)]
    assert [one.entry.sequence for one in recovered] == settled
    for one in recovered:
        is_true(one, cases[one.entry.sequence - 1])
    assert world.done("handed") == world.done("forgotten") == world.done("given up") == unknown
    for number in unknown:
        assert world.does.index(("handed", number)) + 1 == world.does.index(("forgotten", number))


async def test_entry_whose_handing_over_fails_stays_with_all_behind_it() -> None:
    world: Any = World([])
    entries = [entry_of(number) for number in (1, 2, 3)]

    async def unknown(entry: OutboxEntry) -> None:
        await world.unknown(entry)
        if entry.sequence == 2:
            raise LookupError("the application's")

    with pytest.raises(LookupError):
        await hand_over(world, entries, unknown)
    assert world.does == [("handed", 1), ("forgotten", 1), ("handed", 2)]


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("asked", ["cluster", "take-over", "record"])
async def test_refusal_of_what_a_restart_asks_changes_nothing_unless_it_is_an_answer(asked: str, code: Code) -> None:
    """A token may not be allowed to ask for the cluster; a session may have ended, and a record have gone."""
    answers = {"cluster": [Code.FORBIDDEN]}.get(asked, [Code.SESSION_EXPIRED, Code.NOT_FOUND])
    failure = OperationFailed(code, "why", outcome=Outcome.NOT_APPLIED)

    class Refusing(Cluster):
        async def ask(self, path: str, kind: Any) -> Any:
            if asked == "cluster":
                raise failure
            return await super().ask(path, kind)

        async def perform(self, call: Any) -> Any:
            if asked == "take-over":
                raise failure
            return await super().perform(call)

        async def request(self, client_id: int, sequence: int) -> Any:
            self.asked.append((client_id, sequence))
            raise failure

    of_others = OutboxEntry(ClientId(OTHER), SequenceNumber(9), "put", "t", "k", Operation(9, op="put"), False, 0, None)
    entries = [of_others] if asked == "record" else []
    outbox: Any = Outbox(entries, OWNER)
    outbox.head = Head(client_id=OWNER, cluster="b" * 32 if asked == "cluster" else "")
    handed: list[OutboxEntry] = []
    cluster: Any = Refusing(True, ())
    if code not in answers:
        with pytest.raises(OperationFailed) as raised:
            await resume(cluster, outbox, handed.append)
        assert raised.value is failure
        assert (handed, outbox.forgotten, outbox.cluster) == ([], [], "")
        return
    found = await resume(cluster, outbox, handed.append)
    assert (found.taken is None) == (asked == "take-over")
    assert outbox.cluster == ("b" * 32 if asked == "cluster" else "a" * 32)
    assert handed == outbox.forgotten == entries


@pytest.mark.parametrize("own", ["", "a", "b", "c"])
@pytest.mark.parametrize("here", ["", "a"])
@pytest.mark.parametrize("origin", ["", "b"])
async def test_outbox_goes_on_at_its_own_cluster_or_one_that_was_restored_from_it(
    own: str, here: str, origin: str
) -> None:
    taken: list[Any] = []

    class Named(Cluster):
        async def ask(self, path: str, kind: Any) -> Any:
            return kind(identity=here, origin=origin)

        async def perform(self, call: Any) -> Any:
            taken.append(call)
            return await super().perform(call)

    outbox: Any = Outbox([], OWNER)
    outbox.head = Head(client_id=OWNER, cluster=own)
    cluster: Any = Named(True, ())
    if own and here and own not in (here, origin):
        with pytest.raises(OperationFailed) as refused:
            await resume(cluster, outbox, None)
        assert (refused.value.code, refused.value.outcome) == (Code.CONFLICT, Outcome.NOT_APPLIED)
        assert (taken, outbox.cluster) == ([], ""), "nobody else's session is taken over"
        return
    await resume(cluster, outbox, None)
    assert len(taken) == 1
    assert outbox.cluster == (here or own)
