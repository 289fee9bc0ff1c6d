"""Settings of a node, each declared once: flag = environment variable = file key, one to one.

Owns: names, defaults and bounds. How one of them is given and read is :mod:`oncegate.gateway.node.setting`. Precedence:
flag, then ``ONCEGATE_…`` environment variable, then the TOML file named by ``--config`` or ``ONCEGATE_CONFIG``, then
the default.
"""

# ruff: noqa: RUF009 - `setting` makes a dataclass field of its own for each call.

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncegate.gateway.node.setting import declared, of_environment, of_file, setting
from oncegate.gateway.wire import DEFAULT_HTTP_PORT
from oncegate.rifl.session import SESSIONS_MAX

DEFAULT_PEER_PORT: Final = 7401
PORT_MAX: Final = 65_535
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_-]{0,31})=([^=:\s]+):(\d{1,5}):(\d{1,5})", re.ASCII)


class MemberAddress(NamedTuple):
    """The addresses of a member."""

    node_id: str
    host: str
    http_port: int
    peer_port: int

    @property
    def http(self) -> str:
        """Base address of its HTTP API."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def peer(self) -> tuple[str, int]:
        """Address for its peers."""
        return self.host, self.peer_port

    @classmethod
    def parse(cls, text: str) -> MemberAddress:
        """Read ``id=host:http_port:peer_port``; raises ValueError."""
        match = _MEMBER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not id=host:http_port:peer_port")
        node_id, host, *ports = match.groups()
        http_port, peer_port = map(int, ports)
        if not (1 <= http_port <= PORT_MAX and 1 <= peer_port <= PORT_MAX):
            raise ValueError(f"{text!r} names a port outside 1..{PORT_MAX}")
        return cls(node_id, host, http_port, peer_port)

    def __str__(self) -> str:
        return f"{self.node_id}={self.host}:{self.http_port}:{self.peer_port}"


def _members(members: list[str]) -> list[str]:
    parsed = [MemberAddress.parse(member) for member in members]
    if len({member.node_id for member in parsed}) != len(parsed):
        raise ValueError("a node id is named twice")
    return members


def _stream_store(url: str) -> str:
    if not url.startswith(("sqlite:///", "cassandra://")):
        raise ValueError("a store URL starts with sqlite:/// or cassandra://")
    return url


def _log_level(level: str) -> str:
    if level.upper() not in LOG_LEVELS:
        raise ValueError(f"{level!r} is not one of {', '.join(LOG_LEVELS)}")
    return level.upper()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of ``oncegate serve``; raises ValueError: values are not valid; the text names each."""

    node: str = setting("n1", "id of this node among the members")
    cluster: str = setting("oncegate", "id of the cluster; checked on every peer connection")
    members: list[str] = setting(
        [f"n1=127.0.0.1:{DEFAULT_HTTP_PORT}:{DEFAULT_PEER_PORT}"],
        "all members, this node included, as id=host:http_port:peer_port; the flag once for each",
        check=_members,
        flag="--member",
    )
    data_dir: Path = setting(Path("oncegate-data"), "journal, ballot, state and segments of this node")
    join: bool = setting(False, "this node is new: a running cluster is about to add it")
    secret_file: Path | None = setting(None, "file with the secret that peers share")
    tokens_file: Path | None = setting(None, "file of bearer tokens; none: every caller may do everything")
    tls_certificate: Path | None = setting(None, "PEM file of the HTTP side's certificate chain")
    tls_key: Path | None = setting(None, "PEM file of its key")
    insecure_http: bool = setting(False, "serve other addresses than loopback without TLS or without tokens")
    body_bytes_max: int = setting(
        8 * 2**20, "largest request body; a log entry takes no more", least=1024, most=8 * 2**20
    )
    receiving_bytes_max: int = setting(
        256 * 2**20, "bodies that have not arrived whole, together", least=8 * 2**20, most=2**40
    )
    unsent_bytes_max: int = setting(
        256 * 2**20, "answers that clients have not taken yet, together", least=2**20, most=2**40
    )
    connections_max: int = setting(4096, "open HTTP connections", least=8, most=100_000)
    headers_ms_max: int = setting(
        10_000, "time from a new connection to its first whole request", least=100, most=600_000
    )
    body_ms_max: int = setting(30_000, "time from a request's headers to its whole body", least=50, most=3_600_000)
    idle_ms_max: int = setting(75_000, "time between two requests of a connection", least=100, most=3_600_000)
    unsent_ms_max: int = setting(
        30_000, "time for which an answer waits for a client that takes none of it", least=1_000, most=3_600_000
    )
    tenant_requests_max: int = setting(2048, "requests under way of one tenant", least=1, most=100_000)
    tenant_operations_per_s: int = setting(
        0, "operations a second of one tenant at this node; 0: no bound", least=0, most=10**9
    )
    log_kept_bytes: int = setting(
        256 * 2**20, "log kept for nodes that were away; beyond it they get the state", least=0, most=2**50
    )
    state_cache_bytes: int = setting(
        96 * 2**20, "memory for blocks of the state on disk", least=8 * 2**20, most=64 * 2**30
    )
    sessions_max: int = setting(SESSIONS_MAX, "live sessions beyond which none is opened", least=1, most=SESSIONS_MAX)
    tenant_sessions_max: int = setting(SESSIONS_MAX, "live sessions of one tenant", least=1, most=SESSIONS_MAX)
    idempotency_key_ms: int = setting(
        24 * 3_600_000,
        "cluster time for which an Idempotency-Key or an event is remembered",
        least=1_000,
        most=30 * 24 * 3_600_000,
    )
    stream_store: str | None = setting(
        None, "URL of the store that rows of stream tables are delivered to and read on from", check=_stream_store
    )
    live_check_share: float = setting(
        0.01, "share of all rows whose operations are checked as they happen; 0: none", least=0.0, most=1.0
    )
    live_check_seed: int = setting(0, "seed that chooses these rows; the same on all nodes", least=0, most=2**63 - 1)
    live_check_window_ms: int = setting(5_000, "time between two checks of live traffic", least=100, most=600_000)
    log_level: str = setting("INFO", "DEBUG, INFO, WARNING or ERROR", check=_log_level)

    def __post_init__(self) -> None:
        faults = []
        for name, one in SETTINGS.items():
            try:
                object.__setattr__(self, name, one.checked(getattr(self, name)))
            except ValueError as fault:
                faults.append(str(fault))
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def addresses(self) -> dict[str, MemberAddress]:
        """The members by node id."""
        return {parsed.node_id: parsed for parsed in map(MemberAddress.parse, self.members)}

    @property
    def address(self) -> MemberAddress:
        """This node's own addresses."""
        try:
            return self.addresses[self.node]
        except KeyError:
            raise ValueError(f"node {self.node} is not among the members") from None

    def http_of(self, member: MemberAddress) -> str:
        """Base address of a member's HTTP API; all members have TLS, or none."""
        return member.http if self.tls_certificate is None else "https" + member.http.removeprefix("http")

    @classmethod
    def load(cls, config: Path | None, **flags: Any) -> Settings:
        """Return the settings; ``flags`` that are None were not given.

        Raises:
            ValueError: a setting is not valid or unknown, or ``config`` is not a TOML file.
        """
        file = {} if config is None else of_file(SETTINGS, config)
        given = {name: value for name, value in flags.items() if value is not None}
        return cls(**{**file, **of_environment(SETTINGS, os.environ), **given})


SETTINGS: Final = declared(Settings)
"""Every setting by name; flags, variables, keys, the sample file and docs/settings.md are made of these."""
