"""Sessions: who may write, under which epoch, and until when.

Owns: client ids, epochs, nonces and leases. Knows nothing of completion records (:mod:`oncegate.rifl.result_tracker`),
so that shards can own records while one shard owns leases (RIFL §4.1, the lease manager).

Invariants; whoever is about to break one gets an InvariantViolation, and nothing has changed:

- an id is given out once: a second session under it would execute again what the first one's records answer;
- every id that lives is below ``next_id``;
- a nonce belongs to one session: a retried open finds the session it opened, and none where that was closed;
- an epoch is at least 1, and only a take-over raises it; the end of a lease never goes back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from oncegate.rifl.errors import Code, InvariantViolation, OncegateError, Outcome
from oncegate.rifl.ids import ClientId, ClusterTimeMs, Epoch
from oncegate.rifl.lease import ExpiryQueue

SESSIONS_MAX: Final = 2_000_000
"""Most live sessions that a cluster may be set to hold; one more is refused with QUOTA, live ones are untouched."""

LOOKS_MAX: Final = 10_000
"""Sessions, of all tenants, that one page of a list looks at."""
FULL: Final = "the cluster or the tenant holds as many sessions as it may"
NONCE_LENGTH_MAX: Final = 64
CLOSED_MAX: Final = 4_096
"""Nonces of closed sessions that are remembered; the oldest are forgotten first."""
NONCES_MAX: Final = 16
"""Earlier owners of a session whose late requests are recognised."""


_SHARED_INTS_MAX: Final = 1_024
_shared_ints: dict[int, int] = {}


def shared_int(number: int) -> int:
    """Return an equal int that other sessions share: a million sessions have few different windows and leases."""
    if len(_shared_ints) < _SHARED_INTS_MAX:
        return _shared_ints.setdefault(number, number)
    return _shared_ints.get(number, number)


class SessionRecord(msgspec.Struct, array_like=True, gc=False):
    """One session as every replica holds it. ``ends_ms`` is cluster time."""

    client_id: ClientId
    epoch: Epoch
    nonce: str
    lease_ms: int
    window: int
    ends_ms: ClusterTimeMs
    former: tuple[str, ...] = ()
    """Nonces of earlier owners, oldest first: a late copy of their requests must not take the session back."""
    tenant: str = ""
    """Whose it is: nobody else's request is answered from it. Holds no NUL."""

    def renew(self, now_ms: ClusterTimeMs) -> None:
        """Extend the lease to a full term from ``now_ms``; never shortens it."""
        end = ClusterTimeMs(now_ms + self.lease_ms)
        if end > self.ends_ms:
            self.ends_ms = end

    def left_ms(self, now_ms: int) -> int:
        """Return how long the session's memory is still guaranteed."""
        return max(0, self.ends_ms - now_ms)


class SessionTable:
    """All live sessions. Deterministic: changed from log entries only, with their cluster time.

    An id that is not here and below ``next_id`` belonged to a session that is gone; it is refused for ever.
    """

    __slots__ = ("_by_id", "_by_nonce", "_expiry", "_of_tenant", "closed", "next_id")

    def __init__(self) -> None:
        self.closed: dict[str, int] = {}
        """Nonces of closed sessions, in the order of closing, and the cluster time until which each is refused."""
        self._by_id: dict[int, SessionRecord] = {}
        self._by_nonce: dict[str, int] = {}
        self._of_tenant: dict[str, int] = {}
        self._expiry = ExpiryQueue()
        self.next_id = 1

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[SessionRecord]:
        return iter(self._by_id.values())

    @property
    def filed(self) -> int:
        """How many sessions are filed for expiry, including those that are gone."""
        return len(self._expiry)

    def is_full(self, tenant: str, sessions_max: int, tenant_sessions_max: int) -> bool:
        """Tell whether the bound on all sessions, or on those of this tenant, is reached."""
        return len(self._by_id) >= sessions_max or self._of_tenant.get(tenant, 0) >= tenant_sessions_max

    def of_tenant(self, tenant: str) -> int:
        """Return how many live sessions a tenant has."""
        return self._of_tenant.get(tenant, 0)

    def room_in_ms(self, now_ms: int) -> int:
        """Return when the next lease may end, at the earliest, if nobody closes a session before."""
        return max(0, (self._expiry.next_ms or now_ms) - now_ms)

    def get(self, client_id: int) -> SessionRecord | None:
        """Return the live session of that id, or None."""
        return self._by_id.get(client_id)

    def page(
        self, tenant: str, after: int, limit: int, wanted: Callable[[SessionRecord], bool] = lambda _: True
    ) -> tuple[list[SessionRecord], int | None]:
        """Return up to ``limit`` of a tenant's live and ``wanted`` sessions with ids above ``after``, in their order.

        It looks at ``LOOKS_MAX`` sessions at most, others' too, so a page may be short or empty. The second value is
        the id after which the next page goes on, None at the end. Beside that it copies all ids: 3 to 5 ns for
        each live session of up to a million.
        """
        ids = list(self._by_id)  # given out, and read back, in ascending order
        start = bisect_right(ids, after)
        looked = ids[start : start + LOOKS_MAX]
        found: list[SessionRecord] = []
        for client_id in looked:
            session = self._by_id[client_id]
            if session.tenant != tenant or not wanted(session):
                continue
            if len(found) == limit:
                return found, found[-1].client_id
            found.append(session)
        return found, looked[-1] if start + len(looked) < len(ids) else None

    def of_nonce(self, nonce: str, tenant: str = "") -> int | None:
        """Return the tenant's session that this nonce belongs or belonged to, or None."""
        return self._by_nonce.get(_named(tenant, nonce))

    def open(
        self,
        nonce: str,
        lease_ms: int,
        window: int,
        now_ms: ClusterTimeMs,
        tenant: str = "",
        *,
        sessions_max: int = SESSIONS_MAX,
        tenant_sessions_max: int = SESSIONS_MAX,
    ) -> tuple[SessionRecord, bool]:
        """Open a session, or return the one that this nonce opened before and True.

        Args:
            nonce: names the owner; the same again finds the same session.
            lease_ms: term of the lease.
            window: places above first incomplete.
            now_ms: cluster time.
            tenant: the owner's; the same nonce of another tenant names another session.
            sessions_max: bound that the log entry carries, so that all replicas decide by the same one.
            tenant_sessions_max: the same for the sessions of this tenant.

        Raises:
            OncegateError: QUOTA when that many are live; FENCED when another owner has taken the session over;
                SESSION_EXPIRED, not applied, for the nonce of a session that was closed: a late copy of its open.
        """
        known = self._by_nonce.get(_named(tenant, nonce))
        if known is not None:
            session = self._by_id[known]
            if session.nonce != nonce:
                raise OncegateError(Code.FENCED, "a newer owner has taken the session over")
            if session.ends_ms >= now_ms:
                session.renew(now_ms)
            return session, True
        if self.closed.get(_named(tenant, nonce), -1) >= now_ms:
            detail = "the session that this nonce opened was closed: a new one needs another nonce"
            raise OncegateError(Code.SESSION_EXPIRED, detail, outcome=Outcome.NOT_APPLIED)
        if self.is_full(tenant, sessions_max, tenant_sessions_max):
            raise OncegateError(Code.QUOTA, FULL)
        client_id, ends_ms = ClientId(self.next_id), ClusterTimeMs(now_ms + lease_ms)
        lease_ms, window = shared_int(lease_ms), shared_int(window)
        session = SessionRecord(client_id, Epoch(1), nonce, lease_ms, window, ends_ms, (), tenant)
        self._enter(session)
        return session, False

    def _enter(self, session: SessionRecord) -> None:
        client_id, names = session.client_id, [_named(session.tenant, n) for n in (session.nonce, *session.former)]
        if client_id in self._by_id or client_id < 1:
            raise InvariantViolation(f"a second session is opened under client id {client_id}")
        if session.epoch < 1:
            raise InvariantViolation(f"session {client_id} has epoch {session.epoch}")
        if any(name in self._by_nonce for name in names):
            raise InvariantViolation(f"a nonce of session {client_id} is another session's")
        self.next_id = max(self.next_id, client_id + 1)
        self._by_nonce.update(dict.fromkeys(names, client_id))
        self._by_id[session.client_id] = session
        self._of_tenant[session.tenant] = self._of_tenant.get(session.tenant, 0) + 1
        self._expiry.file(session.client_id, session.ends_ms)

    def live(self, client_id: int, epoch: int | None, now_ms: int) -> SessionRecord:
        """Return the session if it lives and ``epoch`` (if given) is its current one.

        Raises:
            OncegateError: SESSION_EXPIRED or FENCED.
        """
        session = self._by_id.get(client_id)
        if session is None:
            raise OncegateError(Code.SESSION_EXPIRED, "no such session")
        if epoch is not None and epoch < session.epoch:
            raise OncegateError(Code.FENCED, f"epoch {epoch} was fenced by {session.epoch}")
        if epoch is not None and epoch > session.epoch:
            raise OncegateError(Code.BAD_REQUEST, f"epoch {epoch} was never given out")
        if session.ends_ms < now_ms:
            raise OncegateError(Code.SESSION_EXPIRED, "the lease has ended")
        return session

    def put_back(self, session: SessionRecord) -> None:
        """Add a session read from a saved state; afterwards the table behaves as the one it was saved from."""
        session.lease_ms, session.window = shared_int(session.lease_ms), shared_int(session.window)
        self._enter(session)

    def skip_to(self, next_id: int) -> None:
        """Give out ids from ``next_id`` on, as the table did that was saved."""
        if next_id < self.next_id:
            raise InvariantViolation(f"client id {next_id} would be given out again, {self.next_id - 1} was already")
        self.next_id = next_id

    def take_over(self, client_id: int, nonce: str, now_ms: ClusterTimeMs) -> SessionRecord:
        """Give the session to a new owner: a new nonce raises the epoch, the same one again does not.

        Raises:
            OncegateError: SESSION_EXPIRED, or CONFLICT when another session was opened with that nonce.
        """
        session = self.live(client_id, None, now_ms)
        owner = self._by_nonce.get(_named(session.tenant, nonce))
        if owner is not None and owner != client_id:
            raise OncegateError(Code.CONFLICT, "that nonce belongs to another session")
        if session.nonce != nonce:
            if owner == client_id:
                raise OncegateError(Code.FENCED, "a newer owner has taken the session over")
            former = (*session.former, session.nonce)
            for forgotten in former[:-NONCES_MAX]:
                self._by_nonce.pop(_named(session.tenant, forgotten), None)
            session.former = former[-NONCES_MAX:]
            self._by_nonce[_named(session.tenant, nonce)] = client_id
            session.nonce = nonce
            session.epoch = Epoch(session.epoch + 1)
        session.renew(now_ms)
        return session

    def close(self, client_id: int) -> None:
        """Forget the session; its id is refused for ever. Unknown ids are ignored."""
        session = self._by_id.pop(client_id, None)
        if session is not None:
            left = self._of_tenant.pop(session.tenant) - 1
            if left:
                self._of_tenant[session.tenant] = left
            self._expiry.forget()
            for nonce in (session.nonce, *session.former):
                self._by_nonce.pop(_named(session.tenant, nonce), None)

    def sleep(self, slept_ms: int) -> None:
        """Refuse the nonces of closed sessions for so much longer: in that time nobody could have sent them here."""
        self.closed = {named: until_ms + slept_ms for named, until_ms in self.closed.items()}

    def remember_closed(self, client_id: int, now_ms: int) -> None:
        """Refuse the nonces of a session that is about to be closed for as long as its lease, within CLOSED_MAX."""
        session, closed = self._by_id[client_id], self.closed
        for nonce in (*session.former, session.nonce):
            named = _named(session.tenant, nonce)
            closed.pop(named, None)
            closed[named] = now_ms + session.lease_ms
        oldest = next(iter(closed))
        while len(closed) > CLOSED_MAX or closed[oldest] < now_ms:
            del closed[oldest]
            oldest = next(iter(closed))

    def expired(self, now_ms: int, *, limit: int = 1_000) -> list[int]:
        """Return sessions whose lease has ended: candidates for a log entry that reaps them.

        Changes nothing that is replicated. Call it on every node from time to time: it also drops sessions that are
        gone.
        """
        return self._expiry.due(now_ms, self._ends_ms, limit=limit)

    def is_behind(self, now_ms: int) -> bool:
        """Tell whether :meth:`expired` at ``now_ms`` has left more to look at than one call does."""
        return self._expiry.is_behind(now_ms)

    def reap(self, client_id: int, now_ms: int) -> bool:
        """Drop the session if its lease has really ended at ``now_ms``: the log decides the race with a renewal."""
        session = self._by_id.get(client_id)
        if session is None or session.ends_ms >= now_ms:
            return False
        self.close(client_id)
        return True

    def _ends_ms(self, client_id: int) -> int | None:
        session = self._by_id.get(client_id)
        return None if session is None else session.ends_ms


def _named(tenant: str, nonce: str) -> str:
    """Return the key of a nonce: two tenants may choose the same nonce. A nonce holds no NUL."""
    return f"{tenant}\0{nonce}" if tenant else nonce
