"""One Cassandra node: a JVM with its own directory, started, watched and stopped.

Owns: the configuration files, the command line, the process, and the few frames of CQL (native protocol v4) that tell
whether it answers: no driver, no background threads. Must not know the other nodes but for the seeds.
Read next: `cluster`.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import subprocess
import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from types import TracebackType
from typing import Final, Literal, Self

from oncegate.stores.devcassandra import jars
from oncegate.stores.errors import StoreCode, StoreError

Sync = Literal["batch", "group", "periodic"]

_SYNC_YAML: Final[dict[Sync, str]] = {
    "batch": "commitlog_sync: batch",
    "group": "commitlog_sync: group\ncommitlog_sync_group_window: 10ms",
    "periodic": "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms",
}
_OPEN_YAML: Final = "authenticator: AllowAllAuthenticator\nauthorizer: AllowAllAuthorizer"
_LOGIN_YAML: Final = "authenticator: PasswordAuthenticator\nauthorizer: CassandraAuthorizer"
_TLS_YAML: Final = """
client_encryption_options:
  enabled: true
  optional: false
  require_client_auth: true
  ssl_context_factory:
    class_name: org.apache.cassandra.security.PEMBasedSslContextFactory
  keystore: $key
  truststore: $authority"""
SUPERUSER: Final = "cassandra"
"""Name and password of the first role of a cluster that asks for a log-in."""
_POLL_S: Final = 0.05
_PORT_WAIT_S: Final = 10.0
_JAVA_WITHOUT_SECURITY_MANAGER: Final = 18
_VERSION: Final = 4
_STARTUP, _QUERY, _AUTH_RESPONSE = 1, 7, 15
_READY, _AUTHENTICATE, _RESULT, _AUTH_SUCCESS = 2, 3, 8, 16
_ROWS: Final = 2
_GLOBAL_TABLE: Final = 1
_CONSISTENCY_ONE: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of a cluster; kept in its directory.

    Attributes:
        nodes: 1..3, on 127.0.0.1 … 127.0.0.3, the same ports on each.
        native_port, storage_port, jmx_port: of CQL, of the nodes among themselves, of nodetool; node i has JMX on
            jmx_port + i - 1.
        heap: of each JVM, as in `-Xmx`.
        commitlog_sync: `batch` and `group` flush before they acknowledge; `periodic`, Cassandra's own default, loses
            up to 10 s of acknowledged rows when a single node is killed.
        login: ask clients for user and password, and check their permissions; the first role is `SUPERUSER`, and must
            keep its password: the cluster itself asks with it.
        tls_key: PEM file of the nodes' private key (PKCS #8) and certificate chain; "": no encryption.
        tls_authority: PEM file of the authority that signed it and the clients' certificates, which are then required.
    """

    nodes: int = 1
    native_port: int = 9042
    storage_port: int = 7000
    jmx_port: int = 7199
    heap: str = "768m"
    commitlog_sync: Sync = "group"
    login: bool = False
    tls_key: str = ""
    tls_authority: str = ""

    def __post_init__(self) -> None:
        ports = (self.native_port, self.storage_port, self.jmx_port)
        if not 1 <= self.nodes <= 3 or self.commitlog_sync not in _SYNC_YAML or len(set(ports)) < len(ports):
            raise StoreError(
                StoreCode.BAD_OPTION, "1 to 3 nodes, distinct ports, commitlog_sync batch, group or periodic"
            )
        if bool(self.tls_key) != bool(self.tls_authority):
            raise StoreError(StoreCode.BAD_OPTION, "tls_key and tls_authority are given together")

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return what a node's own client is encrypted with: it presents the node's certificate."""
        if not self.tls_key:
            return None
        context = ssl.create_default_context(cafile=self.tls_authority)
        context.check_hostname = False
        context.load_cert_chain(self.tls_key)
        return context


class CassandraNode:
    """Node ``number`` (from 1) of a cluster in ``home``."""

    def __init__(self, home: Path, number: int, config: Config) -> None:
        self.number = number
        self.host = f"127.0.0.{number}"
        self.directory = home / f"node{number}"
        self._config = config
        self._pid_file = self.directory / "pid"
        self._process: subprocess.Popen[bytes] | None = None

    def pid(self) -> int | None:
        """Return the process id of this node's JVM; a stale pid file never matches another process."""
        try:
            pid = int(self._pid_file.read_text())
            command = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if self._storage_argument().encode() in command else None

    def spawn(self) -> None:
        """Start the JVM, if it is not running; `wait_ready` tells when it answers.

        Raises:
            StoreError: CLUSTER_FAILED, when a port stays taken.
        """
        if self.pid() is not None:
            return
        library = jars.fetch()
        # The ports of a killed node are free only when its process is gone.
        for port in (self._config.native_port, self._config.storage_port, self._jmx_port()):
            self._wait_free(self.host if port != self._jmx_port() else "127.0.0.1", port)
        if self._process is not None:
            # It ended, perhaps killed from outside: reap it.
            self._process.wait()
        self._write_files()
        with (self.directory / "log" / "stdout.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(library),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
            )
        self._pid_file.write_text(f"{self._process.pid}\n")

    def wait_ready(self, timeout_s: float = 180.0) -> str:
        """Wait until the node answers CQL, and return Cassandra's version.

        Raises:
            StoreError: CLUSTER_FAILED, when the JVM ends or the time is over.
        """
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if (version := self.version()) is not None:
                return version
            if not self._alive():
                break
            time.sleep(_POLL_S)
        tail = (self.directory / "log" / "stdout.log").read_text(errors="replace")[-1500:]
        raise StoreError(StoreCode.CLUSTER_FAILED, f"node {self.number} did not start; {self.directory}/log: {tail}")

    def version(self) -> str | None:
        """Return Cassandra's version if the node answers now."""
        try:
            with Probe(self.host, self._config) as probe:
                value = probe.rows("SELECT release_version FROM system.local")[0][0]
        except (OSError, IndexError):
            return None
        return value.decode() if value is not None else None

    def stop(self, how: signal.Signals = signal.SIGTERM, timeout_s: float = 60.0) -> bool:
        """Signal the JVM and wait until it is gone; False when it was not running.

        Raises:
            StoreError: CLUSTER_FAILED, when it does not end in time.
        """
        pid = self.pid()
        if pid is None:
            return False
        os.kill(pid, how)
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            # A dying JVM loses its command line before its sockets are closed: wait for the process itself.
            if _gone(pid):
                if self._process is not None and self._process.pid == pid:
                    self._process.wait()
                self._pid_file.unlink(missing_ok=True)
                return True
            time.sleep(_POLL_S)
        raise StoreError(StoreCode.CLUSTER_FAILED, f"node {self.number} (process {pid}) does not end")

    def resident_mib(self) -> float:
        """Return the JVM's resident memory, 0 when it is not running."""
        pid = self.pid()
        if pid is None:
            return 0.0
        pages = int(Path("/proc", str(pid), "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def _alive(self) -> bool:
        # Our own child is reaped here, so that a dead one is not taken for running.
        return self._process.poll() is None if self._process is not None else self.pid() is not None

    def _wait_free(self, host: str, port: int) -> None:
        end = time.monotonic() + _PORT_WAIT_S
        while True:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                    return
                except OSError as error:
                    if time.monotonic() > end:
                        raise StoreError(StoreCode.CLUSTER_FAILED, f"{host}:{port} is taken") from error
            time.sleep(_POLL_S)

    def _write_files(self) -> None:
        for name in ("conf", "log", "scratch", "data"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        nodes = self._config.nodes
        # Fixed tokens in equal steps: all nodes may start at once, none streams from another.
        token = -(2**63) + 2**64 // nodes * (self.number - 1) + 1
        text = Template(_data("cassandra.yaml.tmpl")).substitute(
            initial_token=token,
            address=self.host,
            storage_port=self._config.storage_port,
            native_port=self._config.native_port,
            seeds=",".join(f"127.0.0.{number}" for number in range(1, nodes + 1)),
            commitlog_sync=_SYNC_YAML[self._config.commitlog_sync],
            security=self._security(),
        )
        (self.directory / "conf" / "cassandra.yaml").write_text(text)
        (self.directory / "conf" / "logback.xml").write_text(_data("logback.xml"))

    def _security(self) -> str:
        text = _LOGIN_YAML if self._config.login else _OPEN_YAML
        if self._config.tls_key:
            text += Template(_TLS_YAML).substitute(key=self._config.tls_key, authority=self._config.tls_authority)
        return text

    def _command(self, library: Path) -> list[str]:
        program, major = jars.java()
        alone, home = self._config.nodes == 1, self.directory
        arguments = [part for line in _data("jvm17.args").splitlines() for part in line.split(" ", 1) if part]
        if major >= _JAVA_WITHOUT_SECURITY_MANAGER:
            arguments.append("-Djava.security.manager=allow")
        properties = {
            "cassandra.config": f"file://{home}/conf/cassandra.yaml",
            "logback.configurationFile": f"file://{home}/conf/logback.xml",
            "cassandra.logdir": f"{home}/log",
            "java.io.tmpdir": f"{home}/scratch",
            "jna.tmpdir": f"{home}/scratch",
            "cassandra.jmx.local.port": str(self._jmx_port()),
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            "cassandra.ring_delay_ms": "0" if alone else "2000",
            # One node is ready sooner this way; with three it would be a busy loop.
            "cassandra.superuser_setup_delay_ms": "0" if alone else "10000",
            "cassandra.shutdown_announce_in_ms": "500",
            "cassandra.consistent.rangemovement": "false",
            "cassandra-foreground": "yes",
        }
        return [
            program,
            f"-Xms{self._config.heap}",
            f"-Xmx{self._config.heap}",
            *arguments,
            f"-javaagent:{next(library.glob('jamm-*.jar'))}",
            self._storage_argument(),
            *(f"-D{name}={value}" for name, value in properties.items()),
            "-cp",
            f"{home}/conf:{library}/*",
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def _storage_argument(self) -> str:
        return f"-Dcassandra.storagedir={self.directory}/data"

    def _jmx_port(self) -> int:
        return self._config.jmx_port + self.number - 1


def _data(name: str) -> str:
    return files(__package__).joinpath(f"data/{name}").read_text()


def _gone(pid: int) -> bool:
    try:
        state = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


class Probe:
    """A connection to one node; raises OSError: the node does not answer, or not as expected."""

    def __init__(self, host: str, config: Config, timeout_s: float = 5.0) -> None:
        self._socket = socket.create_connection((host, config.native_port), timeout=timeout_s)
        try:
            if (context := config.ssl_context()) is not None:
                self._socket = context.wrap_socket(self._socket)
            kind, _ = self._exchange(_STARTUP, struct.pack(">H", 1) + _string("CQL_VERSION") + _string("3.0.0"))
            if kind == _AUTHENTICATE:
                login = f"\0{SUPERUSER}\0{SUPERUSER}".encode()
                kind, _ = self._exchange(_AUTH_RESPONSE, struct.pack(">i", len(login)) + login)
            if kind not in (_READY, _AUTH_SUCCESS):
                raise OSError("the node is not ready")
        except OSError:
            self._socket.close()
            raise

    def rows(self, query: str) -> list[list[bytes | None]]:
        """Return the rows of a query as raw values; columns of simple types only."""
        text = query.encode()
        body = struct.pack(">i", len(text)) + text + struct.pack(">HB", _CONSISTENCY_ONE, 0)
        kind, answer = self._exchange(_QUERY, body)
        if kind != _RESULT:
            raise OSError(answer[6:200].decode(errors="replace"))
        result, flags, columns = struct.unpack_from(">iii", answer)
        if result != _ROWS:
            return []
        at = _after_strings(answer, 12, 2 if flags & _GLOBAL_TABLE else 0)
        for _ in range(columns):
            at = _after_strings(answer, at, 1 if flags & _GLOBAL_TABLE else 3) + 2
        (count,) = struct.unpack_from(">i", answer, at)
        at += 4
        rows = []
        for _ in range(count):
            row: list[bytes | None] = []
            for _ in range(columns):
                (length,) = struct.unpack_from(">i", answer, at)
                at += 4
                row.append(None if length < 0 else answer[at : at + length])
                at += max(length, 0)
            rows.append(row)
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _exchange(self, kind: int, body: bytes) -> tuple[int, bytes]:
        self._socket.sendall(struct.pack(">BBhBi", _VERSION, 0, 0, kind, len(body)) + body)
        _, _, _, answer, length = struct.unpack(">BBhBi", self._read(9))
        return answer, self._read(length)

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise OSError("the node closed the connection")
            parts += part
        return bytes(parts)


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _after_strings(data: bytes, at: int, count: int) -> int:
    for _ in range(count):
        (length,) = struct.unpack_from(">H", data, at)
        at += 2 + length
    return at
