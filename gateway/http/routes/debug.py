"""What a node knows of itself when something is wrong: settings, versions, stacks, log. For operators; no secrets."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import msgspec

from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import SETTINGS, Settings
from oncegate.gateway.observability.recent_lines import RECENT
from oncegate.gateway.observability.redaction import redacted

TASKS_MAX: Final = 500
_SECRET_BYTES_MAX: Final = 4096
ROUTES: Final = Routes("debug")


class DebugState(msgspec.Struct):
    """Answer of ``GET /v1/debug``.

    ``variables``: names of the ``ONCEGATE_…`` variables that are set; ``stacks``: by thread; ``tasks``: what asyncio
    runs, ``TASKS_MAX`` of them; ``log``: the newest lines.
    """

    node: str
    settings: dict[str, str]
    versions: dict[str, str]
    variables: list[str]
    stacks: dict[str, list[str]]
    tasks: list[str]
    objects: list[int]
    log: list[str]


@ROUTES.told("GET", "/v1/debug", Scope.ADMIN, answer=DebugState, needs_state=False)
async def debug(node: Node) -> object:
    """``GET /v1/debug``: settings, versions, stacks and log of this node; without secrets."""
    settings = node.settings
    state = DebugState(
        node=settings.node,
        settings={name: str(getattr(settings, name)) for name in SETTINGS},
        versions={one.name: one.version for one in distributions()}
        | {"python": sys.version, "platform": platform.platform()},
        variables=sorted(name for name in os.environ if name.startswith("ONCEGATE_")),
        stacks=dict(_stacks()),
        tasks=[repr(task.get_coro()) for task in asyncio.all_tasks()][:TASKS_MAX],
        objects=list(gc.get_count()),
        log=RECENT.lines,
    )
    known = await asyncio.to_thread(_secrets, settings)
    return _without(msgspec.to_builtins(state), known)


def _stacks() -> Iterator[tuple[str, list[str]]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way to see another thread
        yield f"{names.get(ident, 'unknown')} ({ident})", traceback.format_stack(frame)


def _secrets(settings: Settings) -> list[str]:
    """Return the secrets that this node was given in files."""
    found: list[str] = []
    for path in (settings.secret_file, settings.tls_key, settings.peer_tls_key):
        with suppress(OSError, ValueError):
            if path is not None:
                found.extend(_words(path))
    return found


def _words(path: Path) -> Iterator[str]:
    with path.open() as file:
        for line in file.read(_SECRET_BYTES_MAX).splitlines():
            yield line.strip().removeprefix("send:").removeprefix("accept:").strip()


def _without(value: object, known: list[str]) -> object:
    match value:
        case str():
            return redacted(value, known)
        case list():
            return [_without(one, known) for one in value]
        case dict():
            return {name: _without(one, known) for name, one in value.items()}
    return value
