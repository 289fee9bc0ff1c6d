"""The development Cassandra: its lock file, the user's mirror, and its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import oncegate.stores.devcassandra
from oncegate.gateway.cli.main import command_line
from oncegate.stores.devcassandra import Config, DevCluster, jars
from oncegate.stores.devcassandra.__main__ import main
from oncegate.stores.devcassandra.node import CassandraNode
from oncegate.stores.errors import StoreCode, StoreError


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("ONCEGATE_MAVEN_MIRROR", raising=False)
    (tmp_path / ".m2").mkdir()
    return tmp_path / ".m2" / "settings.xml"


def test_every_jar_is_locked_by_its_hash() -> None:
    locked = jars.locked()
    assert len(locked) == len({jar.file for jar in locked}) == 93
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in locked)
    assert f"cassandra-all-{jars.VERSION}.jar" in {jar.file for jar in locked}


def test_no_file_of_ours_names_a_registry() -> None:
    root = Path(oncegate.stores.devcassandra.__file__).parent
    for file in (file for file in root.rglob("*") if file.is_file() and file.suffix != ".pyc"):
        hosts = set(re.findall(r"https?://([a-z0-9.-]+)", file.read_text()))
        # The identifier of Ivy's XML namespace is a name, nothing is fetched from it.
        assert hosts <= {"ant.apache.org"}, file


@pytest.mark.parametrize(
    ("mirror_of", "found"),
    [("central", True), ("*", True), ("external:*", True), ("*,!central", False), ("internal", False)],
)
def test_the_users_maven_mirror_is_used(settings: Path, mirror_of: str, found: bool) -> None:
    mirror = f"<mirror><id>m</id><mirrorOf>{mirror_of}</mirrorOf><url>http://mirror.test/maven</url></mirror>"
    settings.write_text(f'<settings xmlns="urn:x"><mirrors>{mirror}</mirrors></settings>')
    assert jars.mirror() == ("http://mirror.test/maven" if found else None)
    assert ('root="http://mirror.test/maven/"' in jars._settings(Path("/c"))) is found


def test_the_environment_overrules_the_settings_file(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jars.mirror() is None
    monkeypatch.setenv("ONCEGATE_MAVEN_MIRROR", "http://other.test/")
    assert jars.mirror() == "http://other.test/"


def test_wrong_configurations_are_refused(tmp_path: Path) -> None:
    for wrong in ({"nodes": 4}, {"nodes": 0}, {"native_port": 7000}, {"commitlog_sync": "never"}):
        with pytest.raises(StoreError) as refused:
            Config(**wrong)
        assert refused.value.code is StoreCode.BAD_OPTION
    assert main(["--home", str(tmp_path / "none"), "status"]) == 2


def test_up_says_what_it_downloads_and_where_to_before_it_does(
    settings: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(settings.parent / "cache"))
    said: list[str] = []

    def fetch() -> Path:
        said.append(capsys.readouterr().err)
        raise StoreError(StoreCode.CLUSTER_FAILED, "no network")

    monkeypatch.setattr(jars, "fetch", fetch)
    assert main(["fetch"]) == 1
    assert "93 jars" in said[0]
    assert f"{settings.parent}/cache/oncegate/cassandra-{jars.VERSION}" in said[0]
    jars.library().mkdir(parents=True)
    (jars.library() / ".verified").touch()
    capsys.readouterr()
    assert main(["fetch"]) == 1
    assert said[1] == "", "nothing is downloaded a second time"


def test_what_takes_long_happens_while_somebody_is_told_of_it_node_by_node(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[object] = []

    @contextmanager
    def waiting(what: str, total: int | None) -> Iterator[Callable[[float], None]]:
        happened.append((what, total))
        yield happened.append
        happened.append("over")

    monkeypatch.setattr(jars, "fetch", lambda: happened.append("fetched"))
    for name in ("spawn", "wait_ready"):
        monkeypatch.setattr(CassandraNode, name, lambda _: None)
    monkeypatch.setattr(DevCluster, "_wait_settled", lambda _: None)
    assert main(["--home", str(tmp_path / "cluster"), "up", "--nodes", "2"], waiting) == 0
    assert happened == [("fetching jars", None), "fetched", "over", ("starting Cassandra", 2), 1, 1, "over"]


def test_command_line_hands_its_arguments_on(tmp_path: Path) -> None:
    run = CliRunner().invoke
    refused = run(command_line("cassandra"), ["cassandra", "--home", str(tmp_path / "none"), "status"])
    assert refused.exit_code == 2
    assert "BAD_OPTION" in refused.output
    helped = run(command_line("cassandra"), ["cassandra", "up", "--help"])
    assert helped.exit_code == 0
    assert "--nodes" in helped.output
