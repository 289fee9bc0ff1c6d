"""Mutual TLS between the nodes of a checked cluster: an authority, and certificates that are replaced while they run.

Owns the files. What a node does with them is :mod:`oncegate.gateway.node.peer_credentials`. Wall clocks of a run may be
a day off (:data:`~oncegate.proof.check.equipment.DAY_S`), so a certificate is valid for a month either way, unless it
is meant to expire.
"""

from __future__ import annotations

import importlib.util
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from oncegate.proof.check.errors import Unavailable

_MONTH: Final = timedelta(days=30)


def look_for_library() -> None:
    """Raise Unavailable where certificates cannot be made."""
    if importlib.util.find_spec("trustme") is None:
        raise Unavailable("trustme is not installed")


class Certificates:
    """Credentials of the peers below ``directory``; raises Unavailable."""

    def __init__(self, directory: Path) -> None:
        look_for_library()
        import trustme  # of the extra dev, as libfaketime

        self._directory = directory
        self._authority = trustme.CA()
        self._ends: dict[str, datetime] = {}
        directory.mkdir(parents=True)
        self._authority.cert_pem.write_to_path(self._file("authority", "pem"))

    def issue(self, node_id: str, *, seconds: float | None = None) -> None:
        """Write a new key and certificate of a node over the old ones; it ends in ``seconds``, by our clock."""
        now = datetime.now(UTC)
        end = now + (_MONTH if seconds is None else timedelta(seconds=seconds))
        self._ends[node_id] = end
        issued = self._authority.issue_cert(node_id, not_before=now - _MONTH, not_after=end)
        # One after the other: a node takes neither before both belong together.
        for kind, content in (("key", issued.private_key_pem), ("pem", issued.cert_chain_pems[0])):
            file = self._file(node_id, kind)
            beside = file.with_name(f"{file.name}.new")
            beside.touch(mode=0o600)
            beside.write_bytes(content.bytes())
            os.replace(beside, file)

    def renew(self) -> None:
        """Issue anew what is valid no more."""
        for node_id in self._ends:
            if self.is_over(node_id):
                self.issue(node_id)

    def is_over(self, node_id: str) -> bool:
        """Whether the newest certificate of a node is valid no more, by our clock."""
        return datetime.now(UTC) > self._ends[node_id]

    def flags(self, node_id: str) -> list[str]:
        """Return the flags with which a node speaks TLS to its peers."""
        files = {"certificate": (node_id, "pem"), "key": (node_id, "key"), "authority": ("authority", "pem")}
        return [word for flag, of in files.items() for word in (f"--peer-tls-{flag}", str(self._file(*of)))]

    def _file(self, of: str, kind: str) -> Path:
        return self._directory / f"{of}.{kind}"
