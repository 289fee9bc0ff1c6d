"""A debug bundle has what is needed to find a fault, and no secret, wherever one was put."""

from __future__ import annotations

import asyncio
import json
import logging
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oncegate.gateway.cli.main import command_line
from oncegate.gateway.observability.recent_lines import LINES_MAX, RECENT, RecentLines
from oncegate.gateway.observability.redaction import HIDDEN, redacted
from oncegate.proof.check.earlier_build import extract
from tests.gateway.http_contract import one_node, serving
from tests.gateway.test_auth import as_, entry, written

PLANTED = {
    "token": "og_PLANTEDtokenPLANTEDtoken123456",
    "peers": "PLANTEDpeersPLANTEDpeers0123456789abcdef",
    "store": "PLANTEDstorepassword",
    "key": "PLANTEDkeyPLANTEDkeyMIIEvQIBADANBg",
    "variable": "PLANTEDvariable",
    "aws": "AKIAPLANTEDPLANTED01",
    "logged": "PLANTEDloggedpassword",
    "jwt": "eyJQTEFOVEVE.eyJQTEFOVEVE.PLANTEDsignature",
}
PEM = f"-----BEGIN PRIVATE KEY-----\n{PLANTED['key']}\n-----END PRIVATE KEY-----"


@pytest.fixture
def log_kept() -> Iterator[logging.Logger]:
    """The log of the process, as ``oncegate serve`` keeps it."""
    logger = logging.getLogger("oncegate")
    logger.addHandler(RECENT)
    yield logger
    logger.removeHandler(RECENT)


async def test_a_bundle_has_state_metrics_settings_stacks_and_log_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_kept: logging.Logger
) -> None:
    secret = written(tmp_path / "peers.secret", PLANTED["peers"] + "\n")
    secret.chmod(0o600)
    settings = one_node(
        tmp_path,
        tokens_file=written(tmp_path / "tokens.toml", entry(PLANTED["token"], "ops", "admin", "read")),
        secret_file=secret,
        stream_store=f"sqlite:///{tmp_path}/store",
    )
    into, again = tmp_path / "bundle.tar.gz", tmp_path / "runner"
    monkeypatch.setenv("ONCEGATE_TOKEN", PLANTED["token"])
    monkeypatch.setenv("ONCEGATE_PLANTED", PLANTED["variable"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", PLANTED["aws"])
    arguments = ["bundle", "--endpoint", settings.address.http, "--file", str(into)]
    async with serving(settings) as (api, node):
        object.__setattr__(node.settings, "stream_store", f"cassandra://app:{PLANTED['store']}@10.0.0.9/app")
        for said in (
            f"password={PLANTED['logged']}",
            f'{{"secret_access_key": "{PLANTED["logged"]}"}}',
            f"Authorization: Bearer {PLANTED['token']}",
            f"the peer sent {PLANTED['peers']}",
            f"a key:\n{PEM}",
            f"assumed {PLANTED['aws']} with {PLANTED['jwt']}",
        ):
            log_kept.warning("said: %s", said)
        status, _, _ = await as_(api, PLANTED["token"], "GET", "/v1/debug")
        assert status == 200
        assert (await api.call("GET", "/v1/debug"))[0] == 401
        ran = await asyncio.to_thread(CliRunner().invoke, command_line("debug", "status"), ["debug", *arguments])
        assert ran.exit_code == 0, ran.output
        second = await asyncio.to_thread(CliRunner().invoke, command_line("debug", "status"), ["debug", *arguments])
        assert second.exit_code == 2
    with tarfile.open(into) as archive:
        extract(archive, again)
    found = {path.relative_to(again / "oncegate-debug").as_posix(): path.read_text() for path in again.rglob("*.*")}
    assert set(found) == {
        "bundle.json",
        *(f"n1/{name}" for name in ("cluster.json", "ready.txt", "metrics.txt", "debug.json")),
        *(f"n1/{name}" for name in ("check.json", "flows.json", "tables.json")),
    }
    for name, text in found.items():
        for what, planted in PLANTED.items():
            assert planted not in text, f"{what} is in {name}"
        assert "PLANTED" not in text.replace("ONCEGATE_PLANTED", ""), name
    told = json.loads(found["n1/debug.json"])
    assert told["settings"]["node"] == "n1"
    assert told["settings"]["stream_store"] == f"cassandra://{HIDDEN}@10.0.0.9/app"
    assert told["settings"]["tokens_file"] == str(tmp_path / "tokens.toml")
    assert any("MainThread" in name for name in told["stacks"])
    assert any("said: password=[hidden]" in line for line in told["log"])
    assert "ONCEGATE_PLANTED" in told["variables"]
    assert "msgspec" in told["versions"]
    assert "oncegate_term" in found["n1/metrics.txt"]
    assert json.loads(found["n1/cluster.json"])["role"] == "leader"
    assert into.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    [
        "node n1 is connected with n2 by TLS",
        "the tokens stay as they were: tokens.toml is not TOML",
        '{"tokens_file": "/etc/oncegate/tokens.toml", "secret_file": null}',
        "http://10.0.0.1:7400/v1/tables/rows?after=a@b",
        "key 12A of table seats",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_the_newest_lines_are_kept_and_no_more() -> None:
    kept = RecentLines()
    for number in range(LINES_MAX + 10):
        kept.handle(logging.LogRecord("x", logging.INFO, "f", 1, f"line {number} {'y' * 5000}", (), None))
    assert len(kept.lines) == LINES_MAX
    assert "line 10 " in kept.lines[0]
    assert max(map(len, kept.lines)) <= 2000
