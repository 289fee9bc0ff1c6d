"""Bugs put into the checker on purpose: the comparison with brute force must see each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from oncegate.proof.lincheck import MODELS, Limits, Operation, check, refine, sorting
from oncegate.proof.lincheck import search as searching
from oncegate.proof.lincheck.row import RowModel
from oncegate.proof.lincheck.search import SearchOutcome, _Search, search
from tests.lincheck.oracle import brute_force, history

SEEDS = 2000
Check = Callable[[Sequence[Operation], str], str]


def _each(change: Callable[[Operation], Operation | None]) -> Check:
    def run(ops: Sequence[Operation], name: str) -> str:
        return check([op for op in map(change, ops) if op is not None], MODELS[name]).verdict

    return run


def _plain(ops: Sequence[Operation], name: str) -> str:
    return check(ops, MODELS[name]).verdict


def _searched(ops: Sequence[Operation], name: str) -> str:
    return search(MODELS[name], [op for op in ops if op.status != "failed"], Limits()).verdict


def _split_at_quiet_moments(ops: Sequence[Operation], name: str) -> str:
    """Go on from one state only that the part before a quiet moment can end in."""
    model = MODELS[name]
    parts: list[list[Operation]] = [[]]
    latest = -1
    for op in sorted((op for op in ops if op.status != "failed"), key=lambda op: op.invoked):
        if latest < op.invoked and parts[-1]:
            parts.append([])
        parts[-1].append(op)
        latest = max(latest, op.returned if op.returned is not None else 1 << 62)
    state = model.initial()
    for part in parts:
        found = search(model, part, Limits(), [state])
        if found.verdict != "valid":
            return found.verdict
        for op in found.order:
            state = model.step(state, op)
    return "valid"


def _changed(when: Callable[[Operation], bool], **changes: Any) -> Check:
    return _each(lambda op: msgspec.structs.replace(op, **changes) if when(op) else op)


def _has(status: str) -> Callable[[Operation], bool]:
    return lambda op: op.status == status


CHECKS: dict[str, tuple[str, Check]] = {
    "real time is ignored": ("register", _changed(lambda op: True, invoked=0)),
    "operations never have to end": ("counter", _changed(_has("ok"), returned=1 << 60)),
    "unknown operations are dropped": ("register", _each(lambda op: None if op.status == "unknown" else op)),
    "unknown operations have certainly happened": (
        "counter",
        _changed(_has("unknown"), status="ok", returned=1 << 60),
    ),
    "unknown operations happen before anything else": ("register", _changed(_has("unknown"), invoked=0)),
    "failed operations may have happened": ("list", _changed(_has("failed"), status="unknown")),
    "a result that is not there is taken for none": (
        "cas-register",
        _changed(lambda op: op.f == "cas" and op.status == "ok", result=None),
    ),
    "a quiet moment has one state": ("register", _split_at_quiet_moments),
}


@pytest.mark.parametrize("bug", sorted(CHECKS))
def test_a_planted_bug_in_what_is_checked_is_seen(bug: str) -> None:
    name, mutant = CHECKS[bug]
    assert _wrong(name, mutant)


def _all_needless(self: _Search, came: Any, op: Operation, after: Any, kind: int) -> bool:
    return True


def _no_optional(self: _Search, *place: Any) -> list[Any]:
    return []


def _only_the_most_urgent(self: _Search, open_now: list[int], state: Any, came: Any) -> list[tuple[int, Any]]:
    return _MOVES(self, open_now, state, came)[-1:]


def _all_equal(self: _Search, model: Any, operations: Any, limits: Any) -> None:
    _INIT(self, model, operations, limits)
    self.classes = [0] * len(self.classes)


def _all_reads(self: _Search, model: Any, operations: Any, limits: Any) -> None:
    _INIT(self, model, operations, limits)
    self.reads = [True] * len(self.reads)


def _forgotten_unknown(self: _Search, model: Any, operations: Any, limits: Any) -> None:
    _INIT(self, model, operations, limits)
    self.kinds = [0] * len(self.kinds)


_MOVES, _INIT = _Search._moves, _Search.__init__


PATCHES: dict[str, tuple[str, Check, Any, str, Any]] = {
    "an unknown operation is never needed": ("counter", _searched, _Search, "_needless", _all_needless),
    "unknown operations are not tried": ("register", _searched, _Search, "_optional_moves", _no_optional),
    "nothing but the most urgent operation is tried": ("register", _searched, _Search, "_moves", _only_the_most_urgent),
    "all open operations are taken for equal": ("register", _searched, _Search, "__init__", _all_equal),
    "all unknown operations are taken for equal": ("register", _searched, _Search, "__init__", _forgotten_unknown),
    "writes of the same value are taken for reads": ("register", _searched, _Search, "__init__", _all_reads),
    "zones may overlap": ("register", _plain, sorting, "_overlap", lambda forward: []),
    "backward zones are not looked at": ("register", _plain, sorting, "_inside", lambda forward, backward: []),
    "a read from nowhere is not seen by zones": ("register", _plain, sorting, "_unwritten", lambda writes, reads: []),
    "unknown writes are dropped though a swap was refused": (
        "cas-register",
        _plain,
        refine.Times,
        "done",
        lambda self: [op for op in self.ops.values() if op.status == "ok"],
    ),
    "reads are held before what they contain": (
        "set",
        _plain,
        refine.Times,
        "order",
        lambda self, earlier, later: _ORDER(self, later, earlier),
    ),
    "a version may be passed over": ("row", _plain, RowModel, "_at", lambda self, state, version: state),
    "narrow times are not looked at": ("queue", _plain, searching, "search", lambda *_: SearchOutcome("valid")),
}
_ORDER = refine.Times.order


@pytest.mark.parametrize("bug", sorted(PATCHES))
def test_a_planted_bug_in_the_checker_is_seen(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, mutant, where, attribute, planted = PATCHES[bug]
    assert not _wrong(name, mutant, 300), "without the bug they agree"
    monkeypatch.setattr(where, attribute, planted)
    assert _wrong(name, mutant)


def _wrong(name: str, mutant: Check, seeds: int = SEEDS) -> bool:
    """Tell whether a checker and brute force disagree on any of the small histories."""
    for seed in range(seeds):
        ops = history(name, seed)
        if (mutant(ops, name) == "valid") != brute_force(ops, MODELS[name]):
            return True
    return False
