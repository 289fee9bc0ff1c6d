"""Verdicts and soaks in lines of text. Owns: wording. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from oncegate.proof.check.folder import RunVerdict
from oncegate.proof.check.soak import SoakState, SoakTally


def verdict_lines(verdict: RunVerdict) -> Iterator[str]:
    """Yield what a person wants to know of a run: the verdict, each check, and what is wrong in words."""
    counts = ", ".join(f"{number} {status}" for status, number in verdict.operations.items())
    faults = ", ".join(f"{name} {times}" for name, times in sorted(verdict.faults.items())) or "none"
    yield f"{verdict.verdict}: operations: {counts}; faults: {faults}"
    for result in verdict.checks:
        reason = f": {result.reason}" if result.reason else ""
        yield f"  {result.verdict:8} {result.name} ({result.operations} operations, {result.keys} keys){reason}"
        for failure in result.failures:
            for line in failure.words:
                yield f"           {line}"


def soak_lines(state: SoakState) -> Iterator[str]:
    """Yield the counts of a soak, by workload and by fault, and what is listed."""
    names = [*state.by_workload, *state.by_fault, "all runs"]
    width = max(len(name) for name in names)
    head = f"{'':{width}} {'runs':>6} {'ok':>9} {'failed':>8} {'unknown':>8} {'faults':>7} {'anomalies':>9} {'lost':>5}"
    yield head
    for name, tally in sorted(state.by_workload.items()):
        yield _line(name, tally, width)
    if state.by_fault:
        yield ""
        for name, tally in sorted(state.by_fault.items()):
            yield _line(name, tally, width)
    yield ""
    total = state.total
    yield _line("all runs", total, width)
    yield from state.listed
    yield (
        f"{state.verdict}: {state.done} of {state.seeds} runs, {total.anomalies} anomalies, "
        f"{total.lost} acknowledged writes lost, {total.undecided} undecided, {total.crashed} crashed"
    )


def _line(name: str, tally: SoakTally, width: int) -> str:
    counts = f"{tally.runs:6} {tally.ok:9} {tally.fail:8} {tally.unknown:8} {tally.faults:7}"
    return f"{name:{width}} {counts} {tally.anomalies:9} {tally.lost:5}"
