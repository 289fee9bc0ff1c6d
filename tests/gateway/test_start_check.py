"""What a setting names is looked at before a node starts, and a refusal names the setting where it was given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from oncegate.gateway.cli.main import command_line
from oncegate.gateway.cli.start_check import StartFault, make_data_dir, start_faults
from oncegate.gateway.node.setting import Gathered, gather
from oncegate.gateway.node.settings import SETTINGS, Settings

TOGETHER = (
    ("peer_tls_certificate", "peer_tls_key", "peer_tls_authority"),
    ("tls_certificate", "tls_key"),
    ("jwt_keys_file", "jwt_issuer", "jwt_audience"),
)
"""Settings that are given together."""
PATHS = [name for name, one in SETTINGS.items() if one.kind is Path]
FILES = [name for name in PATHS if name != "data_dir"]
SIZES = [name for name, one in SETTINGS.items() if one.is_size]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ONCEGATE_")]:
        monkeypatch.delenv(name)


def values_with(name: str, path: Path, other: Path) -> dict[str, str]:
    """Return the setting and those that go with it, each of these with another file or text."""
    group = next((names for names in TOGETHER if name in names), (name,))
    return {one: str(path if one == name else other) for one in group}


def given_everywhere(values: dict[str, str], name: str, folder: Path) -> Iterator[tuple[str, Gathered]]:
    """Yield the place of a setting with what all sources say: given as a flag, as a variable, in a file."""
    file = folder / "node.toml"
    lines = {one: f'{one} = "{value}"' for one, value in values.items()}
    file.write_text("\n".join(lines.values()))
    line = list(values).index(name) + 1
    yield SETTINGS[name].flag, gather(SETTINGS, None, {}, values)
    variables = {SETTINGS[one].variable: value for one, value in values.items()}
    yield SETTINGS[name].variable, gather(SETTINGS, None, variables, {})
    yield f"{file}:{line}: {name}", gather(SETTINGS, file, {}, {})


def faults_of(gathered: Gathered) -> list[str]:
    assert gathered.faults == []
    settings = Settings(**{name: given.value for name, given in gathered.settings.items()})
    return [one.told(gathered) for one in start_faults(settings)]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_none_is_told_with_the_place_of_the_setting_that_names_it(name: str, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_text("junk")
    junk.chmod(0o600)
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        for place, gathered in given_everywhere(values_with(name, path, junk), name, tmp_path):
            assert faults_of(gathered) == [f"{place}: {path}: {reason}"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_something_else_is_told_with_the_places_of_the_settings_that_it_is_about(
    name: str, tmp_path: Path
) -> None:
    junk = tmp_path / "junk"
    junk.write_text("junk")
    junk.chmod(0o600)
    for place, gathered in given_everywhere(values_with(name, junk, junk), name, tmp_path):
        (fault,) = faults_of(gathered)
        places, _, text = fault.partition(f": {junk}")
        assert place in places.split(", "), fault
        assert text, "and what is wrong with it"


def test_a_data_directory_that_cannot_be_one_is_told_with_its_place_and_nothing_is_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "data" / "n1"):
        for place, gathered in given_everywhere({"data_dir": str(path)}, "data_dir", tmp_path):
            assert faults_of(gathered) == [f"{place}: {file}: Not a directory"]
    assert faults_of(gather(SETTINGS, None, {}, {"data_dir": tmp_path / "a" / "b"})) == []
    assert not (tmp_path / "a").exists()


def test_a_data_directory_that_cannot_be_made_is_told_as_a_fault_of_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = tmp_path / "file" / "n1"
    assert make_data_dir(Settings(data_dir=wrong)) == StartFault(f"{wrong}: Not a directory", ("data_dir",))
    made = Settings(data_dir=tmp_path / "a" / "b")
    assert [make_data_dir(made), make_data_dir(made)] == [None, None], "one that is there is taken"
    assert made.data_dir.is_dir()


def _config(*words: str) -> Result:
    return CliRunner().invoke(command_line("config"), ["config", *words])


def test_check_of_a_file_has_a_line_for_each_file_that_is_wrong(tmp_path: Path) -> None:
    file, secret = tmp_path / "node.toml", tmp_path / "secret"
    secret.write_text("short")
    secret.chmod(0o644)
    file.write_text(f'secret_file = "{secret}"\ntokens_file = "{tmp_path}/none"\nhttp_listen = "0.0.0.0:7400"\n')
    checked = _config("check", str(file))
    assert (checked.exit_code, sorted(checked.stderr.removeprefix("oncegate: ").splitlines())) == (
        1,
        [
            f"{file}: 0.0.0.0 is not a loopback address: tls_certificate or insecure_http is required",
            f"{file}: secret_file: {secret} is open to others (mode 0644): chmod g-w,o= {secret}",
            f"{file}:1: secret_file: {secret}: a secret has at least 16 bytes",
            f"{file}:2: tokens_file: {tmp_path}/none: No such file or directory",
        ],
    )


def test_a_node_that_cannot_start_says_all_that_keeps_it_from_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = [sys.executable, "-m", "oncegate", "serve", "--tokens-file", "none", "--data-dir", "file"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (
        2,
        f"oncegate: --data-dir: {tmp_path}/file: Not a directory; --tokens-file: none: No such file or directory\n",
    )


@pytest.mark.parametrize("name", SIZES)
def test_a_size_with_a_unit_is_refused_with_what_a_size_is(name: str, tmp_path: Path) -> None:
    for place, gathered in given_everywhere({name: "8MiB"}, name, tmp_path):
        assert gathered.faults == [f"{place}: '8MiB' is not a whole number of bytes (8 MiB is 8388608)"]
    shown = _config("show", SETTINGS[name].flag, "8MiB")
    assert (shown.exit_code, "whole number of bytes" in shown.stderr) == (2, True)
    told: Any = gather(SETTINGS, None, {}, {name: str(2**23)}).settings[name].value
    assert told == 2**23
