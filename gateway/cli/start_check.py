"""What keeps a node from starting although each of its settings is valid by itself: files, directories, and settings
that contradict each other.

Owns: that each file and directory which a setting names is looked at before a node starts, and that a fault names the
setting where it was given. What is in a file is read by the modules that use it. They are imported with this one, which
takes a second: only ``oncegate serve`` and ``oncegate config check`` need it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from oncegate.consensus.net.connection import tls_contexts
from oncegate.gateway.http.auth import Tokens, tokens_of
from oncegate.gateway.http.server import check_exposure, server_context
from oncegate.gateway.node.node import replica_config
from oncegate.gateway.node.peer_credentials import peer_secrets, peer_tls
from oncegate.gateway.node.private_files import check_secrets
from oncegate.gateway.node.setting import Gathered
from oncegate.gateway.node.settings import SETTINGS, Settings

PEER_TLS: Final = ("peer_tls_certificate", "peer_tls_key", "peer_tls_authority")


class StartFault(NamedTuple):
    """What is wrong; ``names``: the settings that it is about, none where the text names them itself."""

    text: str
    names: tuple[str, ...] = ()

    def told(self, gathered: Gathered) -> str:
        """Return the fault behind the places where its settings were given."""
        places = [SETTINGS[name].at(gathered.settings[name].origin) for name in self.names]
        return f"{', '.join(places)}: {self.text}" if places else self.text


class _Step(NamedTuple):
    """Raises ValueError or OSError; not taken where one of its settings has a fault already."""

    names: tuple[str, ...]
    check: Callable[[Settings], object]
    is_about_names: bool = True


def _check_data_dir(settings: Settings) -> None:
    """Nothing is made by a look: the nearest directory that is there must take a new one."""
    whole = settings.data_dir.absolute()
    there = next(one for one in (whole, *whole.parents) if os.path.lexists(one))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)} to write", str(there))


def _check_file(path: Path) -> None:
    """Opens nothing: a pipe gives what it has once."""
    if stat.S_ISDIR(path.stat().st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)} to read", str(path))


def _file_step(name: str) -> _Step:
    def check(settings: Settings) -> None:
        path: Path | None = getattr(settings, name)
        if path is not None:
            _check_file(path)

    return _Step((name,), check)


_STEPS: Final = (
    _Step(("data_dir",), _check_data_dir),
    *(_file_step(name) for name, one in SETTINGS.items() if one.kind is Path and name != "data_dir"),
    _Step(("secret_file",), peer_secrets),
    _Step(PEER_TLS, lambda settings: tls_contexts(peer_tls(settings))),
    _Step(("tls_certificate", "tls_key"), server_context),
    _Step(("tokens_file",), lambda settings: settings.tokens_file and Tokens(settings.tokens_file)),
    _Step(
        ("jwt_keys_file", "jwt_issuer", "jwt_audience"),
        lambda settings: tokens_of(replace(settings, tokens_file=None)),
    ),
    _Step(("secret_file", *PEER_TLS), replica_config, is_about_names=False),
    _Step((), check_exposure, is_about_names=False),
    _Step((), check_secrets, is_about_names=False),
)


def start_faults(settings: Settings) -> list[StartFault]:
    """Return all that keeps a node with these settings from starting here."""
    found: dict[StartFault, None] = {}  # in order, each once: steps ask for the same addresses
    for names, check, is_about_names in _STEPS:
        if any(set(names) & set(fault.names) for fault in found):
            continue
        try:
            check(settings)
        except (ValueError, OSError) as fault:
            given = tuple(name for name in names if getattr(settings, name) is not None)
            found[StartFault(_words(fault), given if is_about_names else ())] = None
    return list(found)


def make_data_dir(settings: Settings) -> StartFault | None:
    """Make the directory where it is not there; some file systems refuse what they seemed to take."""
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        return StartFault(_words(fault), ("data_dir",))
    return None


def _words(fault: ValueError | OSError) -> str:
    if isinstance(fault, OSError) and fault.strerror and fault.filename is not None:
        return f"{fault.filename}: {fault.strerror}"
    return str(fault)
