"""What the fake gateway knows: sessions, rows and records in dictionaries, under the real apply rule.

Owns: the semantics of :mod:`oncegate.gateway.testing.cluster`. Pure; must not know HTTP.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, Final

import msgspec

from oncegate.gateway import wire
from oncegate.rifl.completion import RangeRecord
from oncegate.rifl.errors import REGISTRY, Code, OncegateError
from oncegate.rifl.ids import (
    LEASE_MS_DEFAULT,
    WINDOW_DEFAULT,
    CommitNumber,
    Fingerprint,
    SequenceNumber,
    format_client_id,
    parse_client_id,
)
from oncegate.rifl.range_rule import RefusedPart, ReplayPart, decide_range
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Refusal, Replay, Standing, decide

_CANONICAL: Final = msgspec.json.Encoder(order="deterministic")


class Applied(msgspec.Struct):
    """One execution, in the order in which it happened: what a test counts."""

    client_id: int
    sequence: int
    op: str
    table: str
    key: str
    value: Any
    commit: int


class _Remembered(msgspec.Struct):
    """A completion record's result."""

    verdict: wire.OperationResult

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return 64


class FakeSession(msgspec.Struct):
    """One session; ``live`` is False once its lease was ended by hand, ``ends_ms`` is when it ends by itself."""

    client_id: int
    epoch: int
    lease_ms: int
    window: int
    tracker: ResultTracker
    live: bool = True
    nonce: str = ""
    sealed: set[int] = msgspec.field(default_factory=set)
    ends_ms: int = 0


class FakeState:
    """State shared by all nodes of a fake gateway.

    Attributes:
        executed: every execution in order; a write that a bug applied twice stands there twice.
        rows: ``(table, key)`` to ``(value, version)``.
        tables: name to kind.
        memory_ms: what answers promise of a session's memory; the session's lease if None.
        commit: the newest commit number.
        renewals: renewals so far.
        time_ms: cluster time; it stands still unless :meth:`advance` moves it.
    """

    def __init__(self) -> None:
        self.executed: list[Applied] = []
        self.rows: dict[tuple[str, str], tuple[Any, int]] = {}
        self.tables: dict[str, str] = {}
        self.flows: dict[str, str] = {}
        self.sessions: dict[int, FakeSession] = {}
        self.memory_ms: int | None = None
        self.commit = 0
        self.renewals = 0
        self.time_ms = 0
        self._nonces: dict[str, int] = {}
        self._client_ids = itertools.count(1234)

    def expire(self, client_id: int) -> None:
        """End a session's lease: its records stay, new operations are refused."""
        self.sessions[client_id].live = False

    def advance(self, seconds: float) -> None:
        """Move cluster time on: leases that nothing renewed meanwhile end."""
        self.time_ms += int(seconds * 1000)

    def open(self, body: wire.OpenSession) -> tuple[wire.SessionOpened, bool]:
        """Open a session, or return the one of this nonce and False."""
        known = self._nonces.get(body.nonce)
        if known is None:
            window = body.window or WINDOW_DEFAULT
            session = FakeSession(
                next(self._client_ids), 1, body.lease_ms or LEASE_MS_DEFAULT, window, ResultTracker(window=window)
            )
            session.nonce = body.nonce
            session.ends_ms = self.time_ms + session.lease_ms
            self._nonces[body.nonce] = session.client_id
            self.sessions[session.client_id] = session
        else:
            session = self.sessions[known]
        written = format_client_id(session.client_id)
        return wire.SessionOpened(written, session.epoch, session.lease_ms, session.window), known is None

    def session(self, client_id: str) -> FakeSession:
        """Return a live session; raises SESSION_EXPIRED."""
        session = self.sessions.get(parse_client_id(client_id))
        if session is None or not self._lives(session):
            raise OncegateError(Code.SESSION_EXPIRED)
        return session

    def renew(self, client_id: str, epoch: int) -> wire.SessionRenewed:
        """Renew a lease."""
        session = self.session(client_id)
        if epoch < session.epoch:
            raise OncegateError(Code.FENCED)
        self.renewals += 1
        session.ends_ms = self.time_ms + session.lease_ms
        return wire.SessionRenewed(session.lease_ms)

    def _lives(self, session: FakeSession) -> bool:
        return session.live and session.ends_ms >= self.time_ms

    def _standing(self, session: FakeSession, epoch: int) -> Standing:
        if epoch != session.epoch:
            return Standing.FENCED
        if not self._lives(session):
            return Standing.ENDED
        session.ends_ms = self.time_ms + session.lease_ms
        return Standing.LIVE

    def take_over(self, client_id: str, nonce: str) -> wire.SessionTaken:
        """Give a session to a new owner; a new nonce raises the epoch."""
        session = self.session(client_id)
        if session.nonce != nonce:
            session.nonce = nonce
            session.epoch += 1
        session.ends_ms = self.time_ms + session.lease_ms
        return wire.SessionTaken(session.epoch, session.tracker.first_incomplete, session.tracker.highest)

    def kind(self, table: str) -> str:
        """Return a table's kind; raises NOT_FOUND."""
        if table not in self.tables:
            raise OncegateError(Code.NOT_FOUND, "no such table")
        return self.tables[table]

    def operate(self, request: wire.OperationsRequest) -> wire.OperationsResponse:
        """Apply operations, each with its verdict."""
        session = self.sessions.get(parse_client_id(request.client_id))
        if session is None:
            refusals = [_rejected(operation.sequence, Code.SESSION_EXPIRED) for operation in request.operations]
            return wire.OperationsResponse(refusals, 0)
        verdicts = [
            self._apply(session, request.epoch, request.first_incomplete, operation) for operation in request.operations
        ]
        session.tracker.acknowledge(SequenceNumber(request.first_incomplete))
        return wire.OperationsResponse(verdicts, self._memory_ms(session))

    def _apply(
        self, session: FakeSession, epoch: int, first_incomplete: int, operation: wire.Operation
    ) -> wire.OperationResult:
        fingerprint = _fingerprint(
            operation.op, operation.table, operation.key, operation.value, operation.by, operation.if_, operation.item
        )
        stand = self._standing(session, epoch)
        if operation.sequence in session.sealed and stand is not Standing.FENCED:
            return _rejected(operation.sequence, Code.STALE)
        sequence, ack = SequenceNumber(operation.sequence), SequenceNumber(first_incomplete)
        verdict = decide(session.tracker, sequence, ack, fingerprint, stand)
        if isinstance(verdict, Replay):
            record = verdict.record
            result: _Remembered | None = record.result
            if result is None:  # recorded as part of a range
                return wire.OperationResult(
                    operation.sequence, "applied", commit=record.commit, version=record.commit, replayed=True
                )
            return msgspec.structs.replace(result.verdict, replayed=True)
        if isinstance(verdict, Refusal):
            return _rejected(operation.sequence, verdict.code)
        if operation.table not in self.tables:
            return _rejected(operation.sequence, Code.NOT_FOUND)
        answer = self._execute(session, operation)
        session.tracker.record(sequence, fingerprint, CommitNumber(self.commit), _Remembered(answer))
        return answer

    def _execute(self, session: FakeSession, operation: wire.Operation) -> wire.OperationResult:
        self.commit += 1
        row = (operation.table, operation.key)
        value, version = self.rows.get(row, (None, 0))
        condition = operation.if_ if isinstance(operation.if_, dict) else {}
        if (
            ("absent" in condition and version)
            or ("version" in condition and condition["version"] != version)
            or ("value" in condition and (not version or condition["value"] != value))
        ):
            return wire.OperationResult(
                operation.sequence,
                "refused",
                commit=self.commit,
                version=version,
                value=value,
                replayed=False,
                code="CONDITION_FAILED",
            )
        if operation.op == "get":
            told = value if version else msgspec.UNSET
            return wire.OperationResult(
                operation.sequence,
                "applied",
                commit=self.commit,
                version=version or msgspec.UNSET,
                value=told,
                replayed=False,
            )
        summed: Any = msgspec.UNSET
        if operation.op == "delete":
            self.rows.pop(row, None)
        elif operation.op == "increment":
            by = 1 if operation.by is msgspec.UNSET else operation.by
            summed = (value or 0) + by
            self.rows[row] = (summed, self.commit)
        elif operation.op == "append":
            self.rows[row] = ([*(value or ()), operation.item], self.commit)
        else:
            self.rows[row] = (operation.value, self.commit)
        written = operation.item if operation.op == "append" else operation.value
        self._note(session, operation.sequence, operation.op, operation.table, operation.key, written)
        return wire.OperationResult(
            operation.sequence, "applied", commit=self.commit, version=self.commit, value=summed, replayed=False
        )

    def put_range(
        self, table: str, client_id: str, epoch: int, first: int, first_incomplete: int, body: wire.RangeBody
    ) -> wire.RangeResponse:
        """Apply a range; raises what refuses it as a whole."""
        session = self.session(client_id)
        if self.kind(table) != "stream":
            raise OncegateError(Code.BAD_REQUEST, "ranges go to stream tables")
        values = [msgspec.json.decode(text) for text in body.values]
        prints = b"".join(
            _fingerprint("put", table, key, value, None, None, None).to_bytes(8, "big")
            for key, value in zip(body.keys, values, strict=True)
        )
        stand = self._standing(session, epoch)
        results: list[wire.RangeResult] = []
        for part in decide_range(session.tracker, first, prints, first_incomplete, stand):
            low, high = part.first - first, part.last - first + 1
            if isinstance(part, ReplayPart):
                results.append(wire.RangeResult(part.first, part.last, "applied", part.commit, replayed=True))
            elif isinstance(part, RefusedPart):
                traits = REGISTRY[part.refusal.code]
                results.append(
                    wire.RangeResult(
                        part.first,
                        part.last,
                        "rejected",
                        code=part.refusal.code,
                        outcome=traits.outcome,
                        retryable=traits.retryable,
                    )
                )
            else:
                commit = self.commit + 1
                for offset in range(low, high):
                    self.commit += 1
                    self.rows[table, body.keys[offset]] = (values[offset], self.commit)
                    self._note(session, first + offset, "put", table, body.keys[offset], values[offset])
                record = RangeRecord(part.first, part.last, CommitNumber(commit), prints[low * 8 : high * 8])
                session.tracker.record_range(record)
                results.append(wire.RangeResult(part.first, part.last, "applied", commit, replayed=False))
        session.tracker.acknowledge(SequenceNumber(first_incomplete))
        return wire.RangeResponse(results, self._memory_ms(session))

    def request(self, client_id: int, sequence: int) -> wire.RequestState:
        """Say what is remembered of a request id."""
        session = self.sessions.get(client_id)
        if session is None:
            return wire.RequestState("expired")
        if sequence < session.tracker.first_incomplete:
            return wire.RequestState("acknowledged")
        record = session.tracker.find(sequence)
        if record is None:
            return wire.RequestState("never_seen")
        if sequence in session.sealed:
            return wire.RequestState("sealed")
        result: _Remembered | None = record.result
        if result is None:
            applied = wire.OperationResult(sequence, "applied", record.commit, record.commit, replayed=True)
            return wire.RequestState("applied", applied)
        return wire.RequestState("applied", msgspec.structs.replace(result.verdict, replayed=True))

    def resolve(self, client_id: int, sequence: int, owner: dict[str, int]) -> wire.RequestState:
        """Return the result of a request id, or seal it: a late attempt is refused."""
        session = self.session(format_client_id(client_id))
        if owner:
            if owner["epoch"] != session.epoch:
                raise OncegateError(Code.FENCED)
            session.tracker.acknowledge(SequenceNumber(owner["first_incomplete"]))
        state = self.request(client_id, sequence)
        if state.state == "acknowledged":
            raise OncegateError(Code.STALE)
        if state.state != "never_seen":
            return state
        if sequence >= session.tracker.first_incomplete + session.window:
            raise OncegateError(Code.WINDOW_FULL)
        session.sealed.add(sequence)
        session.tracker.seal(SequenceNumber(sequence))
        return wire.RequestState("sealed")

    def _note(self, session: FakeSession, sequence: int, op: str, table: str, key: str, value: Any) -> None:
        value = None if value is msgspec.UNSET else value
        self.executed.append(Applied(session.client_id, sequence, op, table, key, value, self.commit))

    def _memory_ms(self, session: FakeSession) -> int:
        return session.lease_ms if self.memory_ms is None else self.memory_ms


def _fingerprint(op: str, table: str, key: str, *rest: Any) -> Fingerprint:
    plain = [op, table, key, *(None if part is msgspec.UNSET else part for part in rest)]
    return Fingerprint(int.from_bytes(hashlib.blake2b(_CANONICAL.encode(plain), digest_size=8).digest(), "big"))


def _rejected(sequence: int, code: Code) -> wire.OperationResult:
    traits = REGISTRY[code]
    return wire.OperationResult(
        sequence, "rejected", code=code, outcome=traits.outcome, retryable=traits.retryable, detail=traits.title
    )
