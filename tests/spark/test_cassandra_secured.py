"""A Cassandra that asks for a log-in and a client certificate, over TLS: what works, and what is refused at once."""

from __future__ import annotations

import ssl
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest
import trustme
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from oncegate.stores import WRITE_TS, Column, ColumnType, open_store
from oncegate.stores.devcassandra import Config, DevCluster, running
from oncegate.stores.devcassandra.cluster import free_ports
from oncegate.stores.devcassandra.node import SUPERUSER
from oncegate.stores.errors import BadRows, StoreCode, StoreError
from oncegate.stores.stream_rows import STREAM_ROWS
from tests.spark.patience import PATIENT

pytestmark = pytest.mark.cassandra
SECRET = "hidden-from-all"


@dataclass(frozen=True)
class Secured:
    cluster: DevCluster
    folder: Path

    def url(self, keyspace: str, user: str = SUPERUSER, **changed: str | None) -> str:
        options = {"user": user, "password_file": f"{self.folder}/{user}", "retry_s": "20"}
        options |= {name: f"{self.folder}/{name[:-5]}.pem" for name in ("ca_file", "cert_file", "key_file")}
        kept = {name: value for name, value in (options | changed).items() if value is not None}
        return f"{self.cluster.url(keyspace)}?{urlencode(kept)}"


def _write_files(folder: Path) -> Config:
    authority, stranger = trustme.CA(), trustme.CA()
    node, client = authority.issue_cert("127.0.0.1", "db.example"), authority.issue_cert("client.example")
    key = load_pem_private_key(node.private_key_pem.bytes(), None)
    # Cassandra reads PKCS #8 only.
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "node.pem").write_bytes(key_pem + b"".join(part.bytes() for part in node.cert_chain_pems))
    authority.cert_pem.write_to_path(folder / "ca.pem")
    stranger.cert_pem.write_to_path(folder / "stranger.pem")
    client.private_key_pem.write_to_path(folder / "key.pem")
    client.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    for user, password in ((SUPERUSER, SUPERUSER), ("jobs", SECRET), ("readers", SECRET), ("wrong", SECRET)):
        (folder / user).write_text(f"{password}\n")
    return Config(heap="512m", login=True, tls_key=f"{folder}/node.pem", tls_authority=f"{folder}/ca.pem")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    with running(free_ports(_write_files(folder))) as cluster:
        context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
        context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
        login = PlainTextAuthProvider(SUPERUSER, SUPERUSER)
        with Cluster(
            ["127.0.0.1"], cluster.config.native_port, **PATIENT, auth_provider=login, ssl_context=context
        ) as admin:
            session = admin.connect()
            for role in ("jobs", "readers"):
                session.execute(f"CREATE ROLE {role} WITH LOGIN = true AND PASSWORD = '{SECRET}'")
            session.execute(
                "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"
            )
            session.execute("GRANT SELECT, MODIFY ON KEYSPACE ks TO jobs")
            session.execute("GRANT SELECT ON KEYSPACE ks TO readers")
        found = Secured(cluster, folder)
        with open_store(found.url("ks")) as store:
            store.create([STREAM_ROWS])
        yield found


def rows(*keys: str) -> pa.RecordBatch:
    cells = [{"source": "t", "key": key, "value": "1", WRITE_TS: 1} for key in keys]
    return pa.RecordBatch.from_pylist(cells, schema=STREAM_ROWS.schema)


def test_role_that_may_write_writes_and_create_changes_nothing_where_nothing_is_missing(secured: Secured) -> None:
    with open_store(secured.url("ks", "jobs")) as store:
        store.create([STREAM_ROWS])
        with pytest.raises(BadRows) as refused:
            store.write(STREAM_ROWS, rows("a", "k" * 70_000, "b"))
        assert [one.index for one in refused.value.rejected] == [1]
        assert store.count(STREAM_ROWS) == 2
        assert "cassandra" in store.durability()


def test_role_that_may_write_is_told_who_adds_what_is_missing(secured: Secured) -> None:
    wider = replace(STREAM_ROWS, columns=(*STREAM_ROWS.columns, Column("added", ColumnType.INT64, nullable=True)))
    with open_store(secured.url("ks", "jobs")) as jobs:
        for table, command in ((wider, "oncegate store migrate"), (replace(wider, name="new"), "oncegate store init")):
            with pytest.raises(StoreError, match=command) as refused:
                jobs.create([table])
            assert refused.value.code is StoreCode.STORE_REFUSED
        with open_store(secured.url("ks")) as admin:
            admin.create([wider])
        jobs.create([wider])
        jobs.create([STREAM_ROWS])
        jobs.write(STREAM_ROWS, rows("widened"))
        assert jobs.get(wider, {"source": "t", "key": "widened"}) is not None


def test_role_that_may_read_reads_and_is_refused_a_write_at_once(secured: Secured) -> None:
    with open_store(secured.url("ks", "jobs")) as store:
        store.write(STREAM_ROWS, rows("read"))
    with open_store(secured.url("ks", "readers", tls_name="db.example")) as store:
        assert store.get(STREAM_ROWS, {"source": "t", "key": "read"}) is not None
        assert sum(part.num_rows for part in store.scan(STREAM_ROWS)) == store.count(STREAM_ROWS)
        for use in (
            lambda: store.write(STREAM_ROWS, rows("a")),
            lambda: store.delete(STREAM_ROWS, rows("a").select(STREAM_ROWS.key_schema.names)),
        ):
            with pytest.raises(StoreError) as refused:
                use()
            assert refused.value.code is StoreCode.STORE_REFUSED
            assert not refused.value.retryable
    with open_store(secured.url("other", "readers")) as store, pytest.raises(StoreError) as refused:
        store.create([STREAM_ROWS])
    assert refused.value.code is StoreCode.STORE_REFUSED


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"user": "wrong"}, id="user"),
        pytest.param({"user": "jobs", "password_file": "{folder}/cassandra"}, id="password"),
        pytest.param({"user": None, "password_file": None}, id="no log-in"),
        pytest.param({"ca_file": "{folder}/stranger.pem"}, id="authority"),
        pytest.param({"tls_name": "else.example"}, id="name"),
    ],
)
def test_wrong_credential_or_certificate_is_refused_at_once_without_the_secret(
    secured: Secured, changed: dict[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    filled = {name: value and value.format(folder=secured.folder) for name, value in changed.items()}
    url = secured.url("ks", **{"retry_s": "600", **filled})
    with open_store(url) as store, pytest.raises(StoreError) as refused:
        store.count(STREAM_ROWS)
    assert refused.value.code is StoreCode.STORE_REFUSED
    shown = "".join(traceback.format_exception(refused.value)) + caplog.text + repr(store.__dict__)
    assert SECRET not in shown


def test_name_of_a_certificate_is_not_asked_for_where_the_check_is_off(secured: Secured) -> None:
    with open_store(secured.url("ks", tls_name="else.example", host_check="off")) as store:
        assert store.count(STREAM_ROWS) >= 0


def test_client_without_encryption_or_certificate_gets_no_answer(secured: Secured) -> None:
    plain = {"ca_file": None, "cert_file": None, "key_file": None}
    for changed in (plain, {"cert_file": None, "key_file": None}):
        with (
            open_store(secured.url("ks", **{"retry_s": "1", **changed})) as store,
            pytest.raises(StoreError) as refused,
        ):
            store.count(STREAM_ROWS)
        assert refused.value.code in (StoreCode.STORE_UNAVAILABLE, StoreCode.STORE_REFUSED)


def test_data_centre_that_is_none_is_refused_by_name(secured: Secured) -> None:
    with open_store(secured.url("ks", data_centre="elsewhere")) as store, pytest.raises(StoreError) as refused:
        store.count(STREAM_ROWS)
    assert refused.value.code is StoreCode.BAD_OPTION
    assert refused.value.detail == "data_centre must be one of datacenter1"
