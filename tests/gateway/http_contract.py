"""What the HTTP tests share: a node, the shape of a problem, bodies, and the state that a refusal must not change."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pyarrow as pa

from oncegate.gateway.http.routing import Route
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import REGISTRY, Code
from tests.conftest import Api

MSGPACK = "application/vnd.oncegate+msgpack"
ARROW = "application/vnd.apache.arrow.stream"
JSON_LINES = "application/x-ndjson"


def one_node(directory: Path, **more: Any) -> Settings:
    """Return the settings of a cluster of one on free ports."""
    http_port, peer_port = free_ports(2)
    return Settings(members=[f"n1=127.0.0.1:{http_port}:{peer_port}"], data_dir=directory / "n1", **more)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[Api, Node]]:
    """Run a node in this process, from ready to an orderly stop."""
    async with running(settings) as node, aiohttp.ClientSession(base_url=settings.address.http) as http:
        async with asyncio.timeout(20):
            while (await http.get("/readyz")).status != 200:
                pass
            await founded(node)
        yield Api(http), node


async def founded(node: Node) -> None:
    """Wait until a new cluster has ordered what it orders by itself; its identity comes last."""
    while not node.machine.identity:
        await asyncio.sleep(0.01)


def assert_problem(answer: tuple[int, Any, Any], code: str) -> Any:
    """Check that an answer is the ``application/problem+json`` of ``code`` in every detail; return its body."""
    status, headers, body = answer
    assert isinstance(body, dict), (status, body)
    assert body["code"] == code, body
    traits = REGISTRY[Code(code)]
    assert status == body["status"] == traits.status
    assert headers["Content-Type"].startswith("application/problem+json")
    assert body["type"] == f"urn:oncegate:error:{code}"
    assert body["title"] == traits.title
    assert body["outcome"] == traits.outcome.value
    assert body["retryable"] is traits.retryable
    assert int(headers["Oncegate-Commit"]) >= 0
    if status in (429, 503):
        assert int(headers["Retry-After"]) >= 1
        assert body["retry_after_ms"] >= 1
    return body


def path_of(route: Route, name: str = "x") -> str:
    """Return the path of a route with something in each of its places; ``name`` where a name may stand."""
    path = route.path.replace("{key:(?s:.+)}", "k").replace("{client_id}", "0000000000000001")
    return re.sub(r"{\w+}", name, re.sub(r"{(?:n|sequence)}", "1", path))


def arrow_body(keys: list[str], values: list[str], kind: Any = None, compression: str | None = None) -> bytes:
    """Return a range as an Arrow IPC stream."""
    kind = kind or pa.string()
    return arrow_table({"key": pa.array(keys, kind), "value": pa.array(values, kind)}, compression)


def arrow_table(columns: dict[str, pa.Array], compression: str | None = None) -> bytes:
    """Return columns as an Arrow IPC stream of one record batch."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def msgpack_range(keys: list[Any], values: list[Any]) -> bytes:
    """Return a range as msgpack columns."""
    return msgspec.msgpack.encode({"keys": keys, "values": values})


def json_lines(keys: list[str], values: list[str]) -> bytes:
    """Return a range as lines of JSON."""
    return b"\n".join(f'{{"key":{json.dumps(k)},"value":{v}}}'.encode() for k, v in zip(keys, values, strict=True))


def operations(client_id: Any, *many: Any, first_incomplete: Any = 1, epoch: Any = 1) -> dict[str, Any]:
    """Return the body of a request with these operations."""
    return {"client_id": client_id, "epoch": epoch, "first_incomplete": first_incomplete, "operations": many}


def put(sequence: int, key: str, value: Any, table: str = "rows", condition: Any = None) -> dict[str, Any]:
    """Return a put operation, with a condition if one is given."""
    operation = {"sequence": sequence, "op": "put", "table": table, "key": key, "value": value}
    return operation if condition is None else {**operation, "if": condition}


def range_headers(client_id: str, first: int, kind: str, first_incomplete: int = 1, epoch: int = 1) -> dict[str, str]:
    """Return the headers of a range."""
    return {
        "Content-Type": kind,
        "Oncegate-Client": client_id,
        "Oncegate-Epoch": str(epoch),
        "Oncegate-First-Sequence": str(first),
        "Oncegate-First-Incomplete": str(first_incomplete),
    }


async def send_range(
    api: Api, client_id: str, first: int, keys: list[str], *, kind: str = ARROW, first_incomplete: int = 1
) -> list[Any]:
    """Send a range of ``{"n": sequence}`` to the table ``events`` and return its results."""
    values = [f'{{"n":{first + i}}}' for i in range(len(keys))]
    encode = {ARROW: arrow_body, MSGPACK: msgpack_range, JSON_LINES: json_lines}
    body = encode[kind](keys, values)
    headers = {**range_headers(client_id, first, kind, first_incomplete), "Accept": "application/json"}
    status, answered, done = await api.call("POST", "/v1/tables/events/ranges", data=body, headers=headers)
    assert status == 200, done
    assert int(answered["Oncegate-Memory-Ms"]) == done["memory_ms"]
    results: list[Any] = done["results"]
    return results


async def declare(api: Api, table: str = "rows", kind: str = "resident", **options: Any) -> None:
    """Declare a table."""
    status, _, body = await api.call("PUT", f"/v1/tables/{table}", {"kind": kind, **options})
    assert status == 200, body


async def sealed(api: Api, flow: str, number: int = 1) -> Any:
    """Wait until batch ``number`` of a flow is sealed; return the flow's state."""
    async with asyncio.timeout(20):
        while True:
            _, _, state = await api.call("GET", f"/v1/flows/{flow}")
            if state["last_batch"] >= number and state["open_items"] == 0:
                return state


async def batch_lines(api: Api, flow: str, number: int = 1) -> list[Any]:
    """Return a batch as its JSON lines."""
    path = f"/v1/flows/{flow}/batches/{number}"
    async with api._http.get(path, headers={"Accept": JSON_LINES}) as answer:
        assert answer.content_type == JSON_LINES
        return [json.loads(line) for line in (await answer.read()).splitlines()]


async def state_of(api: Api) -> Any:
    """Return what a refused request must leave as it is."""
    _, headers, flows = await api.call("GET", "/v1/flows")
    for flow in flows["flows"]:
        for consumer in flow["consumers"].values():
            consumer["lag_ms"] = 0
    found: list[Any] = [headers["Oncegate-Commit"], flows]
    paths = ("/v1/tables/rows", "/v1/tables/events", "/v1/tables/rows/rows")
    return found + [(await api.call("GET", path))[2] for path in paths]
