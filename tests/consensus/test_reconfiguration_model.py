"""Changes of members at a leader, against a list of configurations: one at a time, each asker told what came of it.

The model keeps what the log holds, who asked for what, and since when each learner has been caught up. Commits come
late, leaders change, logs are full, and askers give up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from oncegate.consensus.configuration import Configuration, RaftMember, decode, is_configuration
from oncegate.consensus.core import reconfiguration
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.errors import (
    ChangePending,
    ChangeRefused,
    ConsensusError,
    LeadershipLost,
    NotReady,
    Overloaded,
)

CAUGHT_UP_S, WAITERS_MAX = 3, 5
NAMES = ("n1", "n2", "n3", "n4")


class Log:
    """Journal and membership in one: entries, the newest configuration among them, and whether there is room."""

    def __init__(self) -> None:
        self.last_index = 1
        self.room = True
        self.current = Configuration({name: RaftMember(name, 1) for name in NAMES[:3]})
        self.current_index = 1
        self.appended: list[Configuration] = []

    @property
    def learners(self) -> frozenset[str]:
        return self.current.learners

    def has_room(self, size_bytes: int) -> bool:
        return self.room

    def append(self, command: bytes, index: int, term: int) -> None:
        assert is_configuration(command)
        assert (index, term) == (self.last_index + 1, 7)
        self.last_index = self.current_index = index
        self.current = decode(command)
        self.appended.append(self.current)


@dataclass(eq=False)
class Asked:
    """Somebody who waits, by the model."""

    name: str
    outcome: str
    told: list[Any] = field(default_factory=list)


class Walk:
    """A leader, and the model of its changes."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.log = Log()
        self.changes: Reconfiguration[Asked] = Reconfiguration(
            self.log,  # type: ignore[arg-type]
            CAUGHT_UP_S,
            lambda asked, index: asked.told.append(index),
            lambda asked, error: asked.told.append(type(error)),
        )
        self.now = 0
        self.commit = 1
        self.ready = True
        self.wanted: tuple[str, RaftMember | None] | None = None
        self.waiting: list[Asked] = []
        self.since: dict[str, int] = {}
        self.changed = self.promoted = 0

    @property
    def pending(self) -> bool:
        return self.wanted is not None or self.log.current_index > self.commit

    def ask(self) -> None:
        name, members = self.dice.choice(NAMES), self.log.current.members
        if self.dice.random() < 0.6:
            member = RaftMember(name, self.dice.choice((1, 1, 1, 2)), data=self.dice.choice(("", "", "http")))
            known = members.get(name)
            changes = known is None or (known.port, known.data) != (member.port, member.data)
            wanted = RaftMember(name, member.port, known is not None and known.voter, member.data)
            asked, alone = Asked(name, "voter"), False
            call: Any = lambda: self.changes.add(name, member, asked, ready=self.ready, commit_index=self.commit)  # noqa: E731
            self.asked(asked, (name, wanted) if changes else None, call, alone=alone)
        else:
            changes = name in members
            alone = changes and not self.log.current.voters - {name}
            asked = Asked(name, "gone")
            call = lambda: self.changes.remove(name, asked, ready=self.ready, commit_index=self.commit)  # noqa: E731
            self.asked(asked, (name, None) if changes else None, call, alone=alone)

    def asked(self, asked: Asked, change: tuple[str, RaftMember | None] | None, call: Any, *, alone: bool) -> None:
        refusal: type[ConsensusError] | None = None
        if alone:
            refusal = ChangeRefused
        elif change is not None and not self.ready:
            refusal = NotReady
        elif change is not None and self.pending:
            refusal = ChangePending
        elif len(self.waiting) >= WAITERS_MAX:
            refusal = Overloaded
        came: type[ConsensusError] | None = None
        try:
            call()
        except ConsensusError as error:
            came = type(error)
        assert came is refusal
        if refusal is None:
            self.wanted = change or self.wanted
            self.waiting.append(asked)
        assert not asked.told

    def append(self) -> None:
        before = self.log.current
        wanted = self.changes.wanted
        assert (wanted is None) == (self.wanted is None)
        appended = wanted is not None and self.changes.append_to(self.log, 7, *wanted)  # type: ignore[arg-type]
        assert appended == (self.wanted is not None and self.log.room)
        if not appended or self.wanted is None:
            return
        (name, member), self.wanted = self.wanted, None
        self.changed += 1
        members = dict(before.members)
        if member is None:
            del members[name]
        else:
            known = before.members.get(name)
            since = self.log.last_index if known is None else known.since
            members[name] = RaftMember(member.host, member.port, member.voter, member.data, since)
        assert self.log.current.members == members

    def promote(self) -> None:
        caught_up = {name for name in NAMES if self.dice.random() < 0.8}
        connected = {name for name in NAMES if self.dice.random() < 0.9}
        learners = self.log.learners
        assert self.changes.busy(connected) == bool(self.waiting or learners & connected)
        self.since = {name: at for name, at in self.since.items() if name in learners & caught_up}
        for name in sorted(learners & caught_up):
            if self.now - self.since.setdefault(name, self.now) >= CAUGHT_UP_S and self.ready and not self.pending:
                known = self.log.current.members[name]
                self.wanted = (name, RaftMember(known.host, known.port, True, known.data, known.since))
                self.promoted += 1
        more = self.changes.promote(caught_up.__contains__, self.now, ready=self.ready, commit_index=self.commit)
        assert more == (self.wanted is not None)

    def settle(self) -> None:
        self.commit = self.dice.choice((self.commit, self.log.last_index, self.log.last_index))
        self.changes.settle(self.commit)
        if self.pending:
            return
        members, index = self.log.current.members, self.log.current_index
        for asked in list(self.waiting):
            member = members.get(asked.name)
            if asked.outcome == "voter" and member is not None and not member.voter:
                continue
            self.waiting.remove(asked)
            came_true = (member is None) == (asked.outcome == "gone")
            assert asked.told == [index if came_true else ChangeRefused]

    def end(self) -> None:
        self.changes.end()
        for asked in self.waiting:
            assert asked.told == [LeadershipLost]
        self.waiting.clear()
        self.since.clear()
        self.wanted = None
        self.ready = False

    def step(self) -> None:
        what = self.dice.choice(("ask", "ask", "append", "append", "promote", "promote", "settle", "settle", "more"))
        self.now += self.dice.choice((0, 1))
        if what != "more":
            getattr(self, what)()
        elif (rare := self.dice.random()) < 0.1:
            self.end()
        elif rare < 0.3:
            self.log.last_index += 1  # a command
        elif rare < 0.5:
            self.log.room = not self.log.room
        elif rare < 0.8:
            self.ready = True
        elif self.waiting:
            asked = self.dice.choice(self.waiting)
            self.changes.forget(asked)
            self.waiting.remove(asked)
        assert self.changes.pending(self.commit) == self.pending
        assert not any(asked.told for asked in self.waiting)
        assert len(self.log.current.voters) >= 1


@pytest.mark.parametrize("seed", range(10))
def test_one_change_at_a_time_comes_into_force_and_each_asker_is_told_what_came_of_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconfiguration, "_WAITERS_MAX", WAITERS_MAX)
    walk = Walk(seed)
    for _ in range(1500):
        walk.step()
    assert min(walk.changed, walk.promoted) > 5
    for before, after in zip(walk.log.appended, walk.log.appended[1:], strict=False):
        assert len(before.voters ^ after.voters) <= 1, "majorities of neighbours overlap"
