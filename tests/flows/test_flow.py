"""Declarations and their graph."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows.errors import BadRequestError, ConflictError, FlowError, QuotaError
from oncegate.flows.flow import FLOWS_MAX, FlowDeclaration, FlowGraph


def flow(name: str, source: str = "a", target: str | None = None, **more: Any) -> FlowDeclaration:
    return FlowDeclaration(name=name, source=source, target=target, **more)


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "../x"},
        {"name": ".hidden"},
        {"name": "Upper"},
        {"name": "x" * 65},
        {"name": "x\n"},
        {"source": ""},
        {"target": ""},
        {"max_items": 0},
        {"max_bytes": 2**31},
        {"linger_ms": -1},
        {"retention_ms": -1},
        {"consumers": ("a", "a")},
        {"consumers": ("A",)},
        {"consumers": tuple(f"c{i}" for i in range(65))},
    ],
)
def test_declaration_outside_its_bounds_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        FlowDeclaration(**{"name": "f", "source": "a", **bad})
    raw = msgspec.json.encode({"name": "f", "source": "a", **bad})
    with pytest.raises((BadRequestError, msgspec.ValidationError)):
        msgspec.json.decode(raw, type=FlowDeclaration)


def test_same_declaration_again_changes_nothing() -> None:
    graph = FlowGraph()
    assert graph.declare(flow("f")) is True
    assert graph.declare(flow("f")) is False


def test_other_declaration_of_a_name_is_refused_and_the_first_stays() -> None:
    graph = FlowGraph()
    graph.declare(flow("f"))
    with pytest.raises(ConflictError):
        graph.declare(flow("f", linger_ms=1))
    assert graph.declare(flow("f")) is False


def test_cycle_is_refused_and_shown() -> None:
    graph = FlowGraph()
    graph.declare(flow("f", "a", "b"))
    graph.declare(flow("g", "b", "c"))
    with pytest.raises(BadRequestError, match="c -> a -> b -> c"):
        graph.declare(flow("h", "c", "a"))
    assert graph.declare(flow("h", "c", "d")) is True
    with pytest.raises(BadRequestError):
        graph.declare(flow("self", "x", "x"))


def test_one_flow_too_many_is_refused() -> None:
    graph = FlowGraph()
    for number in range(FLOWS_MAX):
        graph.declare(flow(f"f{number}"))
    with pytest.raises(QuotaError):
        graph.declare(flow("one-more"))


TABLES = st.sampled_from("abcdef")


@settings(deadline=None)
@given(st.lists(st.tuples(TABLES, st.none() | TABLES), max_size=15))
def test_graph_equals_a_model_that_closes_edges_transitively(edges: list[tuple[str, str | None]]) -> None:
    graph, kept = FlowGraph(), []
    for number, (source, target) in enumerate(edges):
        reached = {target}
        while (more := reached | {t for s, t in kept if s in reached}) != reached:
            reached = more
        try:
            graph.declare(flow(f"f{number}", source, target))
        except FlowError:
            assert source in reached
        else:
            assert source not in reached
            kept.append((source, target))
