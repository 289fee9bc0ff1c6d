"""``POST /v1/flows/{flow}/consumers/{name}/cascade`` at a real node: once, whole, with the cursor, for who may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from oncegate.gateway.node.settings import Settings
from tests.conftest import Api
from tests.gateway.http_contract import MSGPACK, assert_problem, batch_lines, declare, one_node, put, sealed, serving
from tests.gateway.test_auth import ADMIN, ALL, as_, entry, written

PATH = "/v1/flows/f/consumers/job/cascade"
WRITES = [
    {"op": "put", "table": "events", "key": "a", "value": {"b": 1, "a": [1.5, None]}},
    {"op": "increment", "table": "counts", "key": "n", "by": 3},
    {"op": "delete", "table": "events", "key": "b"},
]


def part(number: int, fence: int, writes: Any = WRITES, *, batch: int = 1, last: bool = False) -> dict[str, Any]:
    return {"batch": batch, "part": number, "fence": fence, "last": last, "writes": writes}


async def _begun(api: Api, client_id: str) -> int:
    """Seal two batches of flow ``f``, whose consumer ``job`` may write to two tables; return its fence."""
    await declare(api, "counts")
    status, _, state = await api.call(
        "PUT", "/v1/flows/f", {"source": "rows", "target": ["events", "counts"], "max_items": 1}
    )
    assert (status, state["target"]) == (200, ["events", "counts"])
    await api.operate(client_id, put(1, "x", 1), put(2, "y", 2))
    await sealed(api, "f", 2)
    return int((await api.call("POST", "/v1/flows/f/consumers/job/attach", {"nonce": "n"}))[2]["fence"])


async def test_part_is_written_once_and_its_items_have_no_session(api: Api, client_id: str) -> None:
    fence = await _begun(api, client_id)
    status, headers, first = await api.call("POST", PATH, part(1, fence), headers={"traceparent": TRACE})
    assert (status, first["cursor"], first["replayed"]) == (200, 0, False)
    assert "Oncegate-Memory-Ms" not in headers, "no lease has a part in it"
    again = (await api.call("POST", PATH, part(1, fence)))[2]
    assert again == {**first, "replayed": True}
    packed = msgspec.msgpack.encode(part(2, fence, [], last=True))
    _, _, last = await api.call("POST", PATH, data=packed, headers={"Content-Type": MSGPACK})
    assert msgspec.msgpack.decode(last) if isinstance(last, bytes) else last
    assert (await api.call("GET", "/v1/flows/f"))[2]["consumers"]["job"]["cursor"] == 1
    assert (await api.call("GET", "/v1/tables/counts/rows/n"))[2]["value"] == 3
    await sealed(api, "events")
    put_a, deleted_b = await batch_lines(api, "events")
    assert (put_a["value"], deleted_b["deleted"]) == ({"a": [1.5, None], "b": 1}, True)
    assert (put_a["client_id"], put_a["sequence"], put_a["traceparent"]) == ("0" * 16, put_a["commit"], TRACE)
    assert [put_a["commit"], deleted_b["commit"]] == [first["commit"] - 2, first["commit"]]


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_refusals_have_their_codes_and_change_nothing(api: Api, client_id: str) -> None:
    fence = await _begun(api, client_id)
    await api.call("POST", PATH, part(1, fence))
    for sent, code in (
        (part(1, fence, WRITES[:1]), "PAYLOAD_MISMATCH"),
        (part(1, fence, batch=2), "BAD_REQUEST"),
        (part(3, fence), "BAD_REQUEST"),
        (part(2, fence, [{"op": "put", "table": "rows", "key": "k", "value": 1}]), "BAD_REQUEST"),
        (part(2, fence, [{"op": "append", "table": "counts", "key": "k"}]), "BAD_REQUEST"),
        (part(2, fence, [{**WRITES[0], "if": {"absent": True}}]), "BAD_REQUEST"),
        (part(2, fence, []), "BAD_REQUEST"),
        (part(2, fence, WRITES[:1] * 4_097), "PAYLOAD_TOO_LARGE"),
    ):
        assert_problem(await api.call("POST", PATH, sent), code)
    newer = (await api.call("POST", "/v1/flows/f/consumers/job/attach", {"nonce": "m"}))[2]["fence"]
    assert_problem(await api.call("POST", PATH, part(2, fence, [], last=True)), "FENCED")
    assert (await api.call("POST", PATH, part(2, newer, [], last=True)))[2]["cursor"] == 1
    assert (await api.call("GET", "/v1/tables/counts/rows/n"))[2]["value"] == 3


async def test_restarted_node_remembers_the_parts_of_a_batch(files: Settings) -> None:
    async with serving(files) as (api, _):
        await declare(api)
        await declare(api, "events", "stream")
        fence = await _begun(api, await api.session())
        first = (await api.call("POST", PATH, part(1, fence)))[2]
    async with serving(files) as (api, _):
        assert (await api.call("POST", PATH, part(1, fence)))[2] == {**first, "replayed": True}
        assert (await api.call("POST", PATH, part(2, fence, WRITES, last=True)))[2]["cursor"] == 1
        assert (await api.call("GET", "/v1/tables/counts/rows/n"))[2]["value"] == 6


async def test_token_needs_both_scopes_to_cascade(tmp_path: Path) -> None:
    flows = "t-flows"
    tokens = written(tmp_path / "tokens.toml", ALL + entry(flows, "ops", "read", "flows"))
    async with serving(one_node(tmp_path, tokens_file=tokens)) as (api, _):
        refused = await as_(api, flows, "POST", PATH, part(1, 1))
        assert "scope write" in assert_problem(refused, "FORBIDDEN")["detail"]
        assert_problem(await as_(api, ADMIN, "POST", PATH, part(1, 1)), "NOT_FOUND")
