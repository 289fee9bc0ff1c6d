"""Tokens for some tables, tokens that end, tokens that succeed others, and tokens that an identity provider signs."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from oncegate.gateway.http.admission import desk as desks
from oncegate.gateway.http.admission.desk import CHECKED_BY_ITS_HANDLER, OF_THE_TENANT
from oncegate.gateway.http.admission.hosts import AllowedHosts
from oncegate.gateway.http.auth import Tokens, new_token, tokens_of
from oncegate.gateway.http.identity import Identity, Scope, allowed
from oncegate.gateway.http.routes import flows, watch
from oncegate.gateway.http.server import ROUTES, check_exposure
from oncegate.gateway.http.signed_tokens import LEEWAY_S, JwtTokens
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import JSON_LINES, assert_problem, one_node, operations, put, range_headers, serving
from tests.gateway.test_auth import ADMIN, as_, entry, written

ORDERS = "t-orders"
"""Reads everything, and does the rest with what begins with ``orders``."""
NARROW = "t-narrow"
FILE = (
    entry(ADMIN, "ops", "read", "write", "flows", "admin")
    + entry(ORDERS, "ann", "read", "write:orders", "flows:orders", "admin:orders")
    + entry(NARROW, "ann", "read:orders", "write:orders", "write:carts")
)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Api]:
    tokens = written(tmp_path / "tokens.toml", FILE)
    async with serving(one_node(tmp_path, tokens_file=tokens)) as (api, _):
        for table in ("orders", "payments"):
            await as_(api, ADMIN, "PUT", f"/v1/tables/{table}", {"kind": "resident"})
        await as_(api, ADMIN, "PUT", "/v1/tables/events", {"kind": "stream"})
        await as_(api, ADMIN, "PUT", "/v1/flows/payments", {"source": "payments"})
        yield api


async def test_token_for_some_tables_reaches_them_and_no_others_by_path_body_and_query(shop: Api) -> None:
    session = (await as_(shop, NARROW, "POST", "/v1/sessions", {"nonce": "n"}))[2]["client_id"]
    good = operations(session, put(1, "a", 1, table="orders"))
    assert (await as_(shop, NARROW, "POST", "/v1/operations", good))[0] == 200
    mixed = operations(session, put(2, "a", 1, table="orders"), put(3, "a", 1, table="payments"))
    lines = {**range_headers(session, 4, JSON_LINES), "Authorization": f"Bearer {NARROW}"}
    key = {"Idempotency-Key": '"k"'}
    for answer in (
        await as_(shop, NARROW, "POST", "/v1/operations", mixed),
        await as_(shop, NARROW, "PUT", "/v1/tables/payments/rows/a", 1, **key),
        await as_(shop, NARROW, "GET", "/v1/tables/payments/rows/a"),
        await as_(shop, NARROW, "GET", "/v1/tables/payments/rows"),
        await as_(shop, NARROW, "GET", "/v1/flows/payments"),
        await as_(shop, NARROW, "GET", "/v1/explain?table=payments&key=a"),
        await as_(shop, NARROW, "GET", "/metrics"),
        await shop.call("POST", "/v1/tables/events/ranges", data=b'{"key":"k","value":1}', headers=lines),
    ):
        assert_problem(answer, "FORBIDDEN")
    both = [{"table": table, "key": "a"} for table in ("orders", "payments")]
    ours = {"op": "put", "table": "orders", "key": "t", "value": 1}
    looks = {"writes": [ours], "conditions": [{"table": "payments", "key": "a", "if": {"absent": True}}]}
    for answer in (
        await as_(shop, NARROW, "POST", "/v1/rows", {"rows": both}),
        await as_(shop, NARROW, "POST", "/v1/transactions", {"writes": [ours, {**ours, "table": "payments"}]}, **key),
        await as_(shop, NARROW, "POST", "/v1/transactions", looks, **key),
        await as_(
            shop, NARROW, "POST", "/v1/operations", operations(session, {"sequence": 2, "op": "transaction", **looks})
        ),
        await as_(shop, NARROW, "GET", "/v1/tables/payments/watch"),
    ):
        assert_problem(answer, "FORBIDDEN")
    assert [one["name"] for one in (await as_(shop, NARROW, "GET", "/v1/tables"))[2]["tables"]] == ["orders"]
    assert (await as_(shop, NARROW, "GET", f"/v1/requests/{session}/2"))[2]["state"] == "never_seen", "none of it ran"
    assert (await as_(shop, NARROW, "PUT", "/v1/tables/orders/rows/b", 1, **key))[0] == 200
    assert (await as_(shop, NARROW, "GET", "/v1/tables/orders/rows/a"))[2]["value"] == 1
    assert (await as_(shop, NARROW, "GET", "/v1/explain?table=orders&key=a"))[0] == 200
    assert (await as_(shop, NARROW, "GET", "/v1/flows"))[2]["flows"] == []


async def test_history_of_a_row_names_the_flows_alone_that_the_token_may_read(shop: Api) -> None:
    for flow in ("audit", "orders-daily"):
        await as_(shop, ADMIN, "PUT", f"/v1/flows/{flow}", {"source": "orders", "consumers": ["x"]})
    await as_(shop, NARROW, "PUT", "/v1/tables/orders/rows/a", 1, **{"Idempotency-Key": '"k"'})
    for token, named in ((NARROW, {"orders-daily"}), (ORDERS, {"audit", "orders-daily"})):
        events = (await as_(shop, token, "GET", "/v1/explain?table=orders&key=a"))[2]["events"]
        assert {event["flow"] for event in events if "flow" in event} == named


async def test_flows_and_tables_are_declared_within_the_prefix_alone(shop: Api) -> None:
    flow = {"source": "orders"}
    for method, path, body, refused in (
        ("PUT", "/v1/tables/orders-eu", {"kind": "resident"}, False),
        ("PUT", "/v1/tables/payments", {"kind": "resident"}, True),
        ("PUT", "/v1/flows/orders-out", flow, False),
        ("PUT", "/v1/flows/out", flow, True),
        ("PUT", "/v1/flows/orders-in", {"source": "payments"}, True),
        ("PUT", "/v1/flows/orders-on", {"source": "orders", "target": ["orders-eu", "payments"]}, True),
        ("POST", "/v1/flows/payments/consumers/c/attach", {"nonce": "n"}, True),
        ("POST", "/v1/cluster/leader", {}, True),
        ("DELETE", "/v1/cluster/members/n9", None, True),
    ):
        answer = await as_(shop, ORDERS, method, path, body)
        if refused:
            assert_problem(answer, "FORBIDDEN")
        else:
            assert answer[0] == 200, answer
    assert (await as_(shop, ORDERS, "GET", "/v1/tables/payments/rows/a"))[0] == 404, "it reads everything"
    await as_(shop, ORDERS, "POST", "/v1/flows/orders-out/consumers/c/attach", {"nonce": "n"})
    write = {"op": "put", "table": "payments", "key": "k", "value": 1}
    part = {"batch": 1, "part": 1, "fence": 1, "last": True, "writes": [write]}
    refused = await as_(shop, ORDERS, "POST", "/v1/flows/orders-out/consumers/c/cascade", part)
    assert "payments" in assert_problem(refused, "FORBIDDEN")["detail"]


async def test_route_that_names_no_table_is_closed_to_a_token_for_some_tables_unless_somebody_opened_it(
    shop: Api,
) -> None:
    for route in ROUTES:
        scope = route.scope
        opened = route.path in CHECKED_BY_ITS_HANDLER or route.path.startswith(OF_THE_TENANT)
        if scope in (None, Scope.FLOWS) or re.search(r"{(table|flow)", route.path) or (opened and scope != Scope.ADMIN):
            continue
        token = ORDERS if scope is Scope.ADMIN else NARROW
        path = re.sub(r"{\w+}", "n9", route.path)
        assert_problem(await as_(shop, token, route.method, path), "FORBIDDEN")


def test_scope_without_a_prefix_counts_more_than_the_same_with_one_and_nonsense_is_refused() -> None:
    assert allowed(["write:orders", "write"]).within == {}
    assert allowed(["write:b", "write:a", "read"]) == ({Scope.READ, Scope.WRITE}, {Scope.WRITE: ("a", "b")})
    for wrong in ("fly", "write:", "write:A", "write:a:b", "", "READ"):
        with pytest.raises(ValueError, match="is none of read, write, flows, admin"):
            allowed([wrong])


def test_expired_token_is_refused_like_an_unknown_one(tmp_path: Path) -> None:
    end = datetime(2027, 1, 1, tzinfo=UTC)
    text, lines = new_token("laptop", "ann", ["read"], end)
    tokens = Tokens(written(tmp_path / "tokens.toml", lines))
    assert tokens.identify(f"Bearer {text}", end.timestamp() - 1).name == "laptop"
    refusals = []
    for bearer in (text, "another"):
        with pytest.raises(OncegateError) as refused:
            tokens.identify(f"Bearer {bearer}", end.timestamp())
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]
    with pytest.raises(ValueError, match="expires"):
        Tokens(written(tmp_path / "tokens.toml", lines.replace("+00:00", "")))


def test_token_and_its_successor_are_both_good_until_the_old_one_is_taken_out(tmp_path: Path) -> None:
    (old, of_old), (new, of_new) = new_token("ann-1", "ann", ["read"]), new_token("ann-2", "ann", ["read"])
    path = written(tmp_path / "tokens.toml", of_old)
    tokens = Tokens(path)
    written(path, f"{of_old}\n{of_new}\n")
    assert tokens.refresh()
    assert {tokens.identify(f"Bearer {token}").tenant for token in (old, new)} == {"ann"}
    written(path, of_new)
    assert tokens.refresh()
    assert tokens.identify(f"Bearer {new}").name == "ann-2"
    with pytest.raises(OncegateError, match="UNAUTHENTICATED"):
        tokens.identify(f"Bearer {old}")


@pytest.mark.parametrize("left", [entry(ADMIN, "ops", "read"), entry(ORDERS, "ann", "read:orders")])
async def test_watcher_whose_token_is_taken_out_or_reaches_the_flow_no_more_is_ended(
    tmp_path: Path, shop: Api, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(flows, "KEEP_ALIVE_S", 0.02)
    headers = {"Authorization": f"Bearer {ORDERS}"}
    async with shop._http.get("/v1/flows/payments/watch", headers=headers) as watching:
        assert await watching.content.readline() == b": alive\n"
        written(tmp_path / "tokens.toml", left)
        async with asyncio.timeout(20):
            assert set((await watching.content.read()).splitlines()) == {b"", b": alive"}, "and then its end"


async def test_watcher_of_rows_is_told_that_its_token_reaches_them_no_more(
    tmp_path: Path, shop: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "KEEP_ALIVE_S", 0.02)
    headers = {"Authorization": f"Bearer {ORDERS}"}
    async with shop._http.get("/v1/tables/payments/watch", headers=headers) as watching:
        for _ in range(4):
            assert b"event: progress" in await watching.content.readuntil(b"\n\n"), "as long as nothing changes"
        written(tmp_path / "tokens.toml", entry(ORDERS, "ann", "read:orders"))
        async with asyncio.timeout(20):
            *_, end, _ = (await watching.content.read()).split(b"\n\n")
    assert end.startswith(b"event: end\n")
    assert b'"code":"UNAUTHENTICATED"' in end


async def test_tenant_with_a_rate_of_its_own_is_held_to_it_with_all_its_tokens_and_a_change_counts_at_once(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "tokens.toml", FILE)
    now_s = 0.0
    tokens = Tokens(path)
    bounds = {"requests_max": 5, "operations_per_s": 100, "body_bytes_max": 1}
    desk = desks.Desk((), tokens=tokens, hosts=AllowedHosts(()), clock=lambda: now_s, **bounds)
    ann, other = tokens.identify(f"Bearer {ORDERS}"), tokens.identify(f"Bearer {NARROW}")
    for text, rate in (("", 100), ('[[tenant]]\nname="ann"\noperations_per_s=7', 7), ("", 100)):
        written(path, FILE + text)
        tokens.refresh(anyway=True)
        usage = desk._usage(ann)
        assert usage is desk._usage(other)
        assert usage.bucket is not None
        assert usage.bucket.per_s == rate
    written(path, FILE + '[[tenant]]\nname="ann"\noperations_per_s=0')
    tokens.refresh(anyway=True)
    assert desk._usage(ann).bucket is None, "no bound"
    for wrong in (2 * '[[tenant]]\nname="ann"\noperations_per_s=7\n', '[[tenant]]\nname="ann"\noperations_per_s=-1'):
        with pytest.raises(ValueError, match="tenant"):
            Tokens(written(path, FILE + wrong))


ISSUER, AUDIENCE = "https://login.example", "oncegate"


class Provider:
    """An identity provider: its keys, their public halves in a file, and what it signs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[str, Any] = {
            "one": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "two": ec.generate_private_key(ec.SECP256R1()),
        }
        self.publish("one", "two")

    def publish(self, *kids: str) -> None:
        algorithms = {"one": jwt.algorithms.RSAAlgorithm, "two": jwt.algorithms.ECAlgorithm}
        keys = [{**algorithms[kid].to_jwk(self.keys[kid].public_key(), as_dict=True), "kid": kid} for kid in kids]
        written(self.path, json.dumps({"keys": keys}))

    def sign(self, kid: str = "one", algorithm: str = "RS256", key: Any = None, **claims: Any) -> str:
        now = int(time.time())
        said = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "ann@example",
            "tenant": "ann",
            "exp": now + 600,
            "scope": "openid read write:orders",
            **claims,
        }
        said = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(said, key or self.keys[kid], algorithm, headers={"kid": kid})


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path / "keys.json")


def test_signed_token_is_who_and_what_it_says(provider: Provider) -> None:
    tokens = Tokens(None, JwtTokens(provider.path, ISSUER, AUDIENCE))
    for token in (provider.sign(), provider.sign("two", "ES256", aud=["other", AUDIENCE])):
        for _ in range(2):  # verified, and remembered
            found = tokens.identify(f"Bearer {token}")
            assert (found.name, found.tenant, found.scopes) == ("jwt:ann@example", "ann", {Scope.READ, Scope.WRITE})
            assert found.within == {Scope.WRITE: ("orders",)}


def test_signed_token_that_is_not_right_in_any_point_proves_nobody(provider: Provider) -> None:
    tokens = JwtTokens(provider.path, ISSUER, AUDIENCE)
    now = time.time()
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    header, body, signature = provider.sign().split(".")
    unsigned = jwt.encode({"sub": "ann"}, "", "none")
    deep = base64.urlsafe_b64encode(b"[" * 5_000).decode().rstrip("=")
    for wrong in (
        *(provider.sign(**{name: None}) for name in ("exp", "iss", "aud", "sub", "tenant")),
        *(provider.sign(iss="https://other"), provider.sign(aud="other"), provider.sign(exp=int(now) - 2 * LEEWAY_S)),
        *(provider.sign(nbf=int(now) + 600), provider.sign(tenant="a b"), provider.sign(tenant=7)),
        *(provider.sign(key=stranger), provider.sign("three", key=stranger), provider.sign(kid="two", key=stranger)),
        provider.sign("one", "HS256", key="k" * 64),
        *(
            unsigned,
            f"{header}.{body}.",
            f"{header}.{body[:-2]}AA.{signature}",
            "a.b.c",
            "..",
            "x",
            "\udcff.\udcff.x",
            f"{deep}.a.b",
        ),
    ):
        assert tokens.identify(wrong, now) is None, wrong


def test_signed_token_ends_when_it_says_also_when_it_was_verified_before(provider: Provider) -> None:
    tokens = JwtTokens(provider.path, ISSUER, AUDIENCE)
    end = int(time.time()) + 600
    token = provider.sign(exp=end)
    assert tokens.identify(token, end - 1) is not None
    assert tokens.identify(token, end + LEEWAY_S) is None


def test_key_that_is_taken_out_counts_no_more_also_for_what_was_verified_before(provider: Provider) -> None:
    tokens = Tokens(None, JwtTokens(provider.path, ISSUER, AUDIENCE))
    token = provider.sign()
    assert tokens.identify(f"Bearer {token}").tenant == "ann"
    provider.publish("two")
    assert tokens.refresh()
    with pytest.raises(OncegateError, match="UNAUTHENTICATED"):
        tokens.identify(f"Bearer {token}")
    written(provider.path, "{}")
    assert not tokens.refresh()
    assert tokens.identify(f"Bearer {provider.sign('two', 'ES256')}").tenant == "ann", "a broken file changes nothing"


def test_keys_that_are_secret_or_none_are_refused(provider: Provider) -> None:
    private = jwt.algorithms.RSAAlgorithm.to_jwk(provider.keys["one"], as_dict=True)
    for text, said in (
        (json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "x"}]}), "public keys only"),
        (json.dumps({"keys": [{**private, "kid": "x"}]}), "public keys only"),
        (json.dumps({"keys": [{"kty": "RSA", "kid": "x"}]}), "no JWK set"),
        (json.dumps([]), "no JWK set"),
        ("{", "not JSON"),
    ):
        written(provider.path, text)
        with pytest.raises(ValueError, match=said):
            JwtTokens(provider.path, ISSUER, AUDIENCE)


def test_keys_that_are_not_for_signatures_are_left_alone_and_sign_nothing(provider: Provider) -> None:
    published = json.loads(provider.path.read_bytes())["keys"]
    for other in ({"use": "enc", "alg": "RSA-OAEP"}, {"use": "enc"}, {"alg": "RSA-OAEP"}, {"alg": "none"}):
        written(provider.path, json.dumps({"keys": [{**published[0], **other}, published[1]]}))
        tokens = JwtTokens(provider.path, ISSUER, AUDIENCE)
        assert tokens.identify(provider.sign(), time.time()) is None, other
        assert tokens.identify(provider.sign("two", "ES256"), time.time()) is not None


async def test_node_takes_signed_tokens_and_those_of_its_file(tmp_path: Path, provider: Provider) -> None:
    given = {"jwt_keys_file": provider.path, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    tokens = written(tmp_path / "tokens.toml", FILE)
    async with serving(one_node(tmp_path, tokens_file=tokens, **given)) as (api, _):
        await as_(api, ADMIN, "PUT", "/v1/tables/orders", {"kind": "resident"})
        status, _, opened = await as_(api, provider.sign(), "POST", "/v1/sessions", {"nonce": "n"})
        assert status == 201
        mine = await as_(api, NARROW, "GET", f"/v1/sessions/{opened['client_id']}")
        assert mine[0] == 200, "the tenant is the same, whoever says so"
        assert_problem(await as_(api, provider.sign(scope="openid"), "GET", "/v1/flows"), "FORBIDDEN")
        assert_problem(await as_(api, provider.sign(aud="other"), "GET", "/v1/flows"), "UNAUTHENTICATED")


def test_tenants_that_signed_tokens_name_are_counted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "TENANTS_MAX", 2)
    now_s = 0.0
    desk = desks.Desk(
        (), requests_max=5, operations_per_s=10, body_bytes_max=1, hosts=AllowedHosts(()), clock=lambda: now_s
    )
    at_work, in_debt, new = (Identity("jwt:x", tenant, frozenset(Scope)) for tenant in ("a", "b", "c"))
    desk._usage(at_work).requests = 1
    bucket = desk._usage(in_debt).bucket
    assert bucket is not None
    bucket.take(20)
    for _ in range(2):
        with pytest.raises(OncegateError, match="OVERLOADED"):
            desk._usage(new)
        assert desk.usage_of(new) is None
    now_s = 60.0
    desk._usage(new)
    assert desk.usage_of(in_debt) is None, "it owes nothing any more, and would begin with the same"
    assert desk.usage_of(at_work) is not None


def test_settings_of_signed_tokens_go_together_and_stand_in_for_a_file_of_tokens(
    tmp_path: Path, provider: Provider
) -> None:
    given: dict[str, Any] = {"jwt_keys_file": provider.path, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    assert tokens_of(Settings()) is None
    assert tokens_of(Settings(**given)) is not None
    for name in given:
        with pytest.raises(ValueError, match="go together"):
            tokens_of(Settings(**{**given, name: None}))
    tls = {"tls_certificate": tmp_path / "c", "tls_key": tmp_path / "k"}
    check_exposure(Settings(members=["n1=10.0.0.1:1:2"], **tls, **given))


def test_signed_tokens_that_are_remembered_are_bounded(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncegate.gateway.http.signed_tokens.VERIFIED_MAX", 3)
    tokens = JwtTokens(provider.path, ISSUER, AUDIENCE)
    for at in range(10):
        assert tokens.identify(provider.sign(sub=f"s{at}"), time.time()) is not None
        assert len(tokens._verified) <= 3


async def test_tokens_are_looked_at_again_after_a_look_that_failed(
    tmp_path: Path, shop: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def failing(self: Tokens, *, anyway: bool = False) -> bool:
        nonlocal looks
        looks += 1
        raise RuntimeError("not expected by anybody")

    monkeypatch.setattr("oncegate.gateway.http.server.LOOK_S", 0.01)
    monkeypatch.setattr(Tokens, "refresh", failing)
    async with asyncio.timeout(20):
        while looks < 3:
            await asyncio.sleep(0.01)
