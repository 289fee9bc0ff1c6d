"""Bugs in what the simulated gateways and the proxies in front of real nodes do not reach: what each breaks, and the
one test that has to notice.

A bug is a change of one place in a module's text, tried as ``make mutate`` tries its own.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from tests.mutate import trial
from tests.mutate.changes import Change
from tests.mutate.targets import ROOT


class EdgeBug(NamedTuple):
    """One bug.

    Attributes:
        name: unique.
        breaks: what does not hold any more.
        path: the module.
        was, now: the place in its text, which stands there once, and what stands there instead.
        check: the test that has to fail, alone.
    """

    name: str
    breaks: str
    path: str
    was: str
    now: str
    check: str


_CONNECTION = (
    "tests/gateway/test_one_connection.py::test_requests_on_one_connection_are_judged_as_each_alone_on_a_fresh_one"
)
_CLAIMED = "tests/spark/test_claimed_model.py::test_readers_see_of_each_row_what_its_epoch_and_the_claim_say"
_FENCE = "tests/backup/test_fence.py::test_every_field_behind_a_fence_is_what_the_table_says"
_LINE = "tests/client/test_recipes_model.py::test_each_waits_for_exactly_those_in_its_way"

_SWEEP = "tests/middleware/test_sweep_model.py"
_RATE = "tests/gateway/test_operation_rate.py::test_desk_admits_and_charges_as_exact_arithmetic_does"

BUGS: Final = (
    EdgeBug(
        "admission/tables-of-the-request-before",
        "a token for one table writes to another, after some requests that are alike",
        "gateway/http/hot/request.py",
        "Asked(head.method, head.target, route, found.names, (), asked.header, known.media, has_body)",
        "Asked(head.method, head.target, route, asked.names, (), asked.header, known.media, has_body)",
        _CONNECTION,
    ),
    EdgeBug(
        "admission/charged-the-bucket-at-most",
        "a request costs no more than the bucket holds, however many operations it has",
        "gateway/http/admission/desk.py",
        "self.bucket.take(operations - 1)",
        "self.bucket.take(min(operations, self.bucket.burst) - 1)",
        _RATE,
    ),
    EdgeBug(
        "recipes/writer-beside-readers",
        "a writer does not wait for readers",
        "gateway/client/recipes/lock.py",
        'return bool(before) if value == "write" else "write" in before.values()',
        'return "write" in before.values()',
        f"{_LINE}[rw]",
    ),
    EdgeBug(
        "store-claims/anybodys-rows-inherited",
        "who adopts a store takes the rows of a stranger for those of its own log",
        "stores/claims.py",
        "if before.cluster == origin[0]:",
        "if origin[0]:",
        f"{_CLAIMED}[0]",
    ),
    EdgeBug(
        "fence/origin-behind-the-skip",
        "a restored cluster says that it began with a commit number that the old one never gave",
        "gateway/backup/fence.py",
        "Origin(machine.identity, machine.commit), identity",
        "Origin(machine.identity, machine.commit + COMMITS_SKIPPED), identity",
        f"{_FENCE}[0]",
    ),
    EdgeBug(
        "fence/half-of-the-slept-time",
        "rows of a restored cluster end too early",
        "gateway/backup/fence.py",
        "ending.begin_anew(machine, slept_ms)",
        "ending.begin_anew(machine, slept_ms // 2)",
        f"{_FENCE}[0]",
    ),
    EdgeBug(
        "middleware/living-claim-swept",
        "a sweep forgets the claim of a service that runs the request, and a retry runs it again",
        "gateway/middleware/gate.py",
        'if record.state == "claimed" and await self._lives(record.owner):',
        "if False:",
        f"{_SWEEP}::test_request_whose_claim_is_swept_around_runs_once",
    ),
)


def verdict_of(bug: EdgeBug) -> str:
    """Plant a bug, run the test that is named for it, and say how that went: ``killed`` if it noticed."""
    code = (ROOT / bug.path).read_text(encoding="utf-8")
    if code.count(bug.was) != 1:
        return "the place has changed"
    planted = Change(bug.path, bug.was, bug.now, 1, 1, code.replace(bug.was, bug.now))
    (found,) = trial.run([planted], [bug.check], jobs=1, seconds_max=200)
    return found.verdict


if __name__ == "__main__":
    sys.stdout.write(f"{verdict_of(next(bug for bug in BUGS if bug.name == sys.argv[1]))}\n")
