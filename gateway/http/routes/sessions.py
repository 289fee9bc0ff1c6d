"""``/v1/sessions``: open, renew, take over, describe, list, close."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import request_bodies
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import respond
from oncegate.gateway.http.routing import PROPOSED, Parameter, limit
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.tenant_share import share
from oncegate.gateway.machine.transactions import Transacted
from oncegate.gateway.node.node import Node
from oncegate.rifl.completion import SEALED_COMMIT, CompletionRecord, RangeRecord
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX, format_client_id
from oncegate.rifl.session import FULL, SessionRecord

_SESSION: Final = "/v1/sessions/{client_id}"
_Epoch = Annotated[
    int, Parameter("epoch", {"type": "integer", "minimum": 1, "maximum": ID_MAX}, "as opened", required=True)
]
_OWNED: Final = (Code.FENCED, Code.SESSION_EXPIRED)
_KNOWN: Final = (Code.NOT_FOUND, Code.SESSION_EXPIRED)
LISTED_MAX: Final = 1_000
"""Sessions, or runs of a session's requests, of a page."""
_Limit = Annotated[int, limit(LISTED_MAX)]
_After = Annotated[
    str | None, Parameter("after", {"type": "string", "pattern": "^[0-9a-f]{16}$"}, "`next` of the page before")
]
_RecordsMin = Annotated[
    int,
    Parameter(
        "records_min", {"type": "integer", "minimum": 0, "default": 0}, "sessions that keep at least so many records"
    ),
]
_AfterSequence = Annotated[
    int, Parameter("after", {"type": "integer", "minimum": 0, "maximum": ID_MAX}, "`next` of the page before")
]
ROUTES: Final = Routes("sessions")


@ROUTES.told(
    "POST", "/v1/sessions", Scope.WRITE, *_OWNED, *PROPOSED, answer={200: wire.SessionOpened, 201: wire.SessionOpened}
)
async def open_session(request: web.Request, node: Node, tenant: str, sent: wire.OpenSession) -> web.Response:
    """``POST /v1/sessions``: 201 for a new session, 200 for the one this nonce opened before."""
    sessions, most = node.machine.sessions, node.settings.sessions_max
    fair = share(tenant, most, len(sessions), sessions.of_tenant(tenant))
    bounds = {"sessions_max": most, "tenant_sessions_max": min(node.settings.tenant_sessions_max, fair)}
    command = request_bodies.open_session(sent, tenant, **bounds)
    # The log decides. A request that it would refuse anyway costs no entry. A retry finds its session even at the
    # bound.
    if sessions.is_full(tenant, **bounds) and sessions.of_nonce(command.nonce, tenant) is None:
        wait_ms = max(1_000, sessions.room_in_ms(node.machine.time_ms))
        raise OncegateError(Code.QUOTA, FULL, retry_after_ms=wait_ms)
    answer = await node.submit(command, 128)
    return respond(request, answer, status=201 if answer.created else 200)


@ROUTES.command("POST", _SESSION + "/renew", Scope.WRITE, wire.SessionRenewed, *_OWNED)
def renew(client_id: int, tenant: str, sent: wire.RenewSession) -> c.RenewSession:
    """``POST /v1/sessions/{client_id}/renew``."""
    return c.RenewSession(client_id, request_bodies.check_number(sent.epoch, "epoch"), tenant)


@ROUTES.command("POST", _SESSION + "/take-over", Scope.WRITE, wire.SessionTaken, Code.CONFLICT, *_OWNED)
def take_over(client_id: int, tenant: str, sent: wire.TakeOver) -> c.TakeOver:
    """``POST /v1/sessions/{client_id}/take-over``."""
    return c.TakeOver(client_id, request_bodies.check_nonce(sent.nonce), tenant)


@ROUTES.told("GET", _SESSION, Scope.READ, *_KNOWN, answer=wire.SessionState, reflects="linearizable")
def describe(client_id: int, node: Node) -> Answer:
    """``GET /v1/sessions/{client_id}``."""
    state = _state(node.machine, _found(node.machine, client_id))
    return Answer(state, node.machine.commit, memory_ms=state.lease_ms_left)


def _found(machine: Machine, client_id: int) -> SessionRecord:
    """Return a session; raises NOT_FOUND, SESSION_EXPIRED."""
    session = machine.sessions.get(client_id)
    if session is None:
        known = client_id < machine.sessions.next_id
        raise OncegateError(Code.SESSION_EXPIRED if known else Code.NOT_FOUND, "no such session")
    return session


def _state(machine: Machine, session: SessionRecord) -> wire.SessionState:
    tracker = machine.trackers[session.client_id]
    return wire.SessionState(
        epoch=session.epoch,
        lease_ms_left=session.left_ms(machine.time_ms),
        first_incomplete=tracker.first_incomplete,
        highest_sequence=tracker.highest,
        records=_records(machine, session),
    )


def _records(machine: Machine, session: SessionRecord) -> int:
    tracker = machine.trackers[session.client_id]
    return tracker.records_count + len(tracker.ranges)


@ROUTES.told("GET", "/v1/sessions", Scope.READ, reflects="linearizable")
def list_own(node: Node, tenant: str, after: _After, limit: _Limit, records_min: _RecordsMin) -> wire.SessionList:
    """``GET /v1/sessions``: the live sessions of the token's tenant, a page in the order of their ids."""
    first = 0 if after is None else request_bodies.check_client_id(after)
    machine = node.machine

    def keeps_enough(session: SessionRecord) -> bool:
        return not records_min or _records(machine, session) >= records_min

    found, following = machine.sessions.page(tenant, first, limit, keeps_enough)
    listed = [
        wire.SessionListed(
            **msgspec.structs.asdict(_state(machine, session)),
            client_id=format_client_id(session.client_id),
            window=session.window,
            lease_ms=session.lease_ms,
        )
        for session in found
    ]
    return wire.SessionList(listed, None if following is None else format_client_id(following))


@ROUTES.told("GET", _SESSION + "/requests", Scope.READ, *_KNOWN, reflects="linearizable")
def open_requests(client_id: int, node: Node, *, after: _AfterSequence = 0, limit: _Limit) -> wire.OpenRequestList:
    """``GET /v1/sessions/{client_id}/requests``: what is not acknowledged, recorded or never seen, a page."""
    session = _found(node.machine, client_id)
    runs = node.machine.trackers[session.client_id].open_requests(after, limit + 1)
    listed = [_run(*run) for run in runs[:limit]]
    return wire.OpenRequestList(listed, listed[-1].last if len(runs) > limit else None)


def _run(first: int, last: int, record: CompletionRecord | RangeRecord | None) -> wire.OpenRequests:
    if record is None:
        return wire.OpenRequests(first, last, "never_seen")
    if record.commit == SEALED_COMMIT:
        return wire.OpenRequests(first, last, "sealed")
    commit = record.commit
    if isinstance(record, CompletionRecord) and isinstance(record.result, Transacted):
        commit = record.result.last_of(commit)
    return wire.OpenRequests(first, last, "executed", commit, record.traceparent or msgspec.UNSET)


@ROUTES.command("DELETE", _SESSION, Scope.WRITE, None, *_OWNED)
def close(client_id: int, tenant: str, epoch: _Epoch) -> c.CloseSession:
    """``DELETE /v1/sessions/{client_id}?epoch=``."""
    return c.CloseSession(client_id, epoch, tenant)
