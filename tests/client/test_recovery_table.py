"""Each entry of an outbox is settled as the table of :mod:`oncegate.gateway.client.recovery` says, in each case."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from oncegate import Client, Code, OperationFailed, OutboxEntry, OutboxUnresolved, Outcome, Session, WriteResult
from oncegate.gateway.client.fates import SEALED
from oncegate.gateway.client.outbox_file import Head, OutboxFile
from oncegate.gateway.client.recovery import resume
from oncegate.gateway.client.results import RequestState, Resolution
from oncegate.gateway.wire import Operation, SessionTaken
from oncegate.rifl.ids import ClientId, SequenceNumber
from oncegate.testing import FakeGateway

OWNER, OTHER, ACKNOWLEDGED_BELOW = 7, 6, 5


class Case(NamedTuple):
    """All that the table looks at of an entry."""

    client_id: int
    sequence: int
    doubted: bool
    fate: Resolution | None
    readable: bool
    """Whether the cluster can still read its record."""


def result(client_id: int, sequence: int) -> WriteResult:
    return WriteResult(
        ClientId(client_id), SequenceNumber(sequence), True, 10 * sequence, 10 * sequence, None, False, 0
    )


def cases(*, lives: bool) -> list[Case]:
    sessions, numbers = (OWNER, OTHER), (ACKNOWLEDGED_BELOW - 1, ACKNOWLEDGED_BELOW, ACKNOWLEDGED_BELOW + 1)
    fates = (None, SEALED, Resolution("applied", result(OWNER, 1)))
    every = map(Case._make, product(sessions, numbers, (False, True), fates, (False, True)))
    # The records of the session that lives are not asked for.
    return [case for case in every if case.readable or not (lives and case.client_id == OWNER)]


def expected(case: Case, *, lives: bool) -> str:
    """The table: the entry is sent again, dropped, unknown, or recovered with a result or with an error."""
    if case.fate is not None:
        return "recovered: it is not applied" if case.fate.result is None else "recovered: its result"
    if not lives or case.client_id != OWNER:
        return "recovered: its result" if case.readable else "unknown"
    if case.sequence >= ACKNOWLEDGED_BELOW:
        return "again"
    return "unknown" if case.doubted else "dropped"


class Cluster:
    """Answers what a recovery asks."""

    headers: dict[str, str] = {}  # noqa: RUF012 - never changed

    def __init__(self, lives: bool, readable: Iterable[tuple[int, int]]) -> None:
        self._lives, self._readable = lives, set(readable)
        self.asked: list[tuple[int, int]] = []

    def deadline(self) -> float:
        return 0.0

    async def ask(self, path: str, kind: Any) -> Any:
        return kind(identity="a" * 32)

    async def perform(self, call: Any) -> SessionTaken:
        if not self._lives:
            raise OperationFailed(Code.SESSION_EXPIRED, "it has ended")
        call.sent_at, call.commit = 3.0, 400
        return SessionTaken(2, ACKNOWLEDGED_BELOW, ACKNOWLEDGED_BELOW + 1)

    async def request(self, client_id: int, sequence: int) -> RequestState:
        self.asked.append((client_id, sequence))
        if (client_id, sequence) in self._readable:
            return RequestState("applied", result(client_id, sequence))
        if sequence % 2:
            return RequestState("expired")
        raise OperationFailed(Code.SESSION_EXPIRED, "its record has gone")


class Outbox:
    """Entries, and what becomes of them."""

    path = "worker.outbox"

    def __init__(self, entries: list[OutboxEntry], owner: int) -> None:
        self.entries, self.head = entries, Head(client_id=owner)
        self.forgotten: list[OutboxEntry] = []
        self.cluster = ""

    async def forget(self, entries: Iterable[OutboxEntry]) -> None:
        self.forgotten += entries

    async def belong(self, cluster: str) -> None:
        self.cluster = cluster


def entry_of(case: Case) -> OutboxEntry:
    operation = Operation(1, op="put", table="t", key="k")
    names = ClientId(case.client_id), SequenceNumber(case.sequence)
    return OutboxEntry(*names, "put", "t", "k", operation, case.doubted, 0, case.fate)


@pytest.mark.parametrize("lives", [False, True])
async def test_each_entry_is_settled_as_the_table_says(lives: bool) -> None:
    for case in cases(lives=lives):
        entry, cluster = entry_of(case), Cluster(lives, [case[:2]] if case.readable else [])
        outbox: Any = Outbox([entry], OWNER)
        handed: list[OutboxEntry] = []
        found = await resume(cluster, outbox, handed.append)  # type: ignore[arg-type]
        became = "again" if found.again else "unknown" if handed else "dropped"
        for one in found.recovered:
            became = "recovered: its result" if one.result is not None else "recovered: it is not applied"
            assert one.entry is entry
            assert one.result is None or one.result.sequence == (case.sequence if case.fate is None else 1)
            assert one.failure is None or one.failure.outcome is Outcome.NOT_APPLIED
        assert became == expected(case, lives=lives), case
        assert outbox.forgotten == ([] if became == "again" else [entry]), case
        assert outbox.cluster == "a" * 32
        assert (found.sent_at, found.commit) == ((3.0, 400) if lives else (0.0, 0))


@pytest.mark.parametrize("lives", [False, True])
async def test_without_anybody_to_be_told_of_what_is_unknown_nothing_leaves_the_outbox(lives: bool) -> None:
    some = cases(lives=lives)
    entries = [entry_of(case) for case in some]
    unknown = [one for one, case in zip(entries, some, strict=True) if expected(case, lives=lives) == "unknown"]
    outbox: Any = Outbox(entries, OWNER)
    cluster: Any = Cluster(lives, [])
    # One number stands for several cases here; what can be read is said entry by entry.
    asked = iter([case for case in some if case.fate is None and (not lives or case.client_id != OWNER)])

    async def request(client_id: int, sequence: int) -> RequestState:
        case = next(asked)
        assert case[:2] == (client_id, sequence)
        return RequestState("applied", result(*case[:2])) if case.readable else RequestState("expired")

    cluster.request = request
    with pytest.raises(OutboxUnresolved) as refused:
        await resume(cluster, outbox, None)
    assert refused.value.entries == unknown
    assert (outbox.forgotten, outbox.cluster) == ([], "")


async def test_no_session_is_asked_for_before_its_nonce_is_on_disk(tmp_path: Path) -> None:
    """A process that is killed in between opens the same one again."""
    path, seen = tmp_path / "worker.outbox", list[SimpleNamespace]()
    async with FakeGateway() as fake:

        async def look(request: web.Request) -> web.StreamResponse | None:
            if request.method == "POST" and request.path == "/v1/sessions":
                file = OutboxFile(path, read_only=True)
                seen.append(SimpleNamespace(asked=await request.json(), head=file.head))
                file.close()
            return None

        fake.nodes[0].before = look
        async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
            assert isinstance(session, Session)
    (one,) = seen
    assert one.asked["nonce"] == one.head.nonce != ""
    assert one.head.client_id == 0
