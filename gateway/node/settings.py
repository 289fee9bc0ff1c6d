"""Settings of a node, each declared once: flag = environment variable = file key, one to one.

Owns: names, defaults and bounds. How one of them is given and read is :mod:`oncegate.gateway.node.setting`. Precedence:
flag, then ``ONCEGATE_…`` environment variable, then the TOML file named by ``--config`` or ``ONCEGATE_CONFIG``, then
the default.
"""

# ruff: noqa: RUF009 - `setting` makes a dataclass field of its own for each call.

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncegate.gateway.node.setting import Gathered, declared, gather, setting
from oncegate.gateway.wire import DEFAULT_HTTP_PORT
from oncegate.rifl.key_table import KEYS_BYTES_DEFAULT
from oncegate.rifl.session import SESSIONS_MAX

DEFAULT_PEER_PORT: Final = 7401
PORT_MAX: Final = 65_535
_OF_ONE_NODE: Final = frozenset(("node", "cluster", "members", "data_dir", "join", "log_level"))
"""Settings that a new member has of its own, or is told in another way."""
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS: Final = ("text", "json")
_HOST: Final = r"(\[[0-9A-Fa-f:.]+\]|[^=:\s\[\]/?#@%]+)"
_MEMBER = re.compile(rf"([a-z0-9][a-z0-9_-]{{0,31}})={_HOST}:(\d{{1,5}}):(\d{{1,5}})", re.ASCII)
_LISTEN = re.compile(rf"{_HOST}:(\d{{1,5}})", re.ASCII)


def bracketed(host: str) -> str:
    """Return a host as it stands before a colon and a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _host_and_ports(host: str, *ports: str) -> tuple[str, list[int]]:
    """Return the host without brackets, an IPv6 address in its short form, and the ports; raises ValueError."""
    numbers = [int(port) for port in ports]
    if not all(1 <= number <= PORT_MAX for number in numbers):
        raise ValueError(f"a port outside 1..{PORT_MAX}")
    try:
        host.encode("idna")  # as each look-up does
    except UnicodeError as fault:
        raise ValueError(f"{host} is no host name: {fault.__cause__ or fault}") from None
    return str(ipaddress.IPv6Address(host[1:-1])) if host.startswith("[") else host, numbers


def _is_any(host: str) -> bool:
    """Tell whether a host stands for all addresses of its machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


class MemberAddress(NamedTuple):
    """The addresses of a member."""

    node_id: str
    host: str
    http_port: int
    peer_port: int

    @property
    def http(self) -> str:
        """Base address of its HTTP API."""
        return f"http://{bracketed(self.host)}:{self.http_port}"

    @property
    def peer(self) -> tuple[str, int]:
        """Address for its peers."""
        return self.host, self.peer_port

    @classmethod
    def parse(cls, text: str) -> MemberAddress:
        """Read ``id=host:http_port:peer_port``, an IPv6 address as ``[::1]``; raises ValueError."""
        match = _MEMBER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not id=host:http_port:peer_port, with an IPv6 address as [::1]")
        node_id, host, *ports = match.groups()
        try:
            host, (http_port, peer_port) = _host_and_ports(host, *ports)
        except ValueError as fault:
            raise ValueError(f"{text!r}: {fault}") from None
        if _is_any(host):
            raise ValueError(f"{text!r}: nobody reaches {host}; name it in http_listen and peer_listen")
        return cls(node_id, host, http_port, peer_port)

    def __str__(self) -> str:
        return f"{self.node_id}={bracketed(self.host)}:{self.http_port}:{self.peer_port}"


def _members(members: list[str]) -> list[str]:
    parsed = [MemberAddress.parse(member) for member in members]
    if len({member.node_id for member in parsed}) != len(parsed):
        raise ValueError("a node id is named twice")
    if shared := shared_address(parsed):
        raise ValueError(f"{shared} is an address of two members")
    return members


def shared_address(members: Iterable[MemberAddress]) -> str:
    """Return the first host:port that two of these members have, for clients or for peers; "" if there is none."""
    seen = set[str]()
    for member in members:
        own = [f"{bracketed(member.host.lower())}:{port}" for port in (member.http_port, member.peer_port)]
        for address in own:
            if address in seen:
                return address
        seen.update(own)
    return ""


def _listen(text: str) -> str:
    host, port = _listen_address(text)
    return f"{bracketed(host)}:{port}"


def _listen_address(text: str) -> tuple[str, int]:
    match = _LISTEN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not host:port, with an IPv6 address as [::1]")
    try:
        host, (port,) = _host_and_ports(*match.groups())
    except ValueError as fault:
        raise ValueError(f"{text!r}: {fault}") from None
    return host, port


def _stream_store(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("a store URL holds neither user nor password: see the options user and password_file")
    if not url.startswith(("sqlite:///", "cassandra://")):
        raise ValueError("a store URL starts with sqlite:/// or cassandra://")
    return url


def _log_level(level: str) -> str:
    if level.upper() not in LOG_LEVELS:
        raise ValueError(f"{level!r} is not one of {', '.join(LOG_LEVELS)}")
    return level.upper()


def _otlp_endpoint(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("a collector's URL starts with http:// or https://")
    return url


def _log_format(name: str) -> str:
    if name not in LOG_FORMATS:
        raise ValueError(f"{name!r} is not one of {', '.join(LOG_FORMATS)}")
    return name


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of ``oncegate serve``; raises ValueError: values are not valid; the text names each."""

    node: str = setting("n1", "id of this node among the members")
    cluster: str = setting("oncegate", "id of the cluster; checked on every peer connection")
    members: list[str] = setting(
        [f"n1=127.0.0.1:{DEFAULT_HTTP_PORT}:{DEFAULT_PEER_PORT}"],
        "all members, this node included, as id=host:http_port:peer_port, where clients and members reach them; a DNS"
        " name, an IPv4 address or an IPv6 address in brackets; the flag once for each",
        check=_members,
        flag="--member",
    )
    http_listen: str | None = setting(
        None,
        "host:port where HTTP is served, if not at this node's own address among the members; 0.0.0.0 is every IPv4"
        " address, [::] every address",
        check=_listen,
    )
    peer_listen: str | None = setting(None, "host:port where peers come in, likewise", check=_listen)
    data_dir: Path = setting(Path("oncegate-data"), "journal, ballot, state and segments of this node")
    join: bool = setting(False, "this node is new: a running cluster is about to add it")
    secret_file: Path | None = setting(None, "file with the secret that peers share, or with two while it is replaced")
    peer_tls_certificate: Path | None = setting(None, "PEM file of this node's certificate for peers; names its id")
    peer_tls_key: Path | None = setting(None, "PEM file of its key")
    peer_tls_authority: Path | None = setting(None, "PEM file of the authorities that sign the peers' certificates")
    insecure_peers: bool = setting(
        False, "talk with peers on other machines without TLS: proved by the secret, readable on the way"
    )
    tokens_file: Path | None = setting(None, "file of bearer tokens; none: every caller may do everything")
    jwt_keys_file: Path | None = setting(None, "JWK set whose keys sign tokens (JWT) that are taken too")
    jwt_issuer: str | None = setting(None, "iss of signed tokens")
    jwt_audience: str | None = setting(None, "aud of signed tokens")
    tls_certificate: Path | None = setting(None, "PEM file of the HTTP side's certificate chain")
    tls_key: Path | None = setting(None, "PEM file of its key")
    insecure_http: bool = setting(False, "serve other addresses than loopback without TLS or without tokens")
    allowed_hosts: list[str] = setting(
        [],
        "names that clients reach this node by, beside addresses, localhost and the members' hosts; .example.org: all"
        " below; *: any, which is also what none means on a node with tokens; the flag once for each",
        flag="--allowed-host",
    )
    body_bytes_max: int = setting(
        8 * 2**20, "largest request body; a log entry takes no more", least=1024, most=8 * 2**20
    )
    receiving_bytes_max: int = setting(
        256 * 2**20, "bodies that have not arrived whole, together", least=8 * 2**20, most=2**40
    )
    receiving_max: int = setting(
        1024,
        "requests whose bodies have not arrived whole; they take none of tenant_requests_max",
        least=1,
        most=100_000,
    )
    unsent_bytes_max: int = setting(
        256 * 2**20, "answers that clients have not taken yet, together", least=2**20, most=2**40
    )
    connections_max: int = setting(4096, "open HTTP connections", least=8, most=100_000)
    headers_ms_max: int = setting(
        10_000, "time from a new connection to its first whole request", least=100, most=600_000
    )
    body_ms_max: int = setting(30_000, "time from a request's headers to its whole body", least=50, most=3_600_000)
    answer_ms_max: int = setting(
        5_000,
        "time from a whole request to its answer; then TIMEOUT, of a write with its outcome",
        least=500,
        most=600_000,
    )
    idle_ms_max: int = setting(75_000, "time between two requests of a connection", least=100, most=3_600_000)
    unsent_ms_max: int = setting(
        30_000, "time for which an answer waits for a client that takes none of it", least=1_000, most=3_600_000
    )
    tenant_requests_max: int = setting(
        2048, "requests under way of one tenant whose bodies are there", least=1, most=100_000
    )
    tenant_operations_per_s: int = setting(
        0, "operations a second of one tenant at this node; 0: no bound", least=0, most=10**9
    )
    watchers_max: int = setting(
        3_000, "watches of rows; three quarters of connections_max at most", least=0, most=100_000
    )
    watchers_table_max: int = setting(2048, "watches of rows of one table", least=0, most=100_000)
    history_changes_max: int = setting(
        100_000,
        "newest changes of rows kept in memory, for watches and for reads at a commit number",
        least=64,
        most=10**7,
    )
    history_bytes_max: int = setting(64 * 2**20, "memory of these changes", least=2**20, most=2**40)
    log_kept_bytes: int = setting(
        256 * 2**20, "log kept for nodes that were away; beyond it they get the state", least=0, most=2**50
    )
    state_cache_bytes: int = setting(
        96 * 2**20, "memory for blocks of the state on disk", least=8 * 2**20, most=64 * 2**30
    )
    scrub_bytes_per_s: int = setting(
        4 * 2**20,
        "how fast the state on disk is read through to find damage, an hour after the last time; 0: never",
        least=0,
        most=2**40,
    )
    sessions_max: int = setting(SESSIONS_MAX, "live sessions beyond which none is opened", least=1, most=SESSIONS_MAX)
    tenant_sessions_max: int = setting(SESSIONS_MAX, "live sessions of one tenant", least=1, most=SESSIONS_MAX)
    idempotency_key_ms: int = setting(
        24 * 3_600_000,
        "cluster time for which an Idempotency-Key or an event is remembered",
        least=1_000,
        most=30 * 24 * 3_600_000,
    )
    idempotency_keys_bytes_max: int = setting(
        KEYS_BYTES_DEFAULT,
        "bytes of remembered keys and events, on disk, beyond which no new one is taken; decided by the leader",
        least=2**20,
        most=2**42,
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
    log_format: str = setting("text", "text for people, json for programs: one object a line", check=_log_format)
    otlp_endpoint: str | None = setting(
        None, "URL of a collector that spans of traced requests are sent to (OTLP over HTTP)", check=_otlp_endpoint
    )
    access_log: bool = setting(False, "write a line of each request into access/access.jsonl of the data directory")

    def __post_init__(self) -> None:
        faults = []
        for name, one in SETTINGS.items():
            try:
                object.__setattr__(self, name, one.checked(getattr(self, name)))
            except ValueError as fault:
                faults.append(f"{name}: {fault}")
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

    @property
    def http_address(self) -> tuple[str, int]:
        """Host and port where this node serves HTTP."""
        own = self.address
        return _listen_address(self.http_listen) if self.http_listen is not None else (own.host, own.http_port)

    @property
    def peer_address(self) -> tuple[str, int]:
        """Host and port where this node listens for its peers."""
        return _listen_address(self.peer_listen) if self.peer_listen is not None else self.address.peer

    def http_of(self, member: MemberAddress) -> str:
        """Base address of a member's HTTP API; all members have TLS, or none."""
        return member.http if self.tls_certificate is None else "https" + member.http.removeprefix("http")

    def for_new_member(self) -> dict[str, str | int | float | bool | list[str]]:
        """Return what a new member of the cluster is to be given too: all that has another value than its default.

        Of a path or an address, which may be another one there and is nobody else's business, only the name, in
        capitals.
        """
        given = {name: getattr(self, name) for name in SETTINGS if name not in _OF_ONE_NODE}
        return {
            name: name.upper() if isinstance(value, Path | str) else value
            for name, value in given.items()
            if value != SETTINGS[name].default
        }

    @classmethod
    def load(cls, config: Path | None, **flags: Any) -> Settings:
        """Return the settings; ``flags`` that are None were not given.

        Raises:
            ValueError: a setting is not valid or unknown, or ``config`` is not a TOML file; all faults with their
                places.
        """
        gathered = gather(SETTINGS, config, os.environ, flags)
        if gathered.faults:
            raise ValueError("; ".join(gathered.faults))
        return cls.of(gathered)

    @classmethod
    def of(cls, gathered: Gathered) -> Settings:
        """Return the settings that were gathered; each was checked, and none had a fault."""
        return cls(**{name: given.value for name, given in gathered.settings.items()})


SETTINGS: Final = declared(Settings)
"""Every setting by name; flags, variables, keys, the sample file and docs/settings.md are made of these."""
