"""Kafka: records of an idempotent producer, acknowledged by all replicas in sync, each flushed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import ClassVar, Final

from bench.peers import packages
from bench.peers.peer import Case, Peer, local

CLUSTER: Final = "b25jZWdhdGUtcGVlcnMtMQ"
FORMAT_S: Final = 60.0


class Kafka(Peer):
    """Three processes, broker and controller each, with a topic of one partition."""

    name = "kafka"
    title = "Kafka"
    version = "4.3.1"
    file = "{}.properties"
    settings: ClassVar = {
        "log.flush.interval.messages": "1: each message is flushed; the default leaves that to the kernel",
        "producer": "acks=all, idempotent, not compressed; async: 4,096 under way, linger 5 ms",
        "topic": "one partition, three replicas, min.insync.replicas=2",
        "heap": "1 GB, its default",
    }
    duplicates = "retries of one producer, while it lives"
    cases = (
        *(Case("single", n) for n in (1, 64, 512)),
        *(Case("batch", n) for n in (64, 512)),
        Case("async", 4096, ("-linger", "5ms")),
    )
    prime_s = 6.0
    # A window of thousands runs other code than single callers: cold, a record of it costs the servers three to five
    # times as much.
    prime_cases = (Case("batch", 64), Case("async", 4096, ("-linger", "5ms")))
    kill_case = Case("batch", 64)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        source = packages.HERE / "servers" / "kafka"
        self._jars = packages.maven_jars(source)
        self._logging = source / "log4j2.properties"

    def configuration(self, name: str) -> list[str]:
        """Return the configuration file of a process."""
        at = self.nodes.index(name)
        broker, controller = local(self.ports.clients)[at], local(self.ports.peers)[at]
        voters = ",".join(f"{number + 1}@{address}" for number, address in enumerate(local(self.ports.peers)))
        return [
            "process.roles=broker,controller",
            f"node.id={at + 1}",
            f"controller.quorum.voters={voters}",
            f"listeners=PLAINTEXT://{broker},CONTROLLER://{controller}",
            f"advertised.listeners=PLAINTEXT://{broker}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            f"log.dirs={self.directory / name}",
            "log.flush.interval.messages=1",
            "default.replication.factor=3",
            "min.insync.replicas=2",
            "offsets.topic.replication.factor=3",
            "transaction.state.log.replication.factor=3",
            "transaction.state.log.min.isr=2",
            "auto.create.topics.enable=false",
        ]  # fmt: skip

    def configure(self) -> None:
        """Write the configuration files and format the data folders."""
        super().configure()
        self._format()

    def _format(self) -> None:
        formats = []
        for name in self.nodes:
            words = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self.file_of(name)))
            formats.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        ended = [one.wait(FORMAT_S) for one in formats]
        if any(ended):
            raise RuntimeError("kafka: the data folders cannot be formatted")

    def command(self, name: str) -> list[str]:
        """Return the command line of a process; the flags of the collector are those of Kafka's own script."""
        flags = ["-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        flags += ["-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"]
        return self._java("kafka.Kafka", str(self.file_of(name)), flags=flags)

    def _java(self, program: str, *words: str, flags: list[str] | None = None) -> list[str]:
        path = ["-cp", f"{self._jars}/*", f"-Dlog4j2.configurationFile={self._logging}"]
        return ["java", *(flags or []), *path, program, *words]

    def is_ready(self) -> bool:
        """Whether the generator makes a topic whose replicas are all in sync."""
        made = subprocess.run(
            self.load_command(Case("batch", 1), warm_s=0.0, measured_s=0.1), capture_output=True, check=False
        )
        standing = self.standing() if made.returncode == 0 else None
        return standing is not None and standing.in_sync == len(self.nodes)
