"""What nodes prove themselves to each other with: settings, files, and a change of them while a node runs."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from oncegate.consensus.config import TlsConfig
from oncegate.gateway.http.server import running
from oncegate.gateway.node import peer_credentials
from oncegate.gateway.node.certificate_end import CertificateEnd
from oncegate.gateway.node.node import replica_config
from oncegate.gateway.node.peer_credentials import SECRET_FILE_BYTES_MAX, PeerCredentials, peer_secrets
from oncegate.gateway.node.settings import Settings
from tests.gateway.http_contract import one_node

OLD, NEW = b"the secret until now", b"the secret from now on"


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, Path]:
    """Settings of peer TLS."""
    authority = trustme.CA()
    issued = authority.issue_cert("n1")
    files = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key", "authority")}
    issued.cert_chain_pems[0].write_to_path(files["certificate"])
    issued.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["authority"])
    return {f"peer_tls_{name}": path for name, path in files.items()}


def test_a_node_on_an_address_that_others_reach_wants_tls_or_is_told_so_in_as_many_words(
    tmp_path: Path, tls: dict[str, Path]
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(OLD)
    for members in (["n1=10.0.0.1:1:2"], ["n1=10.0.0.2:1:2"], ["n1=127.0.0.1:1:2", "n2=node-2.example:1:2"]):
        for given, reason in (
            ({}, "insecure_peers"),
            ({"secret_file": secret}, "insecure_peers"),
            ({"insecure_peers": True}, "secret"),
        ):
            with pytest.raises(ValueError, match=reason):
                replica_config(Settings(members=members, **given))
        for fine in ({"secret_file": secret, "insecure_peers": True}, tls):
            assert replica_config(Settings(members=members, **fine)).node_id == "n1"


def test_peer_tls_needs_all_three_files(tls: dict[str, Path]) -> None:
    config = replica_config(Settings(**tls)).tls
    assert config == TlsConfig(
        certificate=tls["peer_tls_certificate"], key=tls["peer_tls_key"], authority=tls["peer_tls_authority"]
    )
    for name in tls:
        with pytest.raises(ValueError, match="together"):
            replica_config(Settings(**{**tls, name: None}))


def test_certificate_of_another_node_is_refused_before_all_peers_refuse_it(
    tmp_path: Path, tls: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    members = ["n1=127.0.0.1:1:2", "n2=127.0.0.1:3:4"]
    with pytest.raises(ValueError, match=r"names n1, not this node: n2"):
        replica_config(Settings(node="n2", members=members, **tls))
    renewed: list[Any] = []
    credentials = PeerCredentials(Settings(**tls), renewed.append)
    trustme.CA().issue_cert("n2").cert_chain_pems[0].write_to_path(tls["peer_tls_certificate"])
    credentials.refresh()
    assert renewed == []
    assert caplog.text == "", "another file may be on its way"
    credentials.refresh()
    assert renewed == []
    assert "not this node: n1" in caplog.text
    tls["peer_tls_certificate"].write_text("nothing")
    with pytest.raises(ValueError, match=r"certificate\.pem is no certificate"):
        replica_config(Settings(**tls))
    trustme.CA().issue_cert("10.0.0.1", common_name="n1").cert_chain_pems[0].write_to_path(tls["peer_tls_certificate"])
    assert replica_config(Settings(**tls)).tls is not None


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        (OLD + b"\n", (OLD,)),
        (b"two lines of one secret\nas it was before\n", (b"two lines of one secret\nas it was before",)),
        (b"send: " + NEW + b"\naccept: " + OLD + b"\n", (NEW, OLD)),
        (b"send:" + NEW, (NEW,)),
    ],
)
def test_file_holds_a_secret_or_the_one_to_send_and_one_to_accept(
    tmp_path: Path, text: bytes, secrets: tuple[bytes, ...]
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(text)
    assert peer_secrets(Settings(secret_file=file)) == secrets
    assert replica_config(Settings(secret_file=file)).secrets == secrets


@pytest.mark.parametrize(
    "text",
    [
        b"send: " + NEW + b"\n" + OLD,
        b"send: " + NEW + b"\naccept: " + OLD + b"\naccept: " + OLD,
        b"x" * (SECRET_FILE_BYTES_MAX + 1),
        b"send: short",
        b"accept: " + NEW + b"\nsend: " + OLD,
        b"Send: " + OLD + b"\nAccept: " + NEW,
        OLD + b"\naccept: " + NEW,
        b"",
    ],
)
def test_file_of_another_form_is_refused_and_nothing_of_it_is_quoted(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(text)
    with pytest.raises(ValueError, match="secret") as refused:
        replica_config(Settings(secret_file=file))
    assert "until now" not in str(refused.value)


def test_change_is_seen_and_what_is_not_usable_changes_nothing(
    tmp_path: Path, tls: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(OLD)
    renewed: list[Any] = []
    credentials = PeerCredentials(Settings(secret_file=file, **tls), renewed.append)
    credentials.refresh()
    assert renewed == []
    file.write_bytes(b"send: " + NEW + b"\naccept: " + OLD)
    credentials.refresh()
    credentials.refresh()
    assert renewed == [(NEW, OLD)]
    for count, name in enumerate(tls, 2):
        tls[name].write_bytes(tls[name].read_bytes() + b"\n")
        credentials.refresh()
        assert len(renewed) == count
    file.unlink()
    credentials.refresh()
    credentials.refresh()
    assert len(renewed) == 4
    assert caplog.text.count("stays as it was") == 1
    assert OLD.decode() not in caplog.text


@pytest.mark.parametrize(("life", "soon"), [(timedelta(days=90), timedelta(days=14)), (timedelta(1), timedelta(0.25))])
def test_end_of_a_certificate_is_told_before_it_comes_and_once_for_each_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, life: timedelta, soon: timedelta
) -> None:
    authority, file = trustme.CA(), tmp_path / "n1.pem"
    begin = datetime(2030, 1, 1, tzinfo=UTC)

    def issue() -> None:
        issued = authority.issue_cert("n1", not_before=begin, not_after=begin + life)
        issued.cert_chain_pems[0].write_to_path(tmp_path / "new.pem")
        (tmp_path / "new.pem").rename(file)

    end = CertificateEnd(file, "the certificate for peers")
    end.look(begin)
    for round_ in (1, 2):
        issue()
        for left in (life, soon + timedelta(seconds=1), soon, soon / 2, timedelta(0), -life):
            end.look(begin + life - left)
        assert [caplog.text.count(word) for word in ("ends soon", "has ended")] == [round_, round_]


async def test_running_node_goes_on_with_the_certificates_of_today(
    tmp_path: Path, tls: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_credentials, "LOOK_S", 3600.0)
    async with running(one_node(tmp_path, **tls)) as node:
        served = await _certificate(node.settings, tls)
        authority = trustme.CA()
        issued = authority.issue_cert("n1")
        issued.private_key_pem.write_to_path(tls["peer_tls_key"])
        node.peer_credentials.refresh()
        assert await _certificate(node.settings, tls) == served, "a key without its certificate changes nothing"
        issued.cert_chain_pems[0].write_to_path(tls["peer_tls_certificate"])
        node.peer_credentials.refresh()
        assert await _certificate(node.settings, tls) == ssl.PEM_cert_to_DER_cert(
            tls["peer_tls_certificate"].read_text()
        )
        assert "stays as it was" not in caplog.text, "a look between the two is no fault"


async def _certificate(settings: Settings, tls: dict[str, Path]) -> bytes:
    """Return the certificate that a node shows a peer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(*settings.address.peer, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    assert isinstance(shown, bytes)
    return shown


async def test_running_node_looks_at_its_files_by_itself_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_credentials, "LOOK_S", 0.01)
    file = tmp_path / "secret"
    file.write_bytes(OLD)
    async with running(one_node(tmp_path, secret_file=file)) as node:
        for text, secrets in (
            (b"send: " + OLD + b"\naccept: " + NEW, (OLD, NEW)),
            (b"send: " + NEW + b"\naccept: " + OLD, (NEW, OLD)),
        ):
            file.write_bytes(text)
            async with asyncio.timeout(20):
                while node.replica._transport._credentials.secrets != secrets:
                    await asyncio.sleep(0.01)
