"""Keyword arguments that the asynchronous and the synchronous SDK share, by name and type.

Owns: their names. What they mean: the calls of :class:`oncegate.gateway.client.Client` and
:class:`oncegate.gateway.client.Session`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from os import PathLike
from typing import TypedDict

from msgspec import UnsetType

from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.results import Json
from oncegate.gateway.client.settings import Full, Tuning


class ClientArguments(TypedDict, total=False):
    """Of a client, beside its endpoints."""

    profile: str | None
    timeout_s: float | None
    token: str | None
    token_file: str | PathLike[str] | None
    ca_file: str | PathLike[str] | None
    prefer_leader: bool
    tls: ssl.SSLContext | None
    tuning: Tuning | None
    tracing: bool | None


class SessionArguments(TypedDict, total=False):
    """Of a session, beside its window and ``on_unknown``."""

    lease_ms: int
    full: Full
    nonce: str | None
    outbox: str | PathLike[str] | None
    on_lost: Callable[[OperationFailed], None] | None


class WriteArguments(TypedDict, total=False):
    """Of every write."""

    position: Json
    timeout_s: float | None


class ConditionArguments(WriteArguments, total=False):
    """Of a write that may have a condition."""

    if_version: int | None
    if_value: Json | UnsetType


class SubmitArguments(ConditionArguments, total=False):
    """Of :meth:`oncegate.gateway.client.Session.submit`."""

    by: int
    if_absent: bool
