"""`oncegate cassandra`: a development Cassandra from the command line.

Exit status: 0 done, 1 the cluster failed, 2 wrong usage, 3 (status) not every node answers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path

from oncegate.stores.devcassandra import jars
from oncegate.stores.devcassandra.cluster import DevCluster, default_home
from oncegate.stores.devcassandra.node import Config
from oncegate.stores.errors import StoreCode, StoreError

_SET_BY_FLAG = (
    "nodes",
    "native_port",
    "storage_port",
    "jmx_port",
    "heap",
    "commitlog_sync",
    "login",
    "tls_key",
    "tls_authority",
)


Waiting = Callable[[str, int | None], AbstractContextManager[Callable[[float], None]]]
"""Told in a few words what is waited for, and for how many of them; yields what takes how many more are there."""


@contextmanager
def _unwatched(what: str, total: int | None) -> Iterator[Callable[[float], None]]:
    yield lambda _: None


def main(arguments: Sequence[str] | None = None, waiting: Waiting = _unwatched) -> int:
    """Run one command; returns the exit status. What takes long happens within ``waiting``."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options, waiting)
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if error.code is StoreCode.BAD_OPTION else 1


def _run(options: argparse.Namespace, waiting: Waiting) -> int:
    match options.command:
        case "fetch":
            _announce()
            with waiting("fetching jars", None):
                jars.fetch()
            _say(str(jars.library()))
        case "up":
            _announce()
            begin = time.monotonic()
            cluster = DevCluster(options.home, _config(options))
            with waiting("fetching jars", None):
                jars.fetch()
            with waiting("starting Cassandra", len(cluster.nodes)) as answered:
                cluster.up(answered)
            _say(f"{len(cluster.nodes)} node(s) up in {time.monotonic() - begin:.1f} s: {cluster.url('KEYSPACE')}")
        case "status":
            found = DevCluster(options.home).status()
            for node in found:
                state = f"Cassandra {node.version}" if node.version else "does not answer"
                _say(f"node {node.number}  {node.address}  pid {node.pid or '-'}  {node.resident_mib:.0f} MiB  {state}")
            return 0 if all(node.version for node in found) else 3
        case "down" | "wipe" as command:
            getattr(DevCluster(options.home), command)()
        case "start" | "stop" | "kill" as command:
            with waiting(f"{command}: node {options.node}", None):
                getattr(DevCluster(options.home), command)(options.node)
    return 0


def _announce() -> None:
    if not jars.fetched():
        sys.stderr.write(
            f"fetching the {len(jars.locked())} jars of Cassandra {jars.VERSION} from "
            f"{jars.mirror() or 'Maven Central'} to {jars.library()}, once; each is checked by its SHA-256\n"
        )


def _config(options: argparse.Namespace) -> Config:
    """The configuration kept in the directory, with what the flags say."""
    try:
        known = asdict(DevCluster(options.home).config)
    except StoreError:
        known = {}
    flags = {name: getattr(options, name) for name in _SET_BY_FLAG if getattr(options, name) is not None}
    return Config(**{**known, **flags})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="oncegate cassandra", description="A Cassandra for development.")
    parser.add_argument("--home", type=Path, default=default_home(), help="directory of the cluster: %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="fetch the jars and check them")
    up = commands.add_parser("up", help="start the cluster and wait until it answers")
    up.add_argument("--nodes", type=int, choices=(1, 2, 3))
    up.add_argument("--native-port", type=int, help="of CQL, default 9042")
    up.add_argument("--storage-port", type=int, help="of the nodes among themselves, default 7000")
    up.add_argument("--jmx-port", type=int, help="default 7199")
    up.add_argument("--heap", help="of each node, default 768m")
    up.add_argument("--commitlog-sync", choices=("batch", "group", "periodic"), help="default group")
    up.add_argument(
        "--login", action="store_true", default=None, help="ask for user and password: cassandra, cassandra"
    )
    up.add_argument("--tls-key", help="PEM file of the nodes' key and certificate: encrypt, and ask clients for theirs")
    up.add_argument("--tls-authority", help="PEM file of the authority of both")
    for name, about in (("status", "say which nodes answer"), ("down", "stop all"), ("wipe", "kill all, remove data")):
        commands.add_parser(name, help=about)
    for name in ("start", "stop", "kill"):
        commands.add_parser(name, help=f"{name} one node").add_argument("node", type=int)
    return parser


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
