"""Whom commands ask, and as whom: the same flags, variables and profiles for each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from oncegate.gateway.cli import cluster as cluster_commands
from oncegate.gateway.cli.connection_flags import Cluster, with_connection_flags
from oncegate.gateway.cli.main import app, command_line
from oncegate.gateway.local.blocking_http import Credentials, credentials_in_force
from oncegate.testing import FakeCluster

FLAGS = {"--endpoint", "--profile", "--token-file", "--ca-file"}
PROFILES = """
default = "dev"
[dev]
endpoints = ["http://dev:1/"]
token = "dev token"
[prod]
endpoints = ["http://prod:1", "http://prod:2"]
token_file = "secret"
ca_file = "ca.pem"
timeout_s = 4.5
"""


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ENDPOINT", "ENDPOINTS", "TOKEN", "TOKEN_FILE", "CA_FILE", "PROFILE", "TIMEOUT_S"):
        monkeypatch.delenv(f"ONCEGATE_{name}", raising=False)
    file = tmp_path / "profiles.toml"
    file.write_text(PROFILES)
    monkeypatch.setenv("ONCEGATE_PROFILES", str(file))
    return file


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command that is no group, with its words."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, one in below.items():
        yield from every_command(one, (*path, name))


def test_every_command_that_can_be_told_one_way_to_a_cluster_can_be_told_all_of_them() -> None:
    named = {
        " ".join(path): FLAGS & {option for one in command.params for option in one.opts}
        for path, command in every_command(typer.main.get_command(command_line()))
    }
    some = {path: flags for path, flags in named.items() if flags}
    assert {path: flags for path, flags in some.items() if flags != FLAGS} == {}
    groups = ("status", "explain", "member", "leader", "level", "table", "session", "flow", "consumer", "debug")
    asking = {path for path in named if path.partition(" ")[0] in groups}
    asking |= {"outbox drain", "snapshot save", *(f"store {name}" for name in ("init", "status", "adopt", "wipe"))}
    assert asking - some.keys() == set()


def told(*words: str) -> Cluster:
    """Return what a command with these flags is given."""
    found: list[Cluster] = []
    one = typer.Typer()

    def command(cluster: Cluster) -> None:
        found.append(cluster)

    one.command()(with_connection_flags(command))
    ran = CliRunner().invoke(one, words)
    assert ran.exit_code == 0, ran.output
    return found[0]


def test_flags_come_before_variables_and_these_before_the_profile(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prod = Credentials(None, str(profiles.parent / "secret"), str(profiles.parent / "ca.pem"))
    assert told() == (["http://dev:1"], Credentials("dev token"), 30.0)
    assert told("--profile", "prod") == (["http://prod:1", "http://prod:2"], prod, 4.5)
    assert told("--profile", "prod", "--endpoint", "http://x:1") == (["http://x:1"], prod, 4.5)
    assert told("--profile", "prod", "--token-file", "t").credentials == prod._replace(token_file="t")
    monkeypatch.setenv("ONCEGATE_PROFILE", "prod")
    assert told() == (["http://prod:1", "http://prod:2"], prod, 4.5)
    monkeypatch.setenv("ONCEGATE_ENDPOINT", "http://variable:1")
    monkeypatch.setenv("ONCEGATE_CA_FILE", "variable.pem")
    assert told() == (["http://variable:1"], prod._replace(ca_file="variable.pem"), 4.5)
    assert told("--ca-file", "flag.pem").credentials.ca_file == "flag.pem"


def test_a_token_of_the_profile_does_not_travel_to_an_endpoint_that_is_given_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONCEGATE_PROFILE", "dev")
    assert told("--endpoint", "http://x:1") == (["http://x:1"], Credentials(), None)
    monkeypatch.setenv("ONCEGATE_TOKEN", "variable")
    assert told("--endpoint", "http://x:1").credentials == Credentials("variable")
    assert told("--endpoint", "http://x:1", "--token-file", "t").credentials == Credentials(None, "t")


def test_a_token_of_the_default_does_not_travel_to_an_endpoint_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told().credentials == Credentials("dev token")
    monkeypatch.setenv("ONCEGATE_ENDPOINTS", "http://other:1")
    assert told() == (["http://other:1"], Credentials(), 30.0)
    assert told("--profile", "dev") == (["http://other:1"], Credentials("dev token"), 30.0)


def test_requests_carry_the_profile_s_credentials_while_the_command_runs_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, Credentials]] = []

    def answer(method: str, url: str, *_: Any) -> dict[str, Any]:
        asked.append((url, credentials_in_force()))
        return {"flows": []}

    monkeypatch.setattr(cluster_commands, "send_json", answer)
    assert CliRunner().invoke(app, ["flow", "list"]).exit_code == 0
    assert asked == [("http://dev:1/v1/flows", Credentials("dev token"))]
    assert credentials_in_force() == Credentials()


def test_a_profile_that_is_not_there_is_misuse_and_names_those_that_are(profiles: Path) -> None:
    for words in (["status", "--profile", "nobody"], ["outbox", "drain", str(profiles), "--profile", "nobody"]):
        ran = CliRunner().invoke(app, words)
        assert (ran.exit_code, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
        assert "dev, prod" in ran.stderr


def test_of_several_endpoints_one_that_answers_is_asked(profiles: Path) -> None:
    with FakeCluster() as fake:
        profiles.write_text(f'default = "x"\n[x]\nendpoints = ["http://127.0.0.1:9", "{fake.endpoints[1]}"]\n')
        fake.declare("seats")
        ran = CliRunner().invoke(app, ["table", "list", "-o", "json"])
        assert [one["name"] for one in json.loads(ran.stdout)] == ["seats"]
        profiles.write_text('default = "x"\n[x]\nendpoints = ["http://127.0.0.1:9", "http://127.0.0.1:10"]\n')
        assert CliRunner().invoke(app, ["table", "list"]).exit_code == 3


def test_shells_complete_the_names_of_profiles() -> None:
    found = CliRunner().invoke(
        app,
        [],
        prog_name="oncegate",
        env={"_ONCEGATE_COMPLETE": "complete_bash", "COMP_WORDS": "oncegate status --profile pr", "COMP_CWORD": "3"},
    )
    assert found.stdout.split() == ["prod"]
