"""Every checker accepts a good history and rejects a bad one, both written by hand."""

import pytest

from oncegate.consensus.configuration import Configuration, encode
from oncegate.proof.sim.engine.checkers import (
    AcknowledgedIsKept,
    CommitDurability,
    CommitMonotone,
    ConfigurationsAgree,
    ElectionSafety,
    EverybodyIsAnswered,
    FlushedIsKept,
    LeaderCompleteness,
    LinearizableReads,
    Liveness,
    LogMatching,
    OneVoteATerm,
    SnapshotEqualsReplay,
    StateEqualsReplay,
    StateMachineSafety,
    all_checkers,
)
from oncegate.proof.sim.engine.observe import Logs, Observations, Violation

NODES = ("a", "b", "c")


def feed(kind, history):
    """Show a history, a list of (observation, arguments), to one checker; the logs come first where it reads them."""
    logs = Logs(NODES)
    reads_logs = kind in (LogMatching, LeaderCompleteness, CommitDurability, FlushedIsKept, CommitMonotone)
    checker = kind(logs) if reads_logs else kind(10.0) if kind is Liveness else kind()
    see = Observations([logs, checker])
    for node in NODES:
        see.started(node, [(b"\1", 1, 0)], 0)
    for name, *arguments in history:
        method = getattr(see, name, None) or getattr(checker, name)
        method(*arguments)


def writes(node, *entries, flush=True):
    """Entries as (index, term); the command follows from both."""
    steps = [("appended", node, index, term, b"%d of %d" % (index, term)) for index, term in entries]
    return [*steps, ("flushed", node)] if flush else steps


def voters(*names):
    """A configuration, as it stands in a log."""
    return encode(Configuration.of_addresses(dict.fromkeys(names, ("127.0.0.1", 1))))


def adds_two(*holders):
    """Five vote from entry 2 on; entry 3 is on the disks of some."""
    five = ("appended", "a", 2, 1, voters("a", "b", "c", "d", "e"))
    first = [("started", name, [], 0) for name in ("d", "e")] + [five, ("flushed", "a")]
    return [*first, *(("installed", name, 3, voters("a", "b", "c", "d", "e")) for name in holders)]


_INSTALLED = [*writes("a", (2, 1), (3, 1)), ("installed", "a", 4), *writes("a", (4, 2)), ("stopped", "a")]
GOOD_AND_BAD = [
    (ElectionSafety, [("leads", "a", 1), ("leads", "a", 1), ("leads", "b", 2)], [("leads", "a", 1), ("leads", "b", 1)]),
    (
        OneVoteATerm,
        [("votes", "a", "a", 1), ("ticked", "a", 1, 1), ("started", "a", [], 1), ("votes", "a", "b", 2)],
        [("votes", "a", "a", 1), ("started", "a", [], 0), ("votes", "a", "b", 1)],
    ),
    (OneVoteATerm, [("votes", "a", "b", 3), ("ticked", "a", 3, 1)], [("votes", "a", "b", 3), ("ticked", "a", 2, 1)]),
    (
        LogMatching,
        [*writes("a", (2, 1), (3, 2)), *writes("b", (2, 1), (3, 2)), *writes("c", (2, 3))],
        # The same index and term, behind different entries.
        [*writes("a", (2, 1), (3, 2)), *writes("b", (2, 2), (3, 2))],
    ),
    (
        LogMatching,
        [("appended", "a", 2, 1, b"x"), ("appended", "b", 2, 1, b"x")],
        [("appended", "a", 2, 1, b"x"), ("started", "b", [(b"\1", 1, 0), (b"y", 2, 1)], 1)],
    ),
    (
        LeaderCompleteness,
        [*writes("a", (2, 1)), *writes("b", (2, 1)), ("ticked", "a", 1, 2), ("leads", "b", 2)],
        [*writes("a", (2, 1)), *writes("b", (2, 1)), ("ticked", "a", 1, 2), ("leads", "c", 2)],
    ),
    (
        CommitDurability,
        [*writes("a", (2, 1)), *writes("b", (2, 1)), ("ticked", "a", 1, 2)],
        [*writes("a", (2, 1)), *writes("b", (2, 1), flush=False), ("ticked", "a", 1, 2)],
    ),
    (
        CommitDurability,
        [*adds_two("b", "c"), *writes("a", (3, 1)), *writes("b", (3, 1)), *writes("c", (3, 1)), ("ticked", "a", 1, 3)],
        [*adds_two("b", "c"), *writes("a", (3, 1)), *writes("b", (3, 1)), ("ticked", "a", 1, 3)],
    ),
    (
        FlushedIsKept,
        [*_INSTALLED, ("started", "a", [(b"", 4, 2)], 2, 3)],
        [*_INSTALLED, ("started", "a", [], 2, 3)],
    ),
    (
        SnapshotEqualsReplay,
        [("applied", "a", 2, 1, b"x"), ("applied", "a", 4, 1, b"y"), ("loaded", "b", 3, [(2, b"x")])],
        [("applied", "a", 2, 1, b"x"), ("applied", "a", 4, 1, b"y"), ("loaded", "b", 4, [(2, b"x")])],
    ),
    (
        ConfigurationsAgree,
        [("configured", "a", 2, voters("a")), ("configured", "b", 2, voters("a")), ("configured", "b", 3, voters("b"))],
        [("configured", "a", 2, voters("a")), ("configured", "b", 2, voters("b"))],
    ),
    (
        FlushedIsKept,
        [
            *writes("a", (2, 1)),
            *writes("a", (3, 1), flush=False),
            ("stopped", "a"),
            ("started", "a", [(b"\1", 1, 0), (b"", 2, 1)], 1),
        ],
        [*writes("a", (2, 1)), ("stopped", "a"), ("started", "a", [(b"\1", 1, 0)], 1)],
    ),
    (
        CommitMonotone,
        [*writes("a", (2, 1)), ("ticked", "a", 1, 2), ("started", "a", [(b"\1", 1, 0)], 1), ("ticked", "a", 1, 1)],
        [*writes("a", (2, 1)), ("ticked", "a", 1, 2), ("ticked", "a", 1, 1)],
    ),
    (CommitMonotone, [("ticked", "a", 1, 1)], [("ticked", "a", 1, 2)]),
    (
        StateMachineSafety,
        [("applied", "a", 2, 1, b"x"), ("applied", "b", 2, 1, b"x"), ("applied", "a", 4, 1, b"y")],
        [("applied", "a", 2, 1, b"x"), ("applied", "b", 2, 1, b"y")],
    ),
    (
        StateMachineSafety,
        [("applied", "a", 2, 1, b"x"), ("started", "a", [], 1), ("applied", "a", 2, 1, b"x")],
        [("applied", "a", 2, 1, b"x"), ("applied", "a", 3, 1, b"x")],
    ),
    (
        StateMachineSafety,
        [("applied", "a", 2, 1, b"x"), ("applied", "a", 3, 1, b"y")],
        [("applied", "a", 2, 1, b"x"), ("applied", "a", 2, 1, b"x")],
    ),
    (
        AcknowledgedIsKept,
        [("applied", "a", 2, 1, b"x"), ("acknowledged", b"x", 2), ("ended", {"a": {2: b"x"}, "b": {2: b"x"}})],
        [("applied", "a", 2, 1, b"x"), ("acknowledged", b"x", 2), ("ended", {"a": {2: b"x"}, "b": {}})],
    ),
    (
        AcknowledgedIsKept,
        [("acknowledged", b"x", 2), ("applied", "b", 2, 1, b"x")],
        [("acknowledged", b"x", 2), ("applied", "b", 2, 2, b"y")],
    ),
    (AcknowledgedIsKept, [("acknowledged", b"x", 2)], [("acknowledged", b"x", 2), ("acknowledged", b"x", 3)]),
    (
        LinearizableReads,
        [("acknowledged", b"x", 2), ("read", 2, 2, 3), ("read", 3, 3, 3)],
        [("acknowledged", b"x", 2), ("read", 2, 1, 3)],
    ),
    (LinearizableReads, [("read", 0, 2, 2)], [("read", 0, 2, 1)]),
    (StateEqualsReplay, [("state", "a", 16, 7), ("state", "b", 16, 7)], [("state", "a", 16, 7), ("state", "b", 16, 8)]),
    (
        Liveness,
        [("waiting", 99.0, "x"), ("faults_stopped", 99.0), ("waiting", 105.0, "x")],
        [("faults_stopped", 1.0), ("waiting", 12.0, "x")],
    ),
    (
        EverybodyIsAnswered,
        [("proposed", "a", 1), ("answered", "a", 1), ("proposed", "a", 2), ("stopped", "a"), ("ended", {})],
        [("proposed", "a", 1), ("ended", {})],
    ),
    (
        EverybodyIsAnswered,
        [("proposed", "a", 1), ("answered", "a", 1), ("shut_down", "a")],
        [("proposed", "a", 1), ("shut_down", "a")],
    ),
    (
        EverybodyIsAnswered,
        [("proposed", "a", 1), ("answered", "a", 1)],
        [("proposed", "a", 1), ("answered", "a", 1), ("answered", "a", 1)],
    ),
    (Logs, [("appended", "a", 2, 1, b"x"), ("truncated", "a", 2)], [("appended", "a", 3, 1, b"x")]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), GOOD_AND_BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_each_checker_tells_a_good_history_from_a_bad_one(kind, good, bad):
    if kind is Logs:
        kind = CommitMonotone
    feed(kind, good)
    with pytest.raises(Violation):
        feed(kind, bad)


def test_every_checker_has_a_bad_history():
    assert {type(checker) for checker in all_checkers(NODES, liveness_s=1.0)} <= {kind for kind, _, _ in GOOD_AND_BAD}


def test_a_leader_of_an_older_term_may_lack_what_a_newer_one_committed():
    feed(LeaderCompleteness, [*writes("a", (2, 3)), ("ticked", "a", 3, 2), ("leads", "b", 2)])
