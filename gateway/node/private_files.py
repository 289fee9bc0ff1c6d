"""Who else on the machine may read a node's files.

Owns: what a node makes is its user's alone, and what it is given in secret must be. Standard library only.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from stat import S_IMODE
from typing import Final

from oncegate.consensus.config import is_loopback
from oncegate.gateway.node.settings import SETTINGS, Settings

_OTHERS: Final = 0o007
_WRITABLE_BY_GROUP: Final = 0o020
_NOT_THE_OWNER: Final = 0o077
log = logging.getLogger(__name__)


def exposed_secrets(settings: Settings) -> list[str]:
    """Return of each file with secrets that strangers on this machine may read, or change, what is wrong and the way
    out.

    A group may read: secrets are mounted that way. Files that are not there are left to those who open them.
    """
    said = []
    for name in SETTINGS:
        path = getattr(settings, name)
        if not isinstance(path, Path) or not _is_secret(name) or not path.is_file():
            continue
        mode = S_IMODE(path.stat().st_mode)
        if mode & (_OTHERS | _WRITABLE_BY_GROUP):
            said.append(f"{name}: {path} is open to others (mode {mode:04o}): chmod g-w,o= {path}")
    return said


def check_secrets(settings: Settings) -> None:
    """Refuse files with secrets that others may read, or change, where other machines reach the node.

    On loopback, where a cluster is tried out, :func:`begin_private` warns of them instead.

    Raises:
        ValueError: it names each file and how to close it.
    """
    hosts = (settings.http_address[0], settings.peer_address[0])
    exposed = [] if all(map(is_loopback, hosts)) else exposed_secrets(settings)
    if exposed:
        raise ValueError("; ".join(exposed))


def begin_private(settings: Settings) -> None:
    """Let nobody but this user see what the process writes from now on, and close the data directory to all others.

    Files of earlier builds may be readable by all; behind a closed directory nobody reaches them. A directory that is
    another user's, such as a mounted volume, stays as it is.
    """
    os.umask(_NOT_THE_OWNER)
    for one in exposed_secrets(settings):
        log.warning("%s", one)
    path = settings.data_dir
    mode = S_IMODE(path.stat().st_mode) if path.is_dir() else 0
    if mode & _NOT_THE_OWNER:
        try:
            path.chmod(mode & ~_NOT_THE_OWNER)
        except PermissionError:
            log.warning("%s is open to others (mode %04o) and not this user's to close", path, mode)
        else:
            log.warning("%s was open to others (mode %04o) and is closed now", path, mode)


def _is_secret(name: str) -> bool:
    return "secret" in name or "token" in name or name.endswith("_key")
