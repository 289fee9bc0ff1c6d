"""Settings of a node: flag = environment variable = file key, one to one.

Owns: names, defaults and bounds. Precedence: flag, then ``ONCEGATE_…`` environment variable, then the TOML file
named by ``--config`` or ``ONCEGATE_CONFIG``, then the default.
"""

from __future__ import annotations

import re
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any, ClassVar, Final, NamedTuple

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from oncegate.rifl.session import SESSIONS_MAX

DEFAULT_HTTP_PORT: Final = 7400
DEFAULT_PEER_PORT: Final = 7401
PORT_MAX: Final = 65_535
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_-]{0,31})=([^=:\s]+):(\d{1,5}):(\d{1,5})", re.ASCII)


class MemberAddress(NamedTuple):
    """Where a member is reached."""

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


class Settings(BaseSettings):
    """All settings of ``oncegate serve``."""

    model_config = SettingsConfigDict(env_prefix="ONCEGATE_", extra="forbid", frozen=True)
    toml_path: ClassVar[Path | None] = None

    node: str = Field(default="n1", description="id of this node among the members")
    cluster: str = Field(default="oncegate", description="id of the cluster; checked on every peer connection")
    members: list[str] = Field(
        default=[f"n1=127.0.0.1:{DEFAULT_HTTP_PORT}:{DEFAULT_PEER_PORT}"],
        description="all members, this node included, as id=host:http_port:peer_port",
    )
    data_dir: Path = Field(
        default=Path("oncegate-data"), description="journal, ballot, state and segments of this node"
    )
    join: bool = Field(default=False, description="this node is new: a running cluster is about to add it")
    secret_file: Path | None = Field(default=None, description="file with the secret that peers share")
    tokens_file: Path | None = Field(default=None, description="file of bearer tokens; None: everybody may do all")
    tls_certificate: Path | None = Field(default=None, description="PEM file of the HTTP side's certificate chain")
    tls_key: Path | None = Field(default=None, description="PEM file of its key")
    insecure_http: bool = Field(
        default=False, description="serve other addresses than loopback without TLS or without tokens"
    )
    body_bytes_max: int = Field(
        default=8 * 2**20, ge=1024, le=8 * 2**20, description="largest request body; a log entry takes no more"
    )
    receiving_bytes_max: int = Field(
        default=256 * 2**20, ge=8 * 2**20, le=2**40, description="bodies that have not arrived whole, together"
    )
    unsent_bytes_max: int = Field(
        default=256 * 2**20, ge=2**20, le=2**40, description="answers that clients have not taken yet, together"
    )
    connections_max: int = Field(default=4096, ge=8, le=100_000, description="open HTTP connections")
    headers_ms_max: int = Field(
        default=10_000, ge=100, le=600_000, description="from a new connection to its first whole request"
    )
    body_ms_max: int = Field(default=30_000, ge=50, le=3_600_000, description="from a request's headers to its body")
    idle_ms_max: int = Field(default=75_000, ge=100, le=3_600_000, description="between two requests of a connection")
    unsent_ms_max: int = Field(
        default=30_000, ge=1_000, le=3_600_000, description="an answer waits for a client that takes none of it"
    )
    tenant_requests_max: int = Field(default=2048, ge=1, le=100_000, description="requests under way of one tenant")
    tenant_operations_per_s: int = Field(
        default=0, ge=0, le=10**9, description="operations a second of one tenant at this node; 0: no bound"
    )
    log_kept_bytes: int = Field(
        default=256 * 2**20,
        ge=0,
        le=2**50,
        description="log kept for nodes that were away; beyond it they get the state",
    )
    state_cache_bytes: int = Field(
        default=96 * 2**20, ge=8 * 2**20, le=64 * 2**30, description="memory for blocks of the state on disk"
    )
    sessions_max: int = Field(
        default=SESSIONS_MAX, ge=1, le=SESSIONS_MAX, description="live sessions beyond which none is opened"
    )
    tenant_sessions_max: int = Field(
        default=SESSIONS_MAX, ge=1, le=SESSIONS_MAX, description="live sessions of one tenant"
    )
    idempotency_key_ms: int = Field(
        default=24 * 3_600_000,
        ge=1_000,
        le=30 * 24 * 3_600_000,
        description="cluster time for which an Idempotency-Key or an event is remembered",
    )
    stream_store: str | None = Field(
        default=None, description="URL of the store that rows of stream tables are delivered to and read on from"
    )
    live_check_share: float = Field(
        default=0.01,
        ge=0.0,
        le=1.0,
        description="share of all rows whose operations are checked as they happen; 0: none",
    )
    live_check_seed: int = Field(default=0, ge=0, lt=2**63, description="which rows these are; the same on all nodes")
    live_check_window_ms: int = Field(
        default=5_000, ge=100, le=600_000, description="between two checks of live traffic"
    )
    log_level: str = Field(default="INFO", description="DEBUG, INFO, WARNING or ERROR")

    @field_validator("members")
    @classmethod
    def _members(cls, members: list[str]) -> list[str]:
        parsed = [MemberAddress.parse(member) for member in members]
        if len({member.node_id for member in parsed}) != len(parsed):
            raise ValueError("a node id is named twice")
        return members

    @field_validator("stream_store")
    @classmethod
    def _stream_store(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("sqlite:///", "cassandra://")):
            raise ValueError("a store URL starts with sqlite:/// or cassandra://")
        return url

    @field_validator("log_level")
    @classmethod
    def _log_level(cls, level: str) -> str:
        if level.upper() not in LOG_LEVELS:
            raise ValueError(f"{level!r} is not one of {', '.join(LOG_LEVELS)}")
        return level.upper()

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
            ValueError: a setting is not valid, or ``config`` is not a TOML file.
        """
        if config is not None and not config.is_file():
            raise ValueError(f"config: {config} is not a file")
        cls.toml_path = config
        try:
            return cls(**{name: value for name, value in flags.items() if value is not None})
        except TOMLDecodeError as fault:
            raise ValueError(f"config: {config} is not TOML: {fault}") from None
        finally:
            cls.toml_path = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the file."""
        sources = [init_settings, env_settings]
        if cls.toml_path is not None:
            sources.append(TomlConfigSettingsSource(settings_cls, cls.toml_path))
        return tuple(sources)
