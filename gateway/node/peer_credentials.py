"""What this node proves itself to its peers with: the shared secret and the certificates, read again when they change.

Owns the file of the secret and the look at all of them once a second. What a secret or a certificate proves is
:mod:`oncegate.consensus.net.handshake`. The file of the secret holds nothing but it, or, while it is replaced, two
lines::

    send: 3f2c…
    accept: 9a01…

A file is read whole at one moment, so that the two change places at once: replace it by renaming a new one over it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from oncegate.consensus.config import SECRET_BYTES_MIN, TlsConfig
from oncegate.gateway.node.certificate_end import CertificateEnd
from oncegate.gateway.node.file_stamps import FilesTogether
from oncegate.gateway.node.settings import Settings

LOOK_S: Final = 1.0
SECRET_FILE_BYTES_MAX: Final = 4096
_SEND: Final = b"send:"
_ACCEPT: Final = b"accept:"
log = logging.getLogger(__name__)


def peer_secrets(settings: Settings) -> tuple[bytes, ...]:
    """Return the secrets that this node accepts, the one that it uses first; none without a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is too large or of another form, or a secret is too short; the text names the file, and quotes
            nothing of it.
    """
    path = settings.secret_file
    if path is None:
        return ()
    secrets = _secrets_of(path)
    if any(len(secret) < SECRET_BYTES_MIN for secret in secrets):
        raise ValueError(f"{path}: a secret has at least {SECRET_BYTES_MIN} bytes")
    return secrets


def _secrets_of(path: Path) -> tuple[bytes, ...]:
    with path.open("rb") as file:
        found = file.read(SECRET_FILE_BYTES_MAX + 1)
    if len(found) > SECRET_FILE_BYTES_MAX:
        raise ValueError(f"{path} is too large for a secret")
    whole = found.strip()
    if not whole.startswith(_SEND):
        if any(line.strip().lower().startswith((_SEND, _ACCEPT)) for line in whole.splitlines()):
            # Two lines in another order, say. Taken for one secret, they would cut the node off.
            raise ValueError(f"{path} is a secret, or two lines: send: …, accept: …")
        return (whole,)
    used, _, accepted = whole.removeprefix(_SEND).partition(b"\n")
    accepted = accepted.strip()
    if accepted and (not accepted.startswith(_ACCEPT) or b"\n" in accepted):
        raise ValueError(f"{path} is a secret, or two lines: send: …, accept: …")
    secrets = (used.strip(), accepted.removeprefix(_ACCEPT).strip())
    return secrets if accepted else secrets[:1]


def peer_tls(settings: Settings) -> TlsConfig | None:
    """Return where the peers' certificates are; none are named: none.

    Raises:
        OSError: the certificate cannot be read.
        ValueError: only some of the three files are named, or the certificate is not this node's: all peers would
            refuse it.
    """
    files = settings.peer_tls_certificate, settings.peer_tls_key, settings.peer_tls_authority
    certificate, key, authority = files
    if certificate is None or key is None or authority is None:
        if any(files):
            raise ValueError("peer_tls_certificate, peer_tls_key and peer_tls_authority go together")
        return None
    names = _names(certificate)
    if settings.node not in names:
        raise ValueError(f"{certificate} names {', '.join(sorted(names)) or 'nobody'}, not this node: {settings.node}")
    return TlsConfig(certificate=certificate, key=key, authority=authority)


def _names(path: Path) -> set[str]:
    # Here, because it takes 70 ms of processor time, which nodes without peer TLS need not spend at each start.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = set(named.get_values_for_type(x509.DNSName))
    except x509.ExtensionNotFound:
        names = set()
    except ValueError as fault:
        raise ValueError(f"{path} is no certificate: {fault}") from None
    return names | {str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)}


class PeerCredentials:
    """Looks after the files and tells the replica of a change; what is not usable changes nothing, and is logged."""

    def __init__(self, settings: Settings, renew: Callable[[tuple[bytes, ...]], None]) -> None:
        """``renew`` is :meth:`oncegate.consensus.replica.replica.Replica.renew_credentials`."""
        self._settings = settings
        self._renew = renew
        tls = peer_tls(settings)
        files = [settings.secret_file, *((tls.certificate, tls.key, tls.authority) if tls is not None else ())]
        given = [path for path in files if path is not None]
        self._files = FilesTogether(given, self._load, "what peers are proved with")
        self._end = None if tls is None else CertificateEnd(tls.certificate, "the certificate for peers")
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look once a second from now on."""
        if self._files.paths:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def refresh(self) -> None:
        """Look now."""
        if self._end is not None:
            self._end.look(datetime.now(UTC))
        if self._files.look():
            log.info("peers are proved with what %s hold now", ", ".join(map(str, self._files.paths)))

    def _load(self) -> None:
        peer_tls(self._settings)
        self._renew(peer_secrets(self._settings))

    def _look(self) -> None:
        self.refresh()
        self.start()
