"""A node's files are its user's alone, and so must be the secrets that it is given."""

from __future__ import annotations

import contextlib
from pathlib import Path
from stat import S_IMODE

import pytest
from typer.testing import CliRunner

from oncegate.gateway.cli.main import app
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.node.private_files import check_secrets, exposed_secrets
from oncegate.gateway.node.settings import Settings

ABROAD = ["n1=10.0.0.1:1:2"]


@pytest.mark.parametrize("name", ["secret_file", "tokens_file", "tls_key", "peer_tls_key"])
@pytest.mark.parametrize(
    ("mode", "exposed"), [(0o600, False), (0o400, False), (0o440, False), (0o644, True), (0o620, True), (0o602, True)]
)
def test_file_with_secrets_that_others_may_read_or_change_is_refused_by_name(
    tmp_path: Path, name: str, mode: int, exposed: bool
) -> None:
    path = tmp_path / "a file"
    path.write_text("x")
    path.chmod(mode)
    abroad = Settings(members=ABROAD, **{name: path})
    if exposed:
        with pytest.raises(ValueError, match=rf"^{name}: .*/a file is open to others \(mode {mode:04o}\): chmod "):
            check_secrets(abroad)
    else:
        check_secrets(abroad)
    near = Settings(**{name: path})
    check_secrets(near)  # a warning there
    assert len(exposed_secrets(near)) == exposed


@pytest.mark.parametrize("http", ["127.0.0.1", "10.0.0.1"])
@pytest.mark.parametrize("peer", ["127.0.0.1", "10.0.0.1"])
def test_open_secret_is_refused_as_soon_as_one_of_the_two_addresses_is_reached_by_others(
    tmp_path: Path, http: str, peer: str
) -> None:
    path = tmp_path / "a file"
    path.write_text("x")
    path.chmod(0o644)
    settings = Settings(http_listen=f"{http}:7400", peer_listen=f"{peer}:7401", secret_file=path)
    with (
        contextlib.nullcontext() if http == peer == "127.0.0.1" else pytest.raises(ValueError, match=r"^secret_file: ")
    ):
        check_secrets(settings)


def test_certificates_are_no_secrets_and_files_that_are_missing_are_left_to_those_who_open_them(tmp_path: Path) -> None:
    (tmp_path / "certificate").write_text("x")
    check_secrets(Settings(members=ABROAD, tls_certificate=tmp_path / "certificate", secret_file=tmp_path / "none"))


def test_all_that_a_node_writes_is_closed_to_others_also_in_a_directory_that_was_open(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("token = []")
    tokens.chmod(0o644)
    with LocalCluster(tmp_path / "cluster", 1, flags=("--tokens-file", str(tokens))) as cluster:
        data = tmp_path / "cluster" / "n1"
        data.mkdir(parents=True)
        data.chmod(0o755)
        cluster.start()
        cluster.wait_ready()
        open_to_others = [path for path in (data, *data.rglob("*")) if S_IMODE(path.stat().st_mode) & 0o077]
        log = cluster.log_tail("n1")
    assert open_to_others == []
    assert f"{data} was open to others (mode 0755) and is closed now" in log
    assert f"tokens_file: {tokens} is open to others (mode 0644)" in log


def test_node_that_others_reach_does_not_start_with_an_open_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("a secret of the cluster")
    path.chmod(0o644)
    given = ["--member", ABROAD[0], "--secret-file", str(path), "--data-dir", str(tmp_path / "n1")]
    refused = CliRunner().invoke(app, ["serve", "--insecure-peers", "--insecure-http", *given])
    assert (refused.exit_code, "is open to others" in refused.output) == (2, True), refused.output
