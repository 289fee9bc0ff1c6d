"""``oncegate flow graph``: tables, flows, consumers and targets as text and as DOT."""

from __future__ import annotations

import asyncio
from typing import Any

from typer.testing import CliRunner

from oncegate.gateway.cli.flow_graph import as_dot, as_text
from oncegate.gateway.cli.main import app
from tests.conftest import Api


def flow(name: str, source: str, target: Any = None, last: int = 9, **consumers: Any) -> dict[str, Any]:
    states = {
        key: {"attached": True, "cursor": 7, "lag_batches": 2, "trend": value} for key, value in consumers.items()
    }
    return {"flow": name, "source": source, "target": target, "first_batch": 1, "last_batch": last, "consumers": states}


CHAIN = [
    flow("posts", "posts", last=0),
    flow("split", "posts", ["words", "counts"], job="ok"),
    flow("length", "words", ["lengths", "counts"], job="stalled"),
    flow("deliver", "lengths"),
    flow("totals", "counts", sum="falling_behind"),
]


def test_each_table_is_drawn_once_with_what_derives_from_it() -> None:
    assert as_text(CHAIN) == [
        "posts",
        "├─ flow posts, batches none",
        "└─ flow split, batches 1..9",
        "   ├─ job: cursor 7, 2 batches behind, ok",
        "   ├▶ words",
        "   │  └─ flow length, batches 1..9",
        "   │     ├─ job: cursor 7, 2 batches behind, stalled",
        "   │     ├▶ lengths",
        "   │     │  └─ flow deliver, batches 1..9",
        "   │     └▶ counts",
        "   │        └─ flow totals, batches 1..9",
        "   │           └─ sum: cursor 7, 2 batches behind, falling_behind",
        "   └▶ counts (above)",
    ]
    assert as_text([]) == []


def test_dot_has_a_node_for_each_and_an_edge_for_each_source_and_target() -> None:
    lines = as_dot(CHAIN)
    assert (lines[0], lines[-1]) == ("digraph flows {", "}")
    assert len([line for line in lines if "shape=box" in line]) == 4
    assert len([line for line in lines if "shape=ellipse" in line]) == 5
    assert '  "table posts" -> "flow split";' in lines
    assert '  "flow split" -> "table counts";' in lines
    (stalled,) = (line for line in lines if "fontcolor=red" in line)
    assert "consumer length job" in stalled


async def test_command_draws_the_flows_of_a_cluster(api: Api) -> None:
    for table in ("a", "b"):
        await api.call("PUT", f"/v1/tables/{table}", {"kind": "resident"})
    await api.call("PUT", "/v1/flows/f", {"source": "a", "target": "b", "consumers": ["job"]})
    endpoint = str(api._http._base_url).rstrip("/")

    async def run(*arguments: str) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--endpoint", endpoint])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "└─ flow f, batches none" in await run("flow", "graph")
    assert '"flow f" -> "table b";' in await run("flow", "graph", "--dot")
