"""Settings: flag, then environment, then file, then default; what is wrong is named."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from oncegate.gateway.cli.main import app
from oncegate.gateway.node.node import replica_config
from oncegate.gateway.node.setting import gather
from oncegate.gateway.node.settings import SETTINGS, MemberAddress, Settings

MIB = 2**20


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ONCEGATE_")]:
        monkeypatch.delenv(name)


def test_defaults_are_one_node_on_loopback() -> None:
    settings = Settings.load(None)
    assert settings.address == MemberAddress("n1", "127.0.0.1", 7400, 7401)
    assert replica_config(settings).peers == {}


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
    address = Settings.load(None).address
    assert address == MemberAddress("b", "h", 3, 4) == MemberAddress.parse(str(address))


def test_ipv6_address_of_a_member_is_written_in_brackets_and_kept_in_its_short_form() -> None:
    member = MemberAddress.parse("n1=[2001:DB8:0:0::7]:7400:7401")
    assert member == MemberAddress("n1", "2001:db8::7", 7400, 7401) == MemberAddress.parse(str(member))
    assert (member.http, member.peer) == ("http://[2001:db8::7]:7400", ("2001:db8::7", 7401))


def test_node_listens_elsewhere_than_it_is_reached_where_it_is_told_to() -> None:
    settings = Settings(
        members=["n1=one.example:7400:7401"], http_listen="[0:0::0]:80", peer_listen="0.0.0.0:7401", insecure_peers=True
    )
    assert (settings.http_address, settings.peer_address) == (("::", 80), ("0.0.0.0", 7401))
    assert settings.address.http == "http://one.example:7400"
    with pytest.raises(ValueError, match=r"0\.0\.0\.0 is not a loopback address"):
        replica_config(settings)
    alone = Settings(members=["n1=[::1]:7400:7401"])
    assert (alone.http_address, alone.peer_address) == (("::1", 7400), ("::1", 7401))
    with pytest.raises(ValueError, match="http_listen and peer_listen"):
        Settings(members=["n1=[::]:7400:7401"])
    behind_a_proxy = Settings(members=["n1=10.0.0.1:7400:7401"], peer_listen="127.0.0.1:7401")
    config = replica_config(behind_a_proxy)
    assert config.initial_configuration.members["n1"].host == "10.0.0.1", "peers learn where it is reached"


@pytest.mark.parametrize(
    "text",
    [
        *("", "n1", "n1=h:1", "n1=h:x:2", "n1=h:0:2", "n1=h:1:65536", "N1=h:1:2", "n1=h h:1:2"),
        *("n1=::1:1:2", "n1=[::1:1:2", "n1=[h]:1:2", "n1=[:::]:1:2", "n1=[fe80::1%eth0]:1:2", "n1=http://h:1:2"),
        *("n1=a..b:1:2", "n1=.h:1:2", f"n1={'h' * 64}:1:2", f"n1=b.{'h' * 64}.a:1:2"),
    ],
)
def test_member_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"n1|id=host"):
        Settings.load(None, members=[text])


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


def test_file_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not there"):
        Settings.load(tmp_path / "missing.toml")
    file = tmp_path / "oncegate.toml"
    for text, reason in (("node = ", "not TOML"), ("body_bytes_max = 'x'", "body_bytes_max")):
        file.write_text(text)
        with pytest.raises(ValueError, match=reason):
            Settings.load(file)


def test_flag_and_variable_of_a_setting_have_its_name_and_its_default() -> None:
    assert {name: one.default for name, one in SETTINGS.items()} == vars(Settings())
    for name, one in SETTINGS.items():
        assert one.variable == f"ONCEGATE_{name.upper()}"
        one_each = name.removesuffix("s") if one.kind is list else name
        assert one.flag == "--" + one_each.replace("_", "-")
    options = {option for param in get_command(app).commands["serve"].params for option in param.opts}
    assert options == {"--config", *(one.flag for one in SETTINGS.values())}


OTHERS: dict[str, tuple[str, Any]] = {
    "members": ('["a=h:1:2"]', ["a=h:1:2"]),
    "http_listen": ("[::]:80", "[::]:80"),
    "peer_listen": ("0.0.0.0:81", "0.0.0.0:81"),
    "allowed_hosts": ('["a.example"]', ["a.example"]),
    "stream_store": ("sqlite:///x", "sqlite:///x"),
    "live_check_share": ("0.5", 0.5),
    "log_level": ("debug", "DEBUG"),
    "log_format": ("json", "json"),
    "otlp_endpoint": ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
    "body_bytes_max": ("4096", 4096),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_taken_from_its_variable_and_from_its_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_kind: dict[Any, Any] = {
        bool: ("yes", True),
        int: ("16777216", 16_777_216),
        str: ("x", "x"),
        Path: ("x", Path("x")),
    }
    if SETTINGS[name].most is not None and SETTINGS[name].most < 16_777_216:
        of_kind[int] = ("1000", 1000)
    text, value = OTHERS.get(name) or of_kind[SETTINGS[name].kind]
    file = tmp_path / "oncegate.toml"
    file.write_text(f"{name} = {text if SETTINGS[name].kind is list else repr(text)}\n")
    assert vars(Settings.load(file)) == {**vars(Settings()), name: value}
    monkeypatch.setenv(SETTINGS[name].variable, text)
    assert vars(Settings.load(None)) == {**vars(Settings()), name: value}


WRONG = [
    *(("body_bytes_max", value) for value in (1023, 8 * MIB + 1, 2**40, True, "1e6")),
    *(("live_check_share", value) for value in ("nan", 1.01)),
    *(("members", value) for value in ("no json", [1])),
    *(("live_check_seed", 2**63), ("join", "perhaps"), ("node", 7), ("stream_store", "mysql://x")),
    ("log_level", "LOUD"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_value_of_another_type_or_beyond_its_bounds_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{SETTINGS[name].flag}: "):
        Settings.load(None, **{name: value})
    with pytest.raises(ValueError, match=f"^{name}: "):
        Settings(**{name: value})


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"^--body-bytes-max: .*; --log-level: "):
        Settings.load(None, body_bytes_max=1, log_level="LOUD")


def test_wrong_name_is_refused_with_the_nearest_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "oncegate.toml"
    file.write_text("max_body_bytes = 4096\ncolor = 1\n")
    with pytest.raises(
        ValueError, match=r"toml:1: max_body_bytes is no setting; did you mean body_bytes_max\?; .*:2: color is no"
    ):
        Settings.load(file)
    monkeypatch.setenv("ONCEGATE_MEMBER", "[]")
    with pytest.raises(ValueError, match=r"ONCEGATE_MEMBER is no setting; did you mean ONCEGATE_MEMBERS\?"):
        Settings.load(None)


def test_every_fault_is_told_with_its_file_and_line_or_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "n1.toml"
    file.write_text(
        '# first\n\nmembers = [\n  "n1=h:1:2",\n]\n"body_bytes_max" = 12\nlog_levle = "INFO"\n\n[serve]\nnode = "n2"\n'
    )
    monkeypatch.setenv("ONCEGATE_LIVE_CHECK_SHARE", "2")
    monkeypatch.setenv("ONCEGATE_ENDPONT", "http://h:1")
    with pytest.raises(ValueError) as refused:
        Settings.load(file)
    assert str(refused.value).split("; ") == [
        f"{file}:7: log_levle is no setting",
        "did you mean log_level?",
        f"{file}:9: serve is no setting",
        f"{file}:6: body_bytes_max: 12 is not from 1024 to 8388608",
        "ONCEGATE_LIVE_CHECK_SHARE: 2.0 is not from 0.0 to 1.0",
        "ONCEGATE_ENDPONT is no setting",
        "did you mean ONCEGATE_ENDPOINT?",
    ]


def test_each_setting_says_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "n1.toml"
    file.write_text('cluster = "of-file"\n\nnode = "n2"\nlog_level = "ERROR"\n')
    environment = {"ONCEGATE_NODE": "n3", "ONCEGATE_LOG_LEVEL": "debug", "ONCEGATE_SEED": "7"}
    gathered = gather(SETTINGS, file, environment, {"log_level": "warning", "join": None})
    assert (gathered.faults, gathered.unknown) == ([], ["ONCEGATE_SEED is no setting"])
    assert list(gathered.settings) == list(SETTINGS)
    assert {name: one for name, one in gathered.settings.items() if one.origin != "default"} == {
        "cluster": ("of-file", f"{file}:1"),
        "node": ("n3", "ONCEGATE_NODE"),
        "log_level": ("WARNING", "--log-level"),
    }


def test_store_with_a_password_in_its_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="password_file") as refused:
        Settings.load(None, stream_store="cassandra://app:hunter2@db/app")
    assert "hunter2" not in str(refused.value)


def test_variables_of_other_commands_and_of_container_platforms_are_no_misspelled_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sdk = ("TOKEN", "TOKEN_FILE", "CA_FILE", "LOG", "ENDPOINT", "ENDPOINTS", "PROFILE", "PROFILES", "TIMEOUT_S")
    own = (*sdk, "CONFIG", "SEED", "SOAK")
    platform = ("PORT", "PORT_7400_TCP", "PORT_7400_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP")
    for name in (*own, *platform):
        monkeypatch.setenv(f"ONCEGATE_{name}", "tcp://10.0.0.1:7400")
    assert Settings.load(None) == Settings()


def test_sample_file_names_every_setting_with_its_default(tmp_path: Path) -> None:
    """It is what deployments rely on: a name or a default that changes is a visible change there."""
    sample = (Path(__file__).parents[2] / "deploy" / "oncegate.toml").read_text()
    lines = [line.removeprefix("# ") for line in sample.splitlines()]
    lines = [line for line in lines if line.split(" = ")[0] in SETTINGS]
    assert list(tomllib.loads("\n".join(lines))) == list(SETTINGS)
    file = tmp_path / "oncegate.toml"
    file.write_text("\n".join(lines))
    assert Settings.load(file) == Settings()
