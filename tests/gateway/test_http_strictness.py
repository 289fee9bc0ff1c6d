"""A node refuses what it does not understand: on every route that is served, a new one too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yarl

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway import wire
from oncegate.gateway.http.admission import desk
from oncegate.gateway.http.routing import Raw
from oncegate.gateway.http.server import ROUTES
from oncegate.rifl.errors import OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import JSON_LINES, MSGPACK, assert_problem, operations, path_of, put, range_headers

FREE = {
    "put": "any JSON is a value",
    "post": "attributes of a CloudEvent are anybody's; the value keeps all of them",
    "put_range": "tried below, in each of its forms",
}
"""Handlers whose bodies are no objects of fixed fields."""
READ_FROM_LOGS = (FlowDeclaration,)
"""Read from logs of other builds too; the route checks the names by itself."""


def structs(shape: Any) -> Iterator[type]:
    """Yield the struct types that a body of this shape may hold."""
    seen: set[type] = set()
    todo: list[Any] = [msgspec.inspect.type_info(shape)]
    while todo:
        match todo.pop():
            case msgspec.inspect.StructType(cls=found, fields=fields) if found not in seen:
                seen.add(found)
                todo += [field.type for field in fields]
                yield found
            case msgspec.inspect.UnionType(types=types):
                todo += types
            case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
                todo.append(item)


WITH_FIELDS = [route for route in ROUTES if route.body is not None and not isinstance(route.body, Raw)]


def test_every_body_of_every_route_forbids_unknown_fields() -> None:
    lenient = {
        found.__name__
        for route in WITH_FIELDS
        for found in structs(route.body)
        if found not in READ_FROM_LOGS and not found.__struct_config__.forbid_unknown_fields
    }
    assert not lenient
    raw = {route.handler.__name__ for route in ROUTES if isinstance(route.body, Raw)}
    assert raw == FREE.keys()


async def test_unknown_field_is_refused_on_every_route(api: Api, client_id: str) -> None:
    for route in WITH_FIELDS:
        for kind, encode in (("application/json", msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)):
            headers = {"Content-Type": kind, "Idempotency-Key": '"k"'}
            sent = {"data": encode({"no_such_field": 1}), "headers": headers}
            refused = assert_problem(await api.call(route.method, path_of(route), **sent), "BAD_REQUEST")
            assert "unknown field no_such_field" in refused["detail"], (route.method, route.path)


async def test_refusal_of_a_field_names_the_nearest_right_one(api: Api, client_id: str) -> None:
    nested = operations(client_id, {**put(1, "a", 1), "tabel": "rows"})
    long = operations(client_id, put(1, "a", "x" * 40_000), {**put(2, "b", 1), "iff": {"absent": True}})
    for method, path, body, said in (
        ("PUT", "/v1/tables/t", {"kind": "resident", "quota_byte": 5000}, "quota_byte: did you mean quota_bytes?"),
        ("PUT", "/v1/tables/t", {"kind": "stream", "flow": {"retention": 5}}, "retention at flow: did you mean retent"),
        ("PUT", "/v1/flows/f", {"source": "rows", "consumer": ["a"]}, "consumer: did you mean consumers?"),
        ("POST", "/v1/operations", nested, "tabel at operations[0]: did you mean table?"),
        ("POST", "/v1/operations", long, "iff at operations[1]: did you mean if?"),
        ("POST", "/v1/sessions", {"nonce": "n", "zzz": 1}, "zzz: known: lease_ms, nonce, window"),
        ("POST", "/v1/sessions", {"z" * 30_000: 1}, f"{'z' * 64}…: known: lease_ms, nonce, window"),
    ):
        refused = assert_problem(await api.call(method, path, body), "BAD_REQUEST")
        assert said in refused["detail"]
    assert_problem(await api.call("GET", "/v1/tables/t"), "NOT_FOUND")
    assert (await api.operate(client_id, put(1, "a", 1)))[0]["commit"] == 1


async def test_unknown_field_of_a_range_is_refused_in_each_form(api: Api, client_id: str) -> None:
    for kind, body in (
        (JSON_LINES, b'{"key":"a","value":1,"ttl_ms":5}'),
        (MSGPACK, msgspec.msgpack.encode({"keys": ["a"], "values": ["1"], "ttl_ms": 5})),
    ):
        answer = await api.call(
            "POST", "/v1/tables/events/ranges", data=body, headers=range_headers(client_id, 1, kind)
        )
        assert "unknown field ttl_ms" in assert_problem(answer, "BAD_REQUEST")["detail"]


async def test_unknown_or_repeated_query_parameter_is_refused_on_every_route(api: Api, client_id: str) -> None:
    for route in ROUTES:
        answer = await api.call(route.method, f"{path_of(route)}?no_such_parameter=1")
        refused = assert_problem(answer, "BAD_REQUEST")
        assert "unknown query parameter no_such_parameter" in refused["detail"], (route.method, route.path)
    near = assert_problem(await api.call("GET", "/v1/tables/rows/rows?perfix=a"), "BAD_REQUEST")
    assert "perfix: did you mean prefix?" in near["detail"]
    twice = assert_problem(await api.call("GET", "/v1/tables/rows/rows?limit=1&limit=2"), "BAD_REQUEST")
    assert twice["detail"] == "query parameter limit is given more than once"


async def test_body_is_refused_where_none_is_taken(api: Api, client_id: str) -> None:
    for route in ROUTES:
        if route.body is None:
            answer = await api.call(route.method, path_of(route), {"if": {"version": 3}})
            refused = assert_problem(answer, "BAD_REQUEST")
            assert refused["detail"] == "this path takes no body", (route.method, route.path)


async def test_path_or_query_that_is_no_utf_8_is_refused_on_every_route(api: Api, client_id: str) -> None:
    bad = ("%ff", "%c3", "a%ED%A0%80", "%zz", "100%", "%c3%28")
    for route in ROUTES:
        places = [found.span() for found in re.finditer(r"(?<=/)(?:x|k|1|0{15}1)(?=/|$)", path_of(route))]
        assert len(places) == route.path.count("{")
        paths = [f"{path_of(route)[:start]}{text}{path_of(route)[end:]}" for start, end in places for text in bad]
        for path in (*paths, f"{path_of(route)}?after=%ff"):
            assert_problem(await api.call(route.method, yarl.URL(path, encoded=True)), "BAD_REQUEST")  # type: ignore[arg-type]
    for path in ("/v1/no/such/%ff", "/%ff"):
        assert_problem(await api.call("GET", yarl.URL(path, encoded=True)), "BAD_REQUEST")  # type: ignore[arg-type]
    assert (await api.call("GET", "/v1/tables/rows/rows"))[2]["rows"] == []


async def test_every_answer_says_the_commit_that_it_reflects(api: Api, client_id: str) -> None:
    await api.operate(client_id, put(1, "a", 1))
    for route in ROUTES:
        body = {} if route in WITH_FIELDS else None
        for path in {path_of(route), path_of(route, "rows")}:
            async with api._http.request(
                route.method, path, json=body
            ) as answer:  # a watch never ends: no body is read
                assert answer.headers.get(wire.H_COMMIT) == "1", (route.method, path)


async def test_snapshot_and_its_file_say_the_commit(api: Api, client_id: str) -> None:
    await api.operate(client_id, put(1, "a", 1))
    _, headers, made = await api.call("POST", "/v1/snapshots")
    path = f"/v1/snapshots/{made['id']}"
    file = await api.call("GET", f"{path}/files/{made['manifest']['files'][0]['sha256']}")
    gone = await api.call("DELETE", path)
    assert [headers[wire.H_COMMIT], *(one[1].get(wire.H_COMMIT) for one in (file, gone))] == ["1", "1", "1"]


async def test_not_found_names_the_table(api: Api, client_id: str) -> None:
    for method, path, said in (
        ("GET", "/v1/tables/seatz", "no table seatz"),
        ("GET", "/v1/tables/seatz/rows", "no table seatz"),
        ("GET", "/v1/tables/seatz/rows/k", "no table seatz"),
        ("GET", "/v1/tables/rows/rows/k", "no row k in table rows"),
        ("GET", "/v1/tables/events/rows/k", "no row k in table events"),
        ("GET", "/v1/explain?table=seatz&key=k", "no table seatz"),
    ):
        assert assert_problem(await api.call(method, path), "NOT_FOUND")["detail"] == said
    (verdict,) = await api.operate(client_id, put(1, "k", 1, "seatz"))
    assert (verdict["code"], verdict["detail"]) == ("NOT_FOUND", "no table seatz")
    answer = await api.call("PUT", "/v1/tables/seatz/rows/k", 1, headers={"Idempotency-Key": '"k"'})
    assert assert_problem(answer, "NOT_FOUND")["detail"] == "no table seatz"


def test_what_the_sdk_sends_has_no_field_that_is_not_used() -> None:
    """A node of an earlier build refuses a field that it does not know, also one with its default."""
    op = wire.Operation(1, "put", "t", "k", 1)
    sent = json.loads(msgspec.json.encode(wire.OperationsRequest("0000000000000001", 1, 1, [op])))
    assert sent.keys() == {"client_id", "epoch", "first_incomplete", "operations"}
    assert sent["operations"] == [{"sequence": 1, "op": "put", "table": "t", "key": "k", "value": 1}]


@pytest.mark.parametrize("target", ["/a%20b", "/%E2%82%AC?x=%7B", "/€", "/a+b", "/"])
def test_target_in_utf_8_is_taken(target: str) -> None:
    desk.check_target(target)


@pytest.mark.parametrize("target", ["/%", "/%f", "/%fg", "/a?x=%C3", "/\udcff"])
def test_target_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(OncegateError, match="BAD_REQUEST"):
        desk.check_target(target)
