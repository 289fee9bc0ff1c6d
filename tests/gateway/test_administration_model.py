"""An operator's request at any node of three: it is carried out where it must be, and its outcome comes back.

Leadership moves between two hops, nodes are out of reach, and the change ends in every way that consensus knows. The
test plays consensus: each call between nodes is served by the other node's own administration.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.consensus import errors as ce
from oncegate.consensus.configuration import RaftMember
from oncegate.gateway.node.administration import (
    ADD_TIMEOUT_S,
    ADMINISTER,
    CHANGE_TIMEOUT_S,
    AddMember,
    Administration,
    MoveLeader,
    RemoveMember,
    RepairMember,
    Request,
)
from oncegate.rifl.errors import Code, OncegateError, Outcome

NODES = ("n1", "n2", "n3")
REQUESTS: tuple[Request, ...] = (
    AddMember("n4", "h4", 8080, 7070),
    RemoveMember("n3"),
    MoveLeader(None),
    MoveLeader("n2"),
    RepairMember("n2"),
    RepairMember("n9"),
)


class World:
    """Three nodes, who leads, and what comes of each change."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.leader: str | None = "n1"
        self.done: list[tuple[str, str, Any]] = []
        """Node, change and what was asked, of each that was carried out."""
        self.slept = 0
        self.last: BaseException | None = None
        """What the newest attempt ended with, at the node where it ended."""
        self.nodes = {name: self.node(name) for name in NODES}

    def node(self, name: str) -> Administration:
        world = self

        class Leadership:
            node_id = name

            @property
            def leader_id(self) -> str | None:
                return world.leader

            @property
            def leads(self) -> bool:
                return world.leader == name

        async def call(to: str, payload: bytes, timeout_s: float) -> bytes:
            assert to != name
            assert payload.startswith(ADMINISTER)
            fault = world.dice.choice(
                (None, None, None, ce.PeerUnavailable(to, "gone", outcome="not_applied"),
                 ce.Timeout("a call", 1.0, outcome="unknown"))
            )  # fmt: skip
            if fault is not None:
                world.last = fault
                raise fault
            if world.dice.random() < 0.2:
                world.move()
            world.timeout_s = timeout_s
            return await world.nodes[to].serve(payload[len(ADMINISTER) :])

        def change(kind: str) -> Any:
            async def made(*what: Any, timeout_s: float) -> None:
                assert timeout_s == (ADD_TIMEOUT_S if kind == "add" else CHANGE_TIMEOUT_S)
                assert world.timeout_s > timeout_s, "who passed it on waits longer than it takes"
                world.ends(name, kind, what)

            return made

        replica: Any = SimpleNamespace(
            call=call,
            add_member=change("add"),
            remove_member=change("remove"),
            transfer_leadership=change("lead"),
            configuration=SimpleNamespace(members=dict.fromkeys(NODES)),
        )
        leadership: Any = Leadership()
        return Administration(replica, leadership, lambda: world.repair(name))

    timeout_s = float("inf")

    def repair(self, name: str) -> None:
        if self.dice.random() < 0.3:
            self.last = OncegateError(Code.CONFLICT, f"the state of {name} is sound")
            raise self.last
        self.done.append((name, "repair", ()))

    def begin(self) -> None:
        self.move()
        self.done.clear()
        self.slept, self.last, self.timeout_s = 0, None, float("inf")

    def move(self) -> None:
        self.leader = self.dice.choice((None, *NODES))

    def ends(self, name: str, kind: str, what: tuple[Any, ...]) -> None:
        if name != self.leader:
            self.last = ce.NotLeader(self.leader)
            raise self.last
        fault = self.dice.choice(
            (
                None,
                None,
                ce.ChangePending("another"),
                ce.ChangeRefused("no voter is left"),
                ce.Timeout("a change", 1.0, outcome="unknown"),
                ce.NotLeader(None),
                ValueError("no host"),
                ce.LeadershipLost("moved"),
            )
        )
        if fault is not None:
            self.last = fault
            raise fault
        self.done.append((name, kind, what))

    async def pause(self, seconds: float) -> None:
        self.slept += 1
        if self.dice.random() < 0.7:
            self.move()


def expected_code(request: Request, last: BaseException) -> set[Code]:
    match last:
        case OncegateError():
            return {last.code}
        case ce.PeerUnavailable() if isinstance(request, RepairMember):
            return {Code.NOT_READY}
        case ce.NotLeader():
            return {Code.NOT_LEADER, Code.NO_LEADER}
        case ce.ChangePending() | ce.ChangeRefused():
            return {Code.CONFLICT}
        case ValueError():
            return {Code.BAD_REQUEST}
        case ce.PeerUnavailable():
            return {Code.NO_LEADER}
    return {Code.TIMEOUT, Code.NO_LEADER}


@pytest.mark.parametrize("seed", range(6))
async def test_request_is_carried_out_at_the_leader_or_the_node_it_names_or_its_sender_is_told_why_not(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed)
    monkeypatch.setattr("asyncio.sleep", world.pause)
    outcomes = dict.fromkeys(("done", "told", "given up"), 0)
    for _ in range(250):
        world.begin()
        request, at = world.dice.choice(REQUESTS), world.dice.choice(NODES)
        told: OncegateError | None = None
        try:
            await world.nodes[at].carry_out(request)
        except OncegateError as refusal:
            told = refusal
        assert world.slept <= 4
        if told is None:
            outcomes["done"] += 1
            if not world.done:
                assert isinstance(request, MoveLeader), "whom the lead was to go to has it already"
                assert request.node_id == world.leader
                continue
            (made,) = world.done
            match request:
                case AddMember():
                    assert made[1:] == ("add", ("n4", RaftMember("h4", 7070, data="8080")))
                case RemoveMember():
                    assert made[1:] == ("remove", ("n3",))
                case MoveLeader():
                    assert made[1:] == ("lead", (request.node_id,))
                case RepairMember():
                    assert made == ("n2", "repair", ())
            continue
        assert not world.done
        if told.code in (Code.NOT_LEADER, Code.NO_LEADER):
            outcomes["given up"] += 1
            assert world.slept == 4, "it goes on to whoever leads next, a few times"
            assert told.retry_after_ms is not None
            continue
        outcomes["told"] += 1
        if isinstance(request, RepairMember) and request.node_id == "n9":
            assert told.code is Code.CONFLICT
            continue
        assert world.last is not None
        assert told.code in expected_code(request, world.last)
        if isinstance(world.last, ce.Timeout):
            added = isinstance(request, AddMember) and world.last.args[0].startswith("a change")
            assert told.outcome is (Outcome.APPLIED if added else Outcome.UNKNOWN)
            assert ("learner" in told.detail) == added
    assert min(outcomes.values()) > 5, outcomes
