"""Sessions against a dumb model: a list of who lives, searched from end to end; and after a restore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oncegate.rifl import session as session_module
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.session import SessionRecord, SessionTable

CLOSED_MAX, NONCES_MAX = 3, 2
NONCES, TENANTS = "klmno", ("", "ann")

nonces, tenants, picks = st.sampled_from(NONCES), st.sampled_from(TENANTS), st.integers(0, 5)
terms = st.integers(1, 4)
"""Leases and waits are this short, so that a request often comes in the last millisecond, or the one after it."""


@dataclass
class Known:
    """What the model knows of a session; the last nonce is that of its owner."""

    client: int
    tenant: str
    nonces: list[str]
    lease_ms: int
    window: int
    ends_ms: int
    epoch: int = 1

    def renew(self, now_ms: int) -> None:
        self.ends_ms = max(self.ends_ms, now_ms + self.lease_ms)


def _error_of(call: Callable[[], object]) -> OncegateError:
    with pytest.raises(OncegateError) as caught:
        call()
    return caught.value


class SessionsAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._bounds = mock.patch.multiple(session_module, CLOSED_MAX=CLOSED_MAX, NONCES_MAX=NONCES_MAX)
        self._bounds.start()
        self.table = SessionTable()
        self.living: list[Known] = []
        self.closed: dict[tuple[str, str], int] = {}
        self.given = 0
        self.now = 0

    def teardown(self) -> None:
        self._bounds.stop()

    def of_nonce(self, tenant: str, nonce: str) -> Known | None:
        return next((one for one in self.living if one.tenant == tenant and nonce in one.nonces), None)

    def of_client(self, client: int) -> Known | None:
        return next((one for one in self.living if one.client == client), None)

    def client(self, pick: int) -> int:
        """A client id: that of a living session, mostly, or of none."""
        return self.living[pick % len(self.living)].client if self.living and pick else self.given + 1 - pick

    @rule(
        tenant=tenants,
        nonce=nonces,
        lease_ms=terms,
        window=st.integers(1, 9),
        most=st.integers(1, 4),
        tenant_most=st.integers(1, 3),
    )
    def open(self, tenant: str, nonce: str, lease_ms: int, window: int, most: int, tenant_most: int) -> None:
        known = self.of_nonce(tenant, nonce)
        refused: Code | None = None
        if known is not None:
            refused = Code.FENCED if known.nonces[-1] != nonce else None
        elif self.closed.get((tenant, nonce), -1) >= self.now:
            refused = Code.SESSION_EXPIRED
        elif len(self.living) >= most or sum(one.tenant == tenant for one in self.living) >= tenant_most:
            refused = Code.QUOTA
        opening = partial(self.table.open, nonce, lease_ms, window, self.now, tenant)
        opening = partial(opening, sessions_max=most, tenant_sessions_max=tenant_most)
        if refused is not None:
            error = _error_of(opening)
            assert error.code is refused
            assert refused is not Code.SESSION_EXPIRED or error.outcome is Outcome.NOT_APPLIED
            return
        session, existed = opening()
        assert existed == (known is not None)
        if known is None:
            self.given += 1
            known = Known(self.given, tenant, [nonce], lease_ms, window, self.now + lease_ms)
            self.living.append(known)
        elif known.ends_ms >= self.now:
            known.renew(self.now)
        assert session.client_id == known.client

    @rule(pick=picks, nonce=nonces)
    def take_over(self, pick: int, nonce: str) -> None:
        client = self.client(pick)
        known = self.of_client(client)
        refused: Code | None = None
        if known is None or known.ends_ms < self.now:
            refused = Code.SESSION_EXPIRED
        elif (owner := self.of_nonce(known.tenant, nonce)) is not None and owner is not known:
            refused = Code.CONFLICT
        elif owner is known and known.nonces[-1] != nonce:
            refused = Code.FENCED
        if refused is not None:
            assert _error_of(partial(self.table.take_over, client, nonce, self.now)).code is refused
            return
        session = self.table.take_over(client, nonce, self.now)
        assert known is not None
        if known.nonces[-1] != nonce:
            known.nonces = [*known.nonces, nonce][-1 - NONCES_MAX :]
            known.epoch += 1
        known.renew(self.now)
        assert session.client_id == client

    @rule(pick=picks, remembered=st.booleans())
    def close(self, pick: int, remembered: bool) -> None:
        client = self.client(pick)
        known = self.of_client(client)
        if known is not None and remembered:
            self.table.remember_closed(client, self.now)
            for nonce in known.nonces:
                self.closed.pop((known.tenant, nonce), None)
                self.closed[known.tenant, nonce] = self.now + known.lease_ms
            while len(self.closed) > CLOSED_MAX or next(iter(self.closed.values())) < self.now:
                del self.closed[next(iter(self.closed))]
        self.table.close(client)
        self.living = [one for one in self.living if one.client != client]

    @rule(pick=picks)
    def reap(self, pick: int) -> None:
        client = self.client(pick)
        known = self.of_client(client)
        ended = known is not None and known.ends_ms < self.now
        assert self.table.reap(client, self.now) == ended
        if ended:
            self.living = [one for one in self.living if one.client != client]

    @rule(pick=picks, ahead=st.none() | st.integers(-1, 1))
    def look(self, pick: int, ahead: int | None) -> None:
        """Ask for the session under an epoch; renew it if it lives."""
        client = self.client(pick)
        known = self.of_client(client)
        epoch = None if ahead is None else (1 if known is None else known.epoch) + ahead
        refused: Code | None = None
        if known is None:
            refused = Code.SESSION_EXPIRED
        elif ahead:
            refused = Code.FENCED if ahead < 0 else Code.BAD_REQUEST
        elif known.ends_ms < self.now:
            refused = Code.SESSION_EXPIRED
        if refused is not None:
            assert _error_of(partial(self.table.live, client, epoch, self.now)).code is refused
            return
        self.table.live(client, epoch, self.now).renew(self.now)
        assert known is not None
        known.renew(self.now)

    @rule(ms=terms)
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(ms=st.integers(0, 4))
    def sleep(self, ms: int) -> None:
        self.table.sleep(ms)
        self.closed = {named: until + ms for named, until in self.closed.items()}

    @rule()
    def restore(self) -> None:
        """Go on with a table that is made of what this one holds."""
        saved, self.table = self.table, SessionTable()
        for session in saved:
            self.table.put_back(session)
        self.table.skip_to(saved.next_id)
        self.table.closed = saved.closed

    @invariant()
    def both_know_the_same(self) -> None:
        assert self.table.next_id == self.given + 1
        assert list(self.table) == [
            SessionRecord(
                one.client,
                one.epoch,
                one.nonces[-1],
                one.lease_ms,
                one.window,
                one.ends_ms,
                tuple(one.nonces[:-1]),
                one.tenant,
            )
            for one in self.living
        ]
        assert len(self.table) == len(self.living)
        assert list(self.table.closed.items()) == [
            (f"{tenant}\0{nonce}" if tenant else nonce, until) for (tenant, nonce), until in self.closed.items()
        ]

    @invariant()
    def each_is_found_by_its_id_its_nonces_and_its_tenant(self) -> None:
        for one in self.living:
            session = self.table.get(one.client)
            assert session is not None
            assert session.left_ms(self.now) == max(0, one.ends_ms - self.now)
        for tenant in TENANTS:
            assert self.table.of_tenant(tenant) == sum(one.tenant == tenant for one in self.living)
            for nonce in NONCES:
                known = self.of_nonce(tenant, nonce)
                assert self.table.of_nonce(nonce, tenant) == (None if known is None else known.client)


SessionsAgainstModel.TestCase.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)
test_sessions_agree_with_model = SessionsAgainstModel.TestCase
