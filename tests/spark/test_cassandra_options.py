"""URLs of Cassandra stores: every option is checked by name, and no secret stands where it could be logged."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel, InvalidRequest

from oncegate.stores import open_store
from oncegate.stores.cassandra import connection
from oncegate.stores.cassandra.options import CassandraOptions
from oncegate.stores.errors import StoreCode, StoreError


def test_places_have_ports_of_their_own_and_may_be_ipv6() -> None:
    found = CassandraOptions.parse("cassandra://db1,10.0.0.2:9043,[::1],[fe80::1%eth0]:9044/ks")
    assert found.places == (("db1", 9042), ("10.0.0.2", 9043), ("::1", 9042), ("fe80::1%eth0", 9044))
    assert found.keyspace == "ks"


def test_options_have_defaults_and_are_read(tmp_path: Path) -> None:
    found = CassandraOptions.parse("cassandra://db/ks")
    assert (found.write_level, found.read_level) == (ConsistencyLevel.LOCAL_QUORUM,) * 2
    assert not found.tls
    assert found.compression
    assert found.user is None
    assert not CassandraOptions.parse("cassandra://db/ks?compression=off").compression
    found = CassandraOptions.parse(
        f"cassandra://db/ks?user=ann&password_file={tmp_path}/p&ca_file={tmp_path}/ca&tls_name=db.example"
        "&write_consistency=EACH_QUORUM&read_consistency=LOCAL_ONE&data_centre=eu-1&replication=eu-1:3,us:2&retry_s=9"
    )
    assert (found.write_level, found.read_level) == (ConsistencyLevel.EACH_QUORUM, ConsistencyLevel.LOCAL_ONE)
    assert found.tls
    assert found.replication == {"eu-1": 3, "us": 2}
    assert found.retry_s == 9
    assert CassandraOptions.parse("cassandra://db/ks?replication=2").replicas == 2


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("cassandra://db/", "keyspace"),
        ("cassandra://db/Ks", "keyspace"),
        ("cassandra:///ks", "hosts"),
        ("cassandra://db:0/ks", "hosts"),
        ("cassandra://db:99999/ks", "hosts"),
        ("cassandra://db:90x/ks", "hosts"),
        ("cassandra://[::1/ks", "hosts"),
        ("cassandra://db,,db2/ks", "hosts"),
        ("cassandra://db/ks?nonsense=1", "nonsense"),
        ("cassandra://db/ks?in_flight=0", "in_flight"),
        ("cassandra://db/ks?in_flight=-1", "in_flight"),
        ("cassandra://db/ks?in_flight=many", "in_flight"),
        ("cassandra://db/ks?retry_s=1&retry_s=2", "retry_s"),
        ("cassandra://db/ks?request_timeout_s=0", "request_timeout_s"),
        ("cassandra://db/ks?batch_bytes=1e3", "batch_bytes"),
        ("cassandra://db/ks?write_consistency=ANY", "write_consistency"),
        ("cassandra://db/ks?write_consistency=quorum", "write_consistency"),
        ("cassandra://db/ks?read_consistency=EACH_QUORUM", "read_consistency"),
        ("cassandra://db/ks?replication=a:1,a:2", "replication"),
        ("cassandra://db/ks?replication=3,a:2", "replication"),
        ("cassandra://db/ks?replication=x'%7D--:2", "replication"),
        ("cassandra://db/ks?data_centre=a'b", "data_centre"),
        ("cassandra://db/ks?tls=yes", "tls"),
        ("cassandra://db/ks?compression=gzip", "compression"),
        ("cassandra://db/ks?tls=off&ca_file=/x", "tls"),
        ("cassandra://db/ks?host_check=off", "tls"),
        ("cassandra://db/ks?tls=on&key_file=/x", "key_file"),
        ("cassandra://db/ks?user=ann", "user"),
        ("cassandra://db/ks?password_file=/x", "user"),
        ("cassandra://db/ks?user=ann&password_file=/x&password_env=Y", "user"),
        ("cassandra://db/ks?user=&password_file=/x", "user"),
    ],
)
def test_bad_option_is_refused_by_its_name(url: str, named: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_store(url)
    assert refused.value.code is StoreCode.BAD_OPTION
    assert refused.value.detail.startswith(f"{named} ")


@pytest.mark.parametrize(
    "url",
    [
        "cassandra://ann:hidden@db/ks",
        "cassandra://ann:hidden@[::1/ks",
        "cassandra://db/ks?user=ann&password=hidden",
        "cassandra://db/ks?user=ann&password=hidden&password=hidden",
        "cassandra://ann:hidden@db/ks?in_flight=x",
    ],
)
def test_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_store(url)
    assert refused.value.code is StoreCode.BAD_OPTION
    assert "hidden" not in "".join(traceback.format_exception(refused.value))
    assert "password_file" in refused.value.detail


def test_password_is_read_from_its_file_or_variable_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    found = CassandraOptions.parse(f"cassandra://db/ks?user=ann&password_file={file}")
    with pytest.raises(StoreError, match="password_file"):
        found.password()
    for secret in ("one", "two words "):
        file.write_text(f"{secret}\n")
        assert found.password() == secret
    found = CassandraOptions.parse("cassandra://db/ks?user=ann&password_env=STORE_PASSWORD")
    with pytest.raises(StoreError, match="password_env"):
        found.password()
    monkeypatch.setenv("STORE_PASSWORD", "hidden")
    assert found.password() == "hidden"
    assert "hidden" not in repr(found)


def test_files_of_tls_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    for name, more in (("ca_file", ""), ("cert_file", f"&key_file={tmp_path}/x")):
        for file in ("x", "absent"):
            options = CassandraOptions.parse(f"cassandra://db/ks?tls=on&{name}={tmp_path}/{file}{more}")
            with pytest.raises(StoreError, match=name) as refused:
                options.ssl_context()
            assert refused.value.code is StoreCode.BAD_OPTION


@pytest.mark.parametrize(
    ("option", "has_lz4", "compressed"), [("", True, True), ("?compression=off", True, False), ("", False, False)]
)
def test_connection_is_compressed_by_lz4_or_not_at_all(
    option: str, has_lz4: bool, compressed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bool] = []

    def cluster(*_: object, compression: bool, **__: object) -> None:
        seen.append(compression)
        raise InvalidRequest("nobody is there")

    monkeypatch.setattr(connection, "Cluster", cluster)
    monkeypatch.setattr(connection, "locally_supported_compressions", {"snappy": 1, **({"lz4": 1} if has_lz4 else {})})
    with pytest.raises(InvalidRequest):
        connection.Connection(CassandraOptions.parse(f"cassandra://db/ks{option}")).writer()
    assert seen == [compressed]
    assert ("the package lz4 is missing" in caplog.text) is not has_lz4
