"""Settings: flag, then environment, then file, then default; what is wrong is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncegate.gateway.node.node import replica_config
from oncegate.gateway.node.settings import MemberAddress, Settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE", "CLUSTER", "MEMBERS", "DATA_DIR", "SECRET_FILE", "BODY_BYTES_MAX", "LOG_LEVEL", "CONFIG"):
        monkeypatch.delenv(f"ONCEGATE_{name}", raising=False)


def test_defaults_are_one_node_on_loopback() -> None:
    settings = Settings.load(None)
    assert settings.address == MemberAddress("n1", "127.0.0.1", 7400, 7401)
    assert replica_config(settings).peers == {}
    assert settings.body_bytes_max == 8 * 2**20


def test_flag_wins_over_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "oncegate.toml"
    file.write_text('cluster = "of-file"\nlog_level = "ERROR"\nbody_bytes_max = 4096\n')
    monkeypatch.setenv("ONCEGATE_CLUSTER", "of-environment")
    monkeypatch.setenv("ONCEGATE_LOG_LEVEL", "debug")
    settings = Settings.load(file, cluster="of-flag", node=None)
    assert (settings.cluster, settings.log_level, settings.body_bytes_max) == ("of-flag", "DEBUG", 4096)
    assert Settings.load(None).body_bytes_max == 8 * 2**20, "a file of an earlier load is still read"


def test_members_come_from_the_environment_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEGATE_MEMBERS", '["a=h:1:2", "b=h:3:4"]')
    monkeypatch.setenv("ONCEGATE_NODE", "b")
    assert Settings.load(None).address == MemberAddress("b", "h", 3, 4)


@pytest.mark.parametrize("text", ["", "n1", "n1=h:1", "n1=h:x:2", "n1=h:0:2", "n1=h:1:65536", "N1=h:1:2", "n1=h h:1:2"])
def test_member_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"n1|id=host"):
        Settings.load(None, members=[text])


def test_written_member_reads_back() -> None:
    member = MemberAddress("n1", "host", 1, 65_535)
    assert MemberAddress.parse(str(member)) == member


def test_contradicting_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        Settings.load(None, members=["a=h:1:2", "a=h:3:4"])
    with pytest.raises(ValueError, match="not among"):
        replica_config(Settings.load(None, node="other"))
    with pytest.raises(ValueError, match="loopback"):
        replica_config(Settings.load(None, members=["n1=10.0.0.1:1:2"]))
    secret = tmp_path / "secret"
    secret.write_text("short")
    with pytest.raises(ValueError, match="16 bytes"):
        replica_config(Settings.load(None, secret_file=secret))
    with pytest.raises(OSError, match="missing"):
        replica_config(Settings.load(None, secret_file=tmp_path / "missing"))
    for flags in ({"log_level": "LOUD"}, {"body_bytes_max": 5}, {"body_bytes_max": 2**40}):
        with pytest.raises(ValueError, match=next(iter(flags))):
            Settings.load(None, **flags)


def test_file_that_is_missing_broken_or_names_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a file"):
        Settings.load(tmp_path / "missing.toml")
    file = tmp_path / "oncegate.toml"
    for text, reason in (
        ("node = ", "not TOML"),
        ('nodee = "n1"', "nodee"),
        ("body_bytes_max = 'x'", "body_bytes_max"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=reason):
            Settings.load(file)
