"""Bearer tokens: who is let in, to what, and how they change while a node runs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from typer.testing import CliRunner

from oncegate.gateway.cli.main import app
from oncegate.gateway.http import server
from oncegate.gateway.http.auth import Tokens, new_token
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.server import ROUTES, check_exposure, running, server_context
from oncegate.gateway.local.blocking_http import Untrusted, download
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import Code, OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, one_node, operations, put, serving

READER, WRITER, ADMIN, OTHER = "t-reader", "t-writer", "t-admin", "t-other"


def entry(token: str, tenant: str, *scopes: str, **more: int) -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    fields: dict[str, Any] = {"name": token, "sha256": digest, "tenant": tenant, "scopes": list(scopes), **more}
    return "[[token]]\n" + "".join(f"{name} = {value!r}\n" for name, value in fields.items())


BOB = "b" * 40
ALL = (
    entry(READER, "ann", "read")
    + entry(WRITER, "ann", "read", "write")
    + entry(ADMIN, "ops", "read", "write", "flows", "admin")
    + entry(OTHER, "bob", "read", "write", operations_per_s=3)
    + entry(BOB, "bob", "read", "write")
)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def as_(api: Api, token: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    return await api.call(method, path, body, headers={**bearer(token), **headers})


def written(path: Path, text: str) -> Path:
    """Replace the file as an operator should: whole, by a rename."""
    aside = path.with_suffix(".new")
    aside.write_text(text)
    aside.replace(path)
    return path


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    return written(tmp_path / "tokens.toml", ALL)


@pytest.fixture
async def guarded(tmp_path: Path, tokens_file: Path) -> AsyncIterator[Api]:
    """A node with tokens and the table ``rows``."""
    async with serving(one_node(tmp_path, tokens_file=tokens_file)) as (api, _):
        await as_(api, ADMIN, "PUT", "/v1/tables/rows", {"kind": "resident"})
        yield api


NO_TOKENS = ("", "Bearer", "Bearer ", "Bearer x", "Basic dDp0", f"Bearer {READER}x", "Bearer " + "x" * 4000, READER)


async def test_token_opens_what_its_scopes_say_and_nothing_else(guarded: Api) -> None:
    for route in ROUTES:
        path = route.path.replace("{key:(?s:.+)}", "k").replace("{client_id}", "0000000000000001")
        path = re.sub(r"{(?:n|sequence)}", "1", path)
        path = re.sub(r"{\w+}", "x", path)
        nobody = await guarded.call(route.method, path)
        if route.scope is None:
            assert nobody[0] == 200
            continue
        assert_problem(nobody, "UNAUTHENTICATED")
        assert nobody[1]["WWW-Authenticate"] == "Bearer"
        for token, scopes in ((READER, {"read"}), (WRITER, {"read", "write"})):
            if route.scope not in scopes:
                assert_problem(await as_(guarded, token, route.method, path), "FORBIDDEN")
    for wrong in NO_TOKENS:
        assert_problem(await guarded.call("GET", "/v1/cluster", headers={"Authorization": wrong}), "UNAUTHENTICATED")
    status, _, opened = await as_(guarded, WRITER, "POST", "/v1/sessions", {"nonce": "n"})
    assert status == 201
    operate = operations(opened["client_id"], put(1, "a", 1))
    assert (await as_(guarded, WRITER, "POST", "/v1/operations", operate))[0] == 200
    assert (await as_(guarded, READER, "GET", "/v1/tables/rows/rows/a"))[2]["value"] == 1


async def test_token_with_a_rate_of_its_own_is_held_to_it_and_others_are_not(guarded: Api) -> None:
    answers = [await as_(guarded, OTHER, "GET", "/v1/cluster") for _ in range(30)]
    refused = [answer for answer in answers if answer[0] == 429]
    assert refused
    assert_problem(refused[0], "QUOTA")
    assert answers[0][1]["RateLimit-Policy"] == '"operations";q=3;w=1'
    assert [(await as_(guarded, READER, "GET", "/v1/cluster"))[0] for _ in range(30)] == [200] * 30


def test_changed_file_is_read_again_and_a_broken_one_leaves_the_tokens_as_they_were(
    tokens_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens(tokens_file)
    assert tokens.identify(f"bearer {READER}").scopes == {Scope.READ}
    assert not tokens.refresh()
    for broken in ("[[token", entry(READER, "ann", "fly"), entry(READER, "a b", "read"), ALL + ALL, "x = 1", "\0"):
        written(tokens_file, broken)
        for _ in range(3):  # once a second, and told once
            assert not tokens.refresh()
        assert tokens.identify(f"Bearer {READER}").tenant == "ann"
    tokens_file.unlink()
    for _ in range(3):
        assert not tokens.refresh()
    written(tokens_file, entry(OTHER, "bob", "read"))
    assert tokens.refresh()
    with pytest.raises(OncegateError) as refused:
        tokens.identify(f"Bearer {READER}")
    assert refused.value.code is Code.UNAUTHENTICATED
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 7
    for token in (READER, OTHER):
        assert hashlib.sha256(token.encode()).hexdigest() not in said


async def test_same_id_from_another_tenant_gets_no_result_and_runs_nothing(guarded: Api) -> None:
    """Case 3, over HTTP: neither the session, nor a result, nor its history is another tenant's."""
    client_id = (await as_(guarded, WRITER, "POST", "/v1/sessions", {"nonce": "n"}))[2]["client_id"]
    first, second = operations(client_id, put(1, "a", "secret")), operations(client_id, put(2, "b", 1))
    assert (await as_(guarded, WRITER, "POST", "/v1/operations", first))[0] == 200
    place = {"Oncegate-Request": f"{client_id}/2", "Oncegate-Epoch": "1", "Oncegate-First-Incomplete": "1"}
    for answer in (
        await as_(guarded, BOB, "POST", "/v1/operations", first),
        await as_(guarded, BOB, "POST", "/v1/operations", second),
        await as_(guarded, BOB, "GET", f"/v1/requests/{client_id}/1"),
        await as_(guarded, BOB, "POST", f"/v1/requests/{client_id}/2/resolve"),
        await as_(guarded, BOB, "GET", f"/v1/sessions/{client_id}"),
        await as_(guarded, BOB, "POST", f"/v1/sessions/{client_id}/take-over", {"nonce": "mine"}),
        await as_(guarded, BOB, "DELETE", f"/v1/sessions/{client_id}?epoch=1"),
        await as_(guarded, BOB, "GET", f"/v1/explain?request={client_id}/1"),
        await as_(guarded, BOB, "PUT", "/v1/tables/rows/rows/b", 1, **place),
    ):
        refused = assert_problem(answer, "FORBIDDEN")
        assert "ann" not in str(refused), "nothing is said about whose it is"
    assert (await as_(guarded, WRITER, "GET", f"/v1/requests/{client_id}/2"))[2]["state"] == "never_seen"
    # The same nonce is another session to another tenant.
    assert (await as_(guarded, BOB, "POST", "/v1/sessions", {"nonce": "n"}))[2]["client_id"] != client_id


async def test_owner_has_its_requests_explained_and_nobody_else_has(guarded: Api) -> None:
    """Of requests in a session, under an idempotency key, and of a session that is gone."""
    row = "/v1/tables/rows/rows/a"
    session = (await as_(guarded, WRITER, "POST", "/v1/sessions", {"nonce": "n"}))[2]["client_id"]
    place = {"Oncegate-Request": f"{session}/1", "Oncegate-Epoch": "1", "Oncegate-First-Incomplete": "1"}
    await as_(guarded, WRITER, "PUT", row, 1, **place)
    _, headers, _ = await as_(guarded, WRITER, "PUT", row, 2, **{"Idempotency-Key": '"order-7"'})
    keyed = headers["Oncegate-Request"]

    async def asked(token: str, request: str) -> tuple[str, list[str]]:
        status, _, found = await as_(guarded, token, "GET", f"/v1/explain?request={request}")
        assert status == 200, found
        return found["state"]["state"], [event["detail"] for event in found.get("events", []) if "index" in event]

    for request in (f"{session}/1", keyed):
        assert await asked(WRITER, request) == ("applied", ["put rows/a: executed"])
        # A key's number belongs to its tenant; the same tenant's other tokens may ask.
        assert await asked(READER, request) == ("applied", ["put rows/a: executed"])
    assert_problem(await as_(guarded, BOB, "GET", f"/v1/explain?request={session}/1"), "FORBIDDEN")
    assert (await as_(guarded, WRITER, "DELETE", f"/v1/sessions/{session}?epoch=1"))[0] == 204
    assert await asked(WRITER, f"{session}/1") == ("expired", ["put rows/a: executed"])
    for request, state in ((keyed, "never_seen"), (f"{session}/1", "expired")):
        found = (await as_(guarded, BOB, "GET", f"/v1/explain?request={request}"))[2]
        assert (found["state"]["state"], found.get("events", [])) == (state, [])


def test_memory_holds_hashes_and_no_tokens(tokens_file: Path) -> None:
    tokens = Tokens(tokens_file)
    tokens.identify(f"Bearer {WRITER}")
    held = repr(vars(tokens._file))
    assert hashlib.sha256(WRITER.encode()).digest() in tokens._file.value.tokens
    assert WRITER not in held.replace(f"name='{WRITER}'", "")


def test_new_token_is_known_by_its_entry(tmp_path: Path) -> None:
    text, lines = new_token("laptop", "ann", [Scope.WRITE, Scope.READ])
    identity = Tokens(written(tmp_path / "tokens.toml", lines)).identify(f"Bearer {text}")
    assert (identity.name, identity.tenant, identity.scopes) == ("laptop", "ann", {Scope.READ, Scope.WRITE})
    assert text not in lines
    with pytest.raises(ValueError, match="name"):
        new_token("a b", "ann", [Scope.READ])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def _certificate(authority: trustme.CA, directory: Path) -> tuple[Path, Path]:
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(directory / "both.pem")
    return directory / "both.pem", directory / "both.pem"


def test_address_that_others_reach_needs_tls_and_tokens_or_an_explicit_word(
    tmp_path: Path, tokens_file: Path, authority: trustme.CA
) -> None:
    certificate, key = _certificate(authority, tmp_path)
    abroad = {"members": ["n1=10.0.0.1:1:2"]}
    tls = {"tls_certificate": certificate, "tls_key": key}
    for given, missing in (
        ({}, "tls_certificate and tokens_file"),
        ({"tokens_file": tokens_file}, "tls_certificate"),
        (tls, "tokens_file"),
        ({"members": ["n1=127.0.0.1:1:2"], "http_listen": "[::]:1"}, "tls_certificate and tokens_file"),
    ):
        with pytest.raises(ValueError, match=missing):
            check_exposure(Settings(**{**abroad, **given}))
    with pytest.raises(ValueError, match="together"):
        check_exposure(Settings(tls_certificate=certificate))
    for fine in ({**abroad, **tls, "tokens_file": tokens_file}, {**abroad, "insecure_http": True}, {}):
        check_exposure(Settings(**fine))
    with pytest.raises(ValueError, match=r"tokens\.toml"):
        server_context(Settings(tls_certificate=tokens_file, tls_key=tokens_file))


async def test_node_with_a_certificate_speaks_tls_and_nothing_else(tmp_path: Path, authority: trustme.CA) -> None:
    certificate, key = _certificate(authority, tmp_path)
    settings = one_node(tmp_path, tls_certificate=certificate, tls_key=key)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    address = settings.http_of(settings.address)
    assert address.startswith("https://")
    async with running(settings):
        connector = aiohttp.TCPConnector(ssl=trusting)
        async with aiohttp.ClientSession(base_url=address, connector=connector) as http:
            status, headers, state = await Api(http).call("GET", "/v1/cluster")
            assert (status, headers["Oncegate-Leader"]) == (200, address)
            assert state["members"][0]["http"] == address
        async with aiohttp.ClientSession(base_url=settings.address.http) as plain:
            with pytest.raises(aiohttp.ClientError):
                await plain.get("/livez")
        async with aiohttp.ClientSession(base_url=address) as stranger:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await stranger.get("/livez")


async def test_command_tells_a_certificate_that_is_not_trusted_from_a_missing_token(
    tmp_path: Path, tokens_file: Path, authority: trustme.CA
) -> None:
    certificate, key = _certificate(authority, tmp_path)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    settings = one_node(tmp_path, tls_certificate=certificate, tls_key=key, tokens_file=tokens_file)
    endpoint = settings.http_of(settings.address)
    trusting = {"ONCEGATE_CA_FILE": str(tmp_path / "authority.pem")}
    (tmp_path / "token").write_text(f"{READER}\n")
    async with running(settings):
        for environment, code, said in (
            ({}, 3, f"oncegate: the certificate of {endpoint} is not trusted: "),
            (trusting, 1, "oncegate: UNAUTHENTICATED: "),
            ({**trusting, "ONCEGATE_TOKEN": READER}, 0, ""),
            ({**trusting, "ONCEGATE_TOKEN_FILE": str(tmp_path / "token")}, 0, ""),
            ({"ONCEGATE_CA_FILE": "/nowhere"}, 2, "oncegate: the authorities' file /nowhere holds no certificates: "),
            ({**trusting, "ONCEGATE_TOKEN_FILE": "/nowhere"}, 2, "oncegate: the token's file cannot be read: "),
        ):
            line = ["status", "-o", "json", "--endpoint", endpoint]
            shown = await asyncio.to_thread(CliRunner().invoke, app, line, env=environment)
            assert (shown.exit_code, shown.stderr.count("\n")) == (code, 1 if said else 0)
            assert shown.stderr.startswith(said)
        shown = CliRunner().invoke(app, ["status", "--endpoint", "127.0.0.1:7400"])
        assert (shown.exit_code, "begins neither with http://" in shown.stderr) == (2, True)


async def test_renewed_certificate_is_served_without_a_signal_and_half_of_one_is_not(
    tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.05)
    certificate, key = tmp_path / "node.pem", tmp_path / "node.key"

    def renew(by: trustme.CA, *, with_key: bool = True) -> None:
        issued = by.issue_cert("127.0.0.1")
        if with_key:
            issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(certificate)

    async def trusts(one: trustme.CA, http: str) -> bool:
        trusting = ssl.create_default_context()
        one.configure_trust(trusting)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session:
            try:
                return (await session.get(f"{http}/livez")).status == 200
            except aiohttp.ClientConnectorCertificateError:
                return False

    renew(authority)
    settings = one_node(tmp_path, tls_certificate=certificate, tls_key=key)
    http, next_authority = settings.http_of(settings.address), trustme.CA()
    async with running(settings), asyncio.timeout(60):
        renew(next_authority, with_key=False)
        while "the certificate stays as it was" not in caplog.text:
            await asyncio.sleep(0.01)
        assert await trusts(authority, http)
        renew(next_authority)
        while not await trusts(next_authority, http):
            await asyncio.sleep(0.01)


async def test_backup_is_saved_from_a_node_with_a_certificate_of_a_private_authority(
    tmp_path: Path, authority: trustme.CA
) -> None:
    certificate, key = _certificate(authority, tmp_path)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    settings = one_node(tmp_path, tls_certificate=certificate, tls_key=key)
    endpoint = settings.http_of(settings.address)
    save = ["snapshot", "save", str(tmp_path / "backups"), "--endpoint", endpoint]
    async with running(settings):
        trusting = {"ONCEGATE_CA_FILE": str(tmp_path / "authority.pem")}
        saved = await asyncio.to_thread(CliRunner().invoke, app, save, env=trusting)
        assert saved.exit_code == 0, saved.output
        with pytest.raises(Untrusted):
            await asyncio.to_thread(download, f"{endpoint}/v1/cluster", 5.0)


async def test_sighup_puts_new_tokens_in_force_in_a_running_process(tmp_path: Path, tokens_file: Path) -> None:
    with LocalCluster(tmp_path / "cluster", 1, flags=("--tokens-file", str(tokens_file))) as cluster:
        cluster.start()
        cluster.wait_ready()
        async with aiohttp.ClientSession(base_url=cluster.endpoints[0]) as http:
            api = Api(http)
            assert (await as_(api, READER, "GET", "/v1/cluster"))[0] == 200
            assert_problem(await as_(api, "t-new", "GET", "/v1/cluster"), "UNAUTHENTICATED")
            assert (await as_(api, OTHER, "GET", "/v1/cluster"))[1]["RateLimit-Policy"] == '"operations";q=3;w=1'
            written(tokens_file, entry("t-new", "ann", "read") + entry(OTHER, "bob", "read", operations_per_s=7))
            os.kill(cluster.pid("n1"), signal.SIGHUP)
            while (await as_(api, "t-new", "GET", "/v1/cluster"))[0] != 200:
                pass
            assert_problem(await as_(api, READER, "GET", "/v1/cluster"), "UNAUTHENTICATED")
            assert (await as_(api, OTHER, "GET", "/v1/cluster"))[1]["RateLimit-Policy"] == '"operations";q=7;w=1'
        log = cluster.log_tail("n1", 1000)
        assert READER not in log
        assert "t-new" not in log
