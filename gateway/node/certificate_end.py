"""When a certificate ends: told in the log before it does, once, and once when it has.

Owns the look at the file. Which certificates there are: :mod:`oncegate.gateway.node.peer_credentials` for peers,
:mod:`oncegate.gateway.http.server` for clients.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

SOON: Final = timedelta(days=14)
SOON_SHARE: Final = 0.25
"""Of its life, for a certificate that lives shorter than the warning is long."""
log = logging.getLogger(__name__)


class CertificateEnd:
    """The end of the certificate in a PEM file that may be replaced; ``what`` names it in the log."""

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what
        self._stamp: tuple[int, int] | None = None
        self._told = ""
        self._end = self._soon = datetime.max.replace(tzinfo=UTC)

    def look(self, now: datetime) -> None:
        """Warn if it ends soon or has ended, and that was not said of this certificate; ``now`` has a time zone."""
        try:
            found = os.stat(self._path)
            if self._stamp != (found.st_mtime_ns, found.st_ino):
                self._read()
                self._stamp, self._told = (found.st_mtime_ns, found.st_ino), ""
        except (OSError, ValueError):
            return  # who uses the file says what is wrong with it
        state = "has ended" if now >= self._end else "ends soon" if now >= self._soon else ""
        if state and state != self._told:
            self._told = state
            log.warning("%s in %s %s: %s; replace it", self._what, self._path, state, self._end.isoformat())

    def _read(self) -> None:
        from cryptography import x509  # here: it takes 70 ms, which nodes without TLS need not spend

        certificate = x509.load_pem_x509_certificate(self._path.read_bytes())
        begin, self._end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        self._soon = self._end - min(SOON, SOON_SHARE * (self._end - begin))
