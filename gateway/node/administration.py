"""Changes of the cluster itself, asked for at any node: adding, removing and repairing members, moving leadership.

Owns: bringing an operator's request to the leader, or to the node that it is about, and its outcome back.
:mod:`oncegate.consensus.log.membership` decides what a change means and when it is safe. Must not know HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.errors import ConsensusError, NotLeader, PeerUnavailable, Timeout
from oncegate.consensus.replica.replica import Replica
from oncegate.gateway.node.proposer import Leadership
from oncegate.gateway.node.refusals import Refusal, packed, translated, unpacked
from oncegate.gateway.node.settings import MemberAddress
from oncegate.rifl.errors import Code, OncegateError, Outcome

ADMINISTER: Final = b"a"
"""First byte of a peer call that carries an operator's request."""
ADD_TIMEOUT_S: Final = 60.0
"""How long an added node may take to catch up before the caller is told that it still does."""
CHANGE_TIMEOUT_S: Final = 10.0
_HOPS_MAX: Final = 4
_PAUSE_S: Final = 0.1


class AddMember(msgspec.Struct, array_like=True, frozen=True, tag="add"):
    """Add a node: as a learner at once, as a voter when it has caught up."""

    node_id: str
    host: str
    http_port: int
    peer_port: int


class RemoveMember(msgspec.Struct, array_like=True, frozen=True, tag="remove"):
    """Remove a node; the leader hands leadership over first."""

    node_id: str


class MoveLeader(msgspec.Struct, array_like=True, frozen=True, tag="lead"):
    """Hand leadership to ``node_id``, or to the voter whose log is the longest."""

    node_id: str | None


class RepairMember(msgspec.Struct, array_like=True, frozen=True, tag="repair"):
    """Have a node whose state is damaged replace it by a fresh copy from the leader."""

    node_id: str


Request = AddMember | RemoveMember | MoveLeader | RepairMember


class _Outcome(msgspec.Struct, array_like=True):
    refusal: Refusal | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_outcome = msgspec.msgpack.Decoder(_Outcome).decode


class Administration:
    """Operators' requests. Every method belongs to the node's event loop."""

    def __init__(self, replica: Replica, leadership: Leadership, repair: Callable[[], None]) -> None:
        """``repair`` begins the repair of this node; raises why there is none."""
        self._replica = replica
        self._leadership = leadership
        self._repair = repair

    async def carry_out(self, request: Request) -> None:
        """Carry the request out here if this node leads, else at the leader; a repair at the node that it names.

        A leader that removes itself, or loses the lead meanwhile, answers NOT_LEADER; the request goes on to its
        successor. Each request names the wanted state, so carrying it out twice changes nothing more.

        Raises CONFLICT when another change is under way, NO_LEADER, TIMEOUT with outcome unknown, or why it is
        impossible.
        """
        refusal = OncegateError(Code.NO_LEADER, retry_after_ms=100)
        for _ in range(_HOPS_MAX):
            try:
                await self._once(request)
                return
            except OncegateError as fault:
                if fault.code not in (Code.NOT_LEADER, Code.NO_LEADER):
                    raise
                refusal = fault
            await asyncio.sleep(_PAUSE_S)
        raise refusal

    async def serve(self, payload: bytes) -> bytes:
        """Answer, at the leader, a request that another node passed on."""
        try:
            await self._here(_decode_request(payload))
        except OncegateError as refusal:
            return _encode(_Outcome(packed(refusal)))
        return _encode(_Outcome())

    async def _once(self, request: Request) -> None:
        leader = self._leadership.leader_id
        if isinstance(request, RepairMember):
            leader = request.node_id
            if leader != self._leadership.node_id and leader not in self._replica.configuration.members:
                raise OncegateError(Code.CONFLICT, f"{leader} is no member")
        if leader is None:
            raise OncegateError(Code.NO_LEADER, retry_after_ms=100)
        if leader == self._leadership.node_id:
            await self._here(request)
            return
        timeout_s = ADD_TIMEOUT_S if isinstance(request, AddMember) else CHANGE_TIMEOUT_S
        try:
            reply = await self._replica.call(leader, ADMINISTER + _encode(request), timeout_s=timeout_s + 1)
        except ConsensusError as fault:
            if isinstance(fault, PeerUnavailable) and isinstance(request, RepairMember):
                detail = f"{leader} is not connected with {self._leadership.node_id}: a node is repaired while it runs"
                raise OncegateError(Code.NOT_READY, f"{detail}, so start it first", retry_after_ms=1000) from None
            raise translated(fault) from None
        refusal = _decode_outcome(reply).refusal
        if refusal is not None:
            raise unpacked(refusal)

    async def _here(self, request: Request) -> None:
        replica = self._replica
        try:
            match request:
                case AddMember(node_id, host, http_port, peer_port):
                    member = RaftMember(host, peer_port, data=str(http_port))
                    await replica.add_member(node_id, member, timeout_s=ADD_TIMEOUT_S)
                case RemoveMember(node_id):
                    await replica.remove_member(node_id, timeout_s=CHANGE_TIMEOUT_S)
                case MoveLeader(node_id) if self._leadership.leads and node_id == self._leadership.node_id:
                    pass  # asked again, or an election was quicker: the wanted state is reached
                case RepairMember():
                    self._repair()
                case MoveLeader(node_id):
                    await replica.transfer_leadership(node_id, timeout_s=CHANGE_TIMEOUT_S)
        except NotLeader as fault:
            raise OncegateError(Code.NOT_LEADER, str(fault), retry_after_ms=100) from None
        except Timeout as fault:
            if not isinstance(request, AddMember):
                raise translated(fault) from None
            detail = (
                f"{request.node_id} has not caught up yet: it is a learner, and votes as soon as it has. If it is not "
                f"to come, give it up: oncegate member remove {request.node_id}"
            )
            raise OncegateError(Code.TIMEOUT, detail, outcome=Outcome.APPLIED) from None
        except ValueError as fault:
            raise OncegateError(Code.BAD_REQUEST, str(fault)) from None
        except ConsensusError as fault:
            raise translated(fault) from None


def address_of(node_id: str, member: RaftMember) -> MemberAddress:
    """Return the address of a member of the configuration; its HTTP port travels in the member's own data."""
    return MemberAddress(node_id, member.host, int(member.data or 0), member.port)
