"""The graph of tables, flows, consumers and targets, as text and as DOT. Pure; flows are as ``GET /v1/flows`` has them.

Tables are the nodes; a flow leads from its source to the tables that its consumers write by cascades. There is no
cycle: the cluster refuses one. A table that several flows write is drawn once; elsewhere its name stands alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

Flow = Mapping[str, Any]
_COLOURS: Final = {"falling_behind": "orange", "stalled": "red"}


def targets_of(flow: Flow) -> list[str]:
    """Return the tables that a flow's consumers write through the gateway."""
    target = flow["target"]
    return [] if target is None else [target] if isinstance(target, str) else list(target)


def as_text(flows: Iterable[Flow]) -> list[str]:
    """Return the graph as lines: each table with its flows below it, and below each flow its consumers and targets."""
    by_source: dict[str, list[Flow]] = {}
    written: set[str] = set()
    for flow in flows:
        by_source.setdefault(flow["source"], []).append(flow)
        written.update(targets_of(flow))
    drawn: set[str] = set()
    lines: list[str] = []
    for table in sorted(by_source.keys() - written):
        lines += [table, *_below(table, by_source, drawn)]
    return lines


def _below(table: str, by_source: Mapping[str, list[Flow]], drawn: set[str]) -> Iterator[str]:
    """Yield what is below a table that is drawn for the first time."""
    drawn.add(table)
    flows = sorted(by_source.get(table, ()), key=lambda flow: str(flow["flow"]))
    for flow in flows:
        last = flow is flows[-1]
        yield f"{'└─' if last else '├─'} flow {flow['flow']}, batches {_batches(flow)}"
        below = "   " if last else "│  "
        consumers, targets = sorted(flow["consumers"].items()), targets_of(flow)
        for at, (name, one) in enumerate(consumers):
            end = at == len(consumers) - 1 and not targets
            yield f"{below}{'└─' if end else '├─'} {name}: {_state(one)}"
        for at, target in enumerate(targets):
            end = at == len(targets) - 1
            known = target in drawn and target in by_source
            yield f"{below}{'└▶' if end else '├▶'} {target}{' (above)' if known else ''}"
            if not known:
                yield from (f"{below}{'   ' if end else '│  '}{line}" for line in _below(target, by_source, drawn))


def _batches(flow: Flow) -> str:
    first, last = flow["first_batch"], flow["last_batch"]
    return f"{first}..{last}" if first <= last else "none"


def _state(one: Mapping[str, Any]) -> str:
    if not one["attached"]:
        return "never attached"
    return f"cursor {one['cursor']}, {one['lag_batches']} batches behind, {one['trend']}"


def as_dot(flows: Iterable[Flow]) -> list[str]:
    """Return the graph in the language of Graphviz; consumers that do not keep up are orange or red."""
    nodes, edges = dict[str, str](), list[str]()
    for flow in flows:
        name = _quoted(f"flow {flow['flow']}")
        nodes[name] = f"label={_quoted(flow['flow'])} shape=ellipse"
        edges.append(f"{_table(flow['source'], nodes)} -> {name}")
        for consumer, one in sorted(flow["consumers"].items()):
            node = _quoted(f"consumer {flow['flow']} {consumer}")
            colour = _COLOURS.get(one["trend"])
            about = f"label={_quoted(f'{consumer}: {_state(one)}')} shape=plaintext"
            nodes[node] = about + (f" fontcolor={colour}" if colour else "")
            edges.append(f"{name} -> {node} [style=dashed]")
        edges += [f"{name} -> {_table(target, nodes)}" for target in targets_of(flow)]
    described = (f"  {node} [{about}];" for node, about in nodes.items())
    return ["digraph flows {", "  rankdir=LR;", *described, *(f"  {edge};" for edge in edges), "}"]


def _table(name: str, nodes: dict[str, str]) -> str:
    node = _quoted(f"table {name}")
    nodes.setdefault(node, f"label={_quoted(name)} shape=box")
    return node


def _quoted(text: str) -> str:
    # Names have no character that DOT would read otherwise than JSON.
    return json.dumps(text)
