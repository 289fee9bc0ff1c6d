"""Judging the run itself: were there duplicates and kills as promised, and did none of them execute twice?

Owns: the checks on what happened during the run. Pure. What is in the store and in the flow is judged by
:mod:`examples.demo.recount`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from examples.demo.dataset import key_of
from examples.demo.plan import When
from examples.demo.recording import Recording, Verdict
from examples.demo.recount import NAMED_MAX, Check

COPIED_SHARE_MIN: Final = 0.05
_ALLOWED: Final = {
    When.AT_ONCE: {Verdict.REPLAYED, Verdict.FIRST},
    When.LATER: {Verdict.REPLAYED},
    When.ACKNOWLEDGED: {Verdict.STALE},
}


def check_run(recording: Recording, kills: int) -> list[Check]:
    """Judge acknowledgements, copies and kills.

    Args:
        recording: of the whole run.
        kills: how many leaders were to be killed.
    """
    acknowledged = int((recording.commits > 0).sum())
    share = recording.copied_share()
    midway = sum(kill.pending > 0 and recording.gap_s(kill) is not None for kill in recording.kills)
    return [
        Check(
            "Messages acknowledged",
            f"{recording.messages:,}",
            f"{acknowledged:,}",
            acknowledged == recording.messages,
        ),
        Check("Leaders killed while writes ran", str(kills), str(midway), midway == kills),
        Check(
            "Rows delivered while messages were written",
            "some",
            f"{recording.rows_while_writing():,}",
            recording.rows_while_writing() > 0,
        ),
        Check(
            "Operations sent more than once on purpose",
            f"at least {COPIED_SHARE_MIN:.0%}",
            f"{share:.1%}",
            share >= COPIED_SHARE_MIN,
        ),
        _check_verdicts(recording),
        _check_executions(recording),
    ]


def check_nodes(etags: Mapping[str, tuple[str, ...]]) -> Check:
    """Compare the checksums of all batches between the nodes; ``etags`` holds them by node, in batch order."""
    batches = max((len(found) for found in etags.values()), default=0)
    same = len(set(etags.values())) == 1 and batches > 0
    return Check(
        "Batches with the same checksum on every node",
        f"{batches} on {len(etags)} nodes",
        f"{batches} on {len(etags)} nodes" if same else "they differ",
        same,
    )


def _check_verdicts(recording: Recording) -> Check:
    """Each copy must be answered as its moment demands, and with the original's commit number."""
    wrong = [
        f"{key_of(copied.number)}, copied {copied.when}: {copied.verdict}, commit {copied.commit}"
        for copied in recording.copied
        if copied.verdict not in _ALLOWED[copied.when]
        or (copied.commit is not None and copied.commit != recording.commits[copied.number - 1])
    ]
    total = len(recording.copied)
    return Check(
        "Copies answered from memory, or refused as stale",
        f"{total:,}",
        f"{total - len(wrong):,}",
        not wrong,
        tuple(wrong[:NAMED_MAX]),
    )


def _check_executions(recording: Recording) -> Check:
    """Of all answers about one message, at most one may say that it has just been executed."""
    executed = Counter(copied.number for copied in recording.copied if copied.verdict is Verdict.FIRST)
    twice = [
        number
        for number, times in executed.items()
        if times + int(recording.commits[number - 1] > 0 and not recording.replayed[number - 1]) > 1
    ]
    return Check(
        "Copies that executed a second time",
        "0",
        f"{len(twice):,}",
        not twice,
        tuple(f"executed twice: {key_of(number)}" for number in sorted(twice)[:NAMED_MAX]),
    )
