"""What commands do to sessions: open, renew, take over, resolve, close and reap. Pure, part of the state machine.

Owns: that a session comes with its records and goes with them and with the rows that are bound to it, in one
transition. Whose a session is and how long its lease lasts: :mod:`oncegate.rifl.session`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.effects import join
from oncegate.gateway.machine.ending import end_bound, takes_rows
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Ended, Endings, Resolved, SessionAnswer
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict, resolve
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Standing, standing
from oncegate.rifl.session import SessionRecord


def open_session(machine: Machine, command: c.OpenSession) -> SessionAnswer:
    """Open a session, or find the one that this nonce opened; raises QUOTA."""
    known = machine.sessions.of_nonce(command.nonce, command.tenant)
    if known is not None:
        machine.touch_first(known)
    session, existed = machine.sessions.open(
        command.nonce,
        command.lease_ms,
        command.window,
        machine.time_ms,
        command.tenant,
        sessions_max=command.sessions_max,
        tenant_sessions_max=command.tenant_sessions_max,
    )
    if not existed:
        machine.touch_first(session.client_id)
        machine.trackers[session.client_id] = ResultTracker(window=session.window)
    return _about(machine, session, existed=existed)


def renew_session(machine: Machine, command: c.RenewSession) -> SessionAnswer:
    """Extend the lease; raises FORBIDDEN, SESSION_EXPIRED or FENCED."""
    machine.check_tenant(command.client_id, command.tenant)
    machine.touch_first(command.client_id)
    session = machine.sessions.live(command.client_id, command.epoch, machine.time_ms)
    session.renew(machine.time_ms)
    return _about(machine, session, existed=True)


def take_over(machine: Machine, command: c.TakeOver) -> SessionAnswer:
    """Give the session a new epoch, unless its nonce had one already; raises FORBIDDEN or SESSION_EXPIRED."""
    machine.check_tenant(command.client_id, command.tenant)
    machine.touch_first(command.client_id)
    session = machine.sessions.take_over(command.client_id, command.nonce, machine.time_ms)
    return _about(machine, session, existed=True)


def resolve_request(machine: Machine, command: c.Resolve) -> Resolved:
    """Say what became of an operation, and seal one never executed; raises NOT_FOUND, FORBIDDEN or FENCED."""
    client_id = command.client_id
    if client_id == KEYS_CLIENT:
        found = machine.keys.look_up(command.sequence, command.tenant)
        if found.fate is Fate.NEVER_SEEN:
            raise OncegateError(Code.NOT_FOUND, "no key was ever mapped to this id")
        return Resolved(found, None)
    session = machine.sessions.get(client_id)
    if session is None:
        if client_id >= machine.sessions.next_id:
            raise OncegateError(Code.NOT_FOUND, "no session was ever opened under this id")
        return Resolved(ResolveVerdict(Fate.EXPIRED), None)
    machine.check_tenant(client_id, command.tenant)
    machine.touch_first(client_id)
    owned = command.epoch > 0
    if owned and standing(session, command.epoch, machine.time_ms) is Standing.FENCED:
        raise OncegateError(Code.FENCED, machine.fenced_by(client_id, command.epoch))
    tracker = machine.trackers[client_id]
    resolution = resolve(tracker, command.sequence, command.first_incomplete if owned else SequenceNumber(1))
    if owned:
        machine.acknowledge(session, tracker, command.first_incomplete)
    return Resolved(resolution, session.left_ms(machine.time_ms))


def close_session(machine: Machine, command: c.CloseSession) -> Endings:
    """Drop a session; raises FORBIDDEN, FENCED, or OVERLOADED while the entry has ended as many rows as it may."""
    client_id = command.client_id
    machine.check_tenant(client_id, command.tenant)
    if machine.sessions.get(client_id) is None and 1 <= client_id < machine.sessions.next_id:
        return Endings([])
    machine.touch_first(client_id)
    machine.sessions.live(client_id, command.epoch, 0)  # one whose lease has ended need not wait for a reaping
    if not takes_rows(machine, client_id):
        detail = "too many rows end with the sessions that are closed at this moment"
        raise OncegateError(Code.OVERLOADED, detail, retry_after_ms=50)
    machine.sessions.remember_closed(client_id, machine.time_ms)
    machine.sessions.close(client_id)
    return Endings(_gone(machine, [client_id]), 1)


def reap(machine: Machine, command: c.Reap) -> Endings:
    """Drop the sessions whose lease has ended and whose rows the entry has room to end."""
    before = len(machine.sessions)
    return Endings(_gone(machine, _reaped(machine, command.client_ids)), before - len(machine.sessions))


def _reaped(machine: Machine, client_ids: Iterable[int]) -> Iterator[int]:
    for client_id in client_ids:
        machine.touch_first(client_id)
        if takes_rows(machine, client_id) and machine.sessions.reap(client_id, machine.time_ms):
            yield client_id


def _gone(machine: Machine, client_ids: Iterable[int]) -> list[Ended]:
    """Forget the records of sessions, each dropped as it is named, and end the rows that are bound to them.

    That is one transition: at no commit number is there a row whose session is gone.
    """
    first, ended = machine.commit + 1, list[Ended]()
    for client_id in client_ids:
        del machine.trackers[client_id]
        ended += end_bound(machine, client_id)
    join(machine, first)
    return ended


def _about(machine: Machine, session: SessionRecord, *, existed: bool) -> SessionAnswer:
    """Describe a session; ``existed``: it was there before the command."""
    tracker = machine.trackers[session.client_id]
    return SessionAnswer(
        session.client_id,
        session.epoch,
        session.lease_ms,
        session.window,
        session.left_ms(machine.time_ms),
        existed,
        tracker.first_incomplete,
        tracker.highest,
    )
