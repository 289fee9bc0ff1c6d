"""Where a client connects and as whom; TLS against a server with a certificate of its own."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from oncegate import Client, Code, OperationFailed
from oncegate.gateway.client.profiles import Profile, TokenFile, settle
from oncegate.gateway.client.routing import Router
from oncegate.gateway.client.settings import TIMEOUT_S_DEFAULT
from oncegate.testing import FakeGateway
from tests.client.answers import fails

PROFILES = """
default = "dev"
[dev]
endpoints = ["http://dev:7400"]
[prod]
endpoints = ["https://a:7400", "https://b:7400"]
token_file = "secret/token"
ca_file = "/etc/ca.pem"
timeout_s = 5.0
[typo]
endpoint = "http://x"
[soon]
endpoints = ["http://x"]
timeout_s = "soon"
"""


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    file = tmp_path / "profiles.toml"
    file.write_text(PROFILES)
    return file


def test_profile_is_chosen_by_argument_then_environment_then_default(profiles: Path) -> None:
    assert settle(Profile(), None, {}, profiles).endpoints == ["http://dev:7400"]
    prod = settle(Profile(), None, {"ONCEGATE_PROFILE": "prod"}, profiles)
    assert prod.endpoints == ["https://a:7400", "https://b:7400"]
    assert (prod.token_file, prod.ca_file) == (str(profiles.parent / "secret/token"), "/etc/ca.pem")
    assert prod.timeout_s == 5.0
    assert settle(Profile(), "dev", {"ONCEGATE_PROFILE": "prod"}, profiles).endpoints == ["http://dev:7400"]


def test_argument_beats_environment_beats_profile(profiles: Path) -> None:
    environment = {"ONCEGATE_ENDPOINTS": "http://e1:1, http://e2:2", "ONCEGATE_TIMEOUT_S": "7", "ONCEGATE_TOKEN": "t"}
    found = settle(Profile(timeout_s=1.5), "prod", environment, profiles)
    assert found.endpoints == ["http://e1:1", "http://e2:2"]
    assert (found.timeout_s, found.token, found.token_file) == (1.5, "t", None)


def test_endpoints_alone_take_no_token_from_elsewhere(profiles: Path) -> None:
    environment = {"ONCEGATE_PROFILE": "prod", "ONCEGATE_TOKEN": "secret"}
    found = settle(Profile(endpoints=["http://other:1"]), None, environment, profiles)
    assert (found.token, found.token_file, found.ca_file, found.timeout_s) == (None, None, None, TIMEOUT_S_DEFAULT)


@pytest.mark.parametrize("variable", ["ONCEGATE_ENDPOINTS", "ONCEGATE_ENDPOINT"])
def test_a_default_that_nobody_named_gives_nothing_to_the_endpoints_of_a_variable(
    profiles: Path, variable: str
) -> None:
    profiles.write_text(profiles.read_text().replace('default = "dev"', 'default = "prod"'))
    there = settle(Profile(), None, {}, profiles)
    assert there.token_file is not None
    other = {variable: "http://other:1"}
    for environment in (other, {**other, "ONCEGATE_PROFILE": ""}):
        found = settle(Profile(), None, environment, profiles)
        assert found.endpoints == ["http://other:1"]
        assert (found.token, found.token_file, found.ca_file, found.timeout_s) == (None, None, None, TIMEOUT_S_DEFAULT)
    assert settle(Profile(), None, {**other, "ONCEGATE_PROFILE": "prod"}, profiles).token_file == there.token_file
    assert settle(Profile(), "prod", other, profiles).token_file == there.token_file
    assert settle(Profile(), None, {**other, "ONCEGATE_TOKEN": "t"}, profiles).token == "t"


@pytest.mark.parametrize(
    ("name", "environment", "why"),
    [
        ("nobody", {}, "there is: dev, prod, soon, typo"),
        ("typo", {}, r"profiles\.toml:11: endpoint is no setting; did you mean endpoints\?"),
        ("soon", {}, r"profiles\.toml:14: Expected `float \| null`, got `str` - at `\$\.timeout_s`"),
        (None, {"ONCEGATE_TIMEOUT_S": "soon"}, "ONCEGATE_TIMEOUT_S"),
    ],
)
def test_mistake_is_told_by_name(profiles: Path, name: str | None, environment: dict[str, str], why: str) -> None:
    with pytest.raises(OperationFailed, match=why) as refused:
        settle(Profile(), name, environment, profiles)
    assert refused.value.code is Code.BAD_REQUEST


def test_without_any_source_the_local_node_is_meant(tmp_path: Path) -> None:
    assert settle(Profile(), None, {}, tmp_path / "none").endpoints == ["http://127.0.0.1:7400"]
    with pytest.raises(OperationFailed, match="there is no"):
        settle(Profile(), "prod", {}, tmp_path / "none")


async def test_rotated_token_file_is_read_again(fake: FakeGateway, tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def look(request: web.Request) -> web.StreamResponse | None:
        seen.append(request.headers.get("Authorization"))
        return None

    fake.nodes[0].before = look
    file = tmp_path / "token"
    file.write_text("first\n")
    async with Client(fake.endpoints, token_file=file) as client:
        await client.cluster()
        file.write_text("second-one\n")
        await client.cluster()
        file.unlink()
        await client.cluster()
    assert seen == ["Bearer first", "Bearer second-one", "Bearer second-one"]


def test_token_file_without_a_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    for name in ("empty", "none"):
        with pytest.raises(OperationFailed, match="token file"):
            TokenFile(str(tmp_path / name)).header()


def test_leader_named_in_the_clear_is_not_believed_by_a_client_of_https() -> None:
    router = Router(["https://a:1", "https://b:1"])
    router.answered("https://a:1", "http://evil:1", 0.0)
    assert router.leader is None
    router.answered("https://a:1", "https://b:1", 0.0)
    assert router.leader == "https://b:1"


@pytest.fixture
async def secure(fake: FakeGateway, tmp_path: Path) -> tuple[str, Path]:
    """The fake behind TLS: its address, and the certificate to trust."""
    certificate, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run([*made, *named, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    runner = fake.nodes[0]._runner
    assert runner is not None
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    return f"https://localhost:{runner.addresses[-1][1]}", certificate


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_https_endpoint_is_trusted_by_its_ca_file_and_by_no_other(secure: tuple[str, Path]) -> None:
    endpoint, certificate = secure
    async with Client(endpoint, ca_file=certificate) as client, client.session() as session:
        assert (await session.put("rows", "k", 1)).applied
    async with Client(endpoint) as stranger:
        with fails(Code.UNAUTHENTICATED):
            await stranger.cluster()


async def test_ca_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(OperationFailed, match="ca file"):
        await Client("https://localhost:1", ca_file=tmp_path / "ca.pem").__aenter__()


def test_environment_switch_shows_the_log() -> None:
    code = "import oncegate.gateway.client, logging; logging.getLogger('oncegate.client').debug('seen')"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "ONCEGATE_LOG": "debug"},
    )
    assert "DEBUG oncegate.client seen" in shown.stderr
