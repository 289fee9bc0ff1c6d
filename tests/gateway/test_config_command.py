"""``oncegate config``: what a node would take and from where, what is wrong, and a file to begin with."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oncegate.gateway.cli.main import command_line
from oncegate.gateway.node.settings import SETTINGS


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ONCEGATE_")]:
        monkeypatch.delenv(name)


def _config(*words: str) -> Result:
    return CliRunner().invoke(command_line("config"), ["config", *words])


def test_show_prints_value_and_origin_of_every_setting_as_table_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "n1.toml"
    file.write_text('\nnode = "n2"\n')
    monkeypatch.setenv("ONCEGATE_LIVE_CHECK_SHARE", "0.5")
    monkeypatch.setenv("ONCEGATE_PALETTE", "blue")
    shown = _config("show", "--config", str(file), "--log-level", "error", "-o", "json")
    assert (shown.exit_code, shown.stderr) == (0, "oncegate: ONCEGATE_PALETTE is no setting\n")
    told = json.loads(shown.stdout)
    assert list(told) == list(SETTINGS)
    assert told["node"] == {"value": "n2", "origin": f"{file}:2"}
    assert told["live_check_share"] == {"value": 0.5, "origin": "ONCEGATE_LIVE_CHECK_SHARE"}
    assert told["log_level"] == {"value": "ERROR", "origin": "--log-level"}
    assert told["join"] == {"value": False, "origin": "default"}
    table = _config("show", "--config", str(file), "--given").stdout
    assert [line.split()[0] for line in table.splitlines()[3:-1]] == ["node", "live_check_share"]


def test_check_names_every_fault_of_a_file_on_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "n1.toml"
    file.write_text('noed = "n2"\nbody_bytes_max = 1\n')
    checked = _config("check", str(file))
    assert (checked.exit_code, checked.stdout) == (1, "")
    assert checked.stderr.splitlines() == [
        f"oncegate: {file}:1: noed is no setting; did you mean node?",
        f"{file}:2: body_bytes_max: 1 is not from 1024 to 8388608",
    ]


def test_check_finds_what_would_keep_the_node_from_starting_unless_values_alone_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "n1.toml"
    for text, fault in (
        ('members = ["n1=10.0.0.1:7400:7401"]', "peers need TLS"),
        ('node = "n9"', "n9 is not among the members"),
        ('secret_file = "missing"', "missing"),
    ):
        file.write_text(text)
        checked = _config("check", str(file))
        assert (checked.exit_code, fault in checked.stderr) == (1, True), checked.stderr
        assert _config("check", str(file), "--values-only").exit_code == 0
    file.write_text("")
    assert _config("check", str(file)).exit_code == 0
    assert _config("check", str(tmp_path / "none.toml")).exit_code == 1


@pytest.mark.parametrize("second", ["127.0.0.1:7400:7401", "127.0.0.1:7500:7400", "127.0.0.1:7401:7500"])
def test_check_refuses_members_that_share_an_address(tmp_path: Path, second: str) -> None:
    file = tmp_path / "n1.toml"
    file.write_text(f'members = ["n1=127.0.0.1:7400:7401", "n2={second}"]')
    checked = _config("check", str(file), "--values-only")
    assert (checked.exit_code, "is an address of two members" in checked.stderr) == (1, True)


def test_sample_is_a_file_of_all_defaults(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") for line in _config("sample").stdout.splitlines()]
    lines = [line for line in lines if line.split(" = ")[0] in SETTINGS]
    assert list(tomllib.loads("\n".join(lines))) == list(SETTINGS)
    file = tmp_path / "n1.toml"
    file.write_text("\n".join(lines))
    assert _config("check", str(file)).exit_code == 0
