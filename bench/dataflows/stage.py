"""One data flow on one Cassandra, from its start to the complete check: ``run`` returns the row of an experiment.

Owns: which processes there are, what they have used by part, and how to tell that everything is delivered. Read next:
:mod:`bench.dataflows.__main__`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np

from bench import disturbance
from bench.children import Talking, talking
from bench.dataflows import network
from bench.dataflows.architectures import TABLE, ExternalQueue, Integrated
from bench.dataflows.database import Database
from bench.dataflows.driver import CONSUMER
from bench.dataflows.jetstream import JetStream, QueueFailed
from bench.dataflows.priority import yielding
from bench.dataflows.recount import recount
from bench.dataflows.workload import TIMELINES, TWEETS, Audience
from bench.dataflows.writers import INTERVAL_MS
from bench.harness import Watch
from bench.peers.nats import Nats
from bench.pipeline import finished
from bench.usage import MachineTime, Usage, resident_mib
from oncegate import Client
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.stores import open_store

T = TypeVar("T")
TOGETHER: Final = ("app", "workers")
"""Parts whose processes share a machine wherever they run."""
STARTED_S: Final = 240.0
DRAINED_S: Final = 900.0
SAMPLE_S: Final = 1.0
SETTLED_S: Final = 60.0
"""At most, for the database to come to rest."""
FLOW: Final = {"retention_ms": 86_400_000, "max_items": 2_000, "linger_ms": INTERVAL_MS}
QUOTA_BYTES: Final = 16 << 30


ENDED_S: Final = 240.0
"""After a load on the gateway alone at most, for its last answers."""


class Run(NamedTuple):
    """What is run.

    Attributes:
        experiment: its name.
        architecture: of :mod:`bench.dataflows.architectures`.
        phases: posts a second, 0 = as answered, and seconds.
        posts: at most, of a phase as answered; None: as many as are answered in its time.
        kill_s: when a node of Cassandra is killed; None: never. restart_s: when it is started again.
        replicas: copies of each row in Cassandra.
        warm_s: of load before the clock starts, at the rate of the first phase: a JVM compiles what it runs often.
        turn: tells runs of one data flow on one database apart.
    """

    experiment: str
    architecture: str
    phases: Sequence[tuple[float, float]]
    posts: int | None = None
    kill_s: float | None = None
    restart_s: float | None = None
    replicas: int = 1
    warm_s: float = 0.0
    turn: int = 0


class Stage:
    """The processes of a run, by part."""

    def __init__(self, database: Database, directory: Path, audience: Audience, seed: int, run: Run) -> None:
        self.store = database.url(f"{run.experiment}_{run.architecture}_{database.nodes}_{run.turn}", run.replicas)
        self.pids: dict[str, Callable[[], list[int]]] = {"db": database.pids}
        self.drained: Callable[[], bool] = lambda: True
        self.words: list[str] = []
        self._stack = contextlib.ExitStack()
        self._directory, self._run = directory, run
        self._audience, self._seed = audience, seed

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        with contextlib.ExitStack() as opening:
            opening.enter_context(self._stack)
            match self._run.architecture:
                case ExternalQueue.name:
                    self._make_tables()
                    self._start_queue()
                case Integrated.name:
                    self._start_gateway()
                case _:
                    self._make_tables()
            self._stack = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make_tables(self) -> None:
        with open_store(self.store) as store:
            store.create([TWEETS, TIMELINES])

    def _start_queue(self) -> None:
        queue = self._stack.enter_context(Nats(self._directory / "nats"))
        queue.start()
        any_of_them = queue.addresses[0]
        wait_for(lambda: _asked(any_of_them, _made) is not None, STARTED_S, "the queue takes streams", every_s=0.5)
        # As the SDK asks the gateway's leader: another server would send everything on.
        stream, consumer = wait_for(lambda: _asked(any_of_them, JetStream.leaders), STARTED_S, "the queue has leaders")
        of = dict(zip(queue.nodes, queue.addresses, strict=True))
        worker = self._child("worker", 0, [of[consumer], self.store])
        worker.wait("started", STARTED_S)
        yielding(worker.pids())
        self.pids |= {"queue": queue.node_pids, "workers": worker.pids}
        self.drained = lambda: _asked(of[consumer], JetStream.left) == 0
        self.words = ["--store", self.store, "--queue", of[stream]]

    def _start_gateway(self) -> None:
        cluster = self._stack.enter_context(LocalCluster(self._directory / "nodes"))
        cluster.start()
        cluster.wait_ready()
        asyncio.run(declare(cluster))
        endpoints = ",".join(cluster.endpoints)
        job = self._child("driver", 0, [self.store, str(self._directory), endpoints])
        job.wait("started", STARTED_S)
        done = partial(finished, cluster.endpoints, TABLE, CONSUMER, least=0)
        wait_for(done, STARTED_S, "the job follows the flow", state=job.log_tail, every_s=0.2)
        yielding(job.pids())
        self.pids |= {"queue": lambda: [cluster.pid(name) for name in cluster.ids], "workers": job.pids}
        self.drained = done
        self.words = ["--endpoints", endpoints]

    def app(self, acknowledged: Path) -> Talking:
        """Start the application; it begins when it is told to."""
        words = words_of(self._run, self._audience, self._seed, acknowledged)
        if not self.words:
            words += ["--store", self.store]
        log = self._directory / "app.log"
        child = self._stack.enter_context(talking("bench.dataflows.app", *words, *self.words, log=log))
        self.pids["app"] = child.pids
        return child

    def cpu_s(self) -> float:
        """Return the processor time of all parts so far, and of this process."""
        return time.process_time() + sum(used.cpu_s for used in self.usage().values())

    def usage(self) -> dict[str, Usage]:
        """Return what each part has used so far."""
        return {part: Usage.of(pids()) for part, pids in self.pids.items()}

    def noted(self, before: Mapping[str, set[int]]) -> dict[str, set[int]]:
        """Return all processes of each part so far: what has ended has sent something too."""
        return {part: before.get(part, set()).union(pids()) for part, pids in self.pids.items()}

    def _child(self, module: str, number: int, words: list[str]) -> Talking:
        log = self._directory / f"{module}-{number}.log"
        workload = [str(self._audience.authors), str(self._audience.largest), str(self._seed)]
        return self._stack.enter_context(talking(f"bench.dataflows.{module}", *words, *workload, log=log))


def words_of(run: Run, audience: Audience, seed: int, acknowledged: Path) -> list[str]:
    """Return what the application is told of a run."""
    words = ["--architecture", run.architecture, "--phases", json.dumps(run.phases), "--warm-s", str(run.warm_s)]
    words += ["--authors", str(audience.authors), "--largest", str(audience.largest), "--seed", str(seed)]
    words += ["--acknowledged", str(acknowledged)]
    return words if run.posts is None else [*words, "--posts", str(run.posts)]


def run(database: Database, directory: Path, audience: Audience, seed: int, wanted: Run) -> dict[str, Any]:
    """Run one data flow through one experiment, wait until all is delivered, and check everything."""
    acknowledged_file = directory / "acknowledged.npy"
    with Stage(database, directory, audience, seed, wanted) as stage:
        app = stage.app(acknowledged_file)
        app.wait("warm", STARTED_S)
        wait_for(stage.drained, DRAINED_S, "what warms is delivered", every_s=0.2)
        # What the flow before has left to the database, compactions, would be this one's.
        disturbance.wait_for_quiet(SETTLED_S)
        # Looked at before: a look takes as long as some hundreds of posts.
        before, sent, pids = stage.usage(), network.Sent(network.look()), stage.noted({})
        watch, disturbed = Watch(stage.cpu_s), None
        app.tell("begin")
        app.wait("begun", STARTED_S)
        began = time.monotonic()
        memory: dict[str, float] = {}
        killed, restarting = False, list[threading.Thread]()
        while app.process.poll() is None and not app.of("result"):
            time.sleep(SAMPLE_S)
            at = time.monotonic() - began
            sent.add(network.look())
            pids = stage.noted(pids)
            for part, now in stage.pids.items():
                memory[part] = max(memory.get(part, 0.0), sum(map(resident_mib, now())))
            if wanted.kill_s is not None and at > wanted.kill_s and not killed:
                disturbed = watch.disturbed()  # until now: the killed node takes its processor time with it
                killed = database.kill(database.nodes)
                watch = Watch(stage.cpu_s)
            if wanted.restart_s is not None and at > wanted.restart_s and killed and not restarting:
                restarting.append(start_in_thread(database))
        result = app.wait("result", 5.0)
        if killed and not restarting:
            restarting.append(start_in_thread(database))
        for thread in restarting:
            thread.join()
        wait_for(stage.drained, DRAINED_S, "everything is delivered", every_s=0.2)
        delivered_s, after = time.monotonic() - began, stage.usage()
        disturbed = disturbed or watch.disturbed()
        sent.add(network.look())
        pids = stage.noted(pids)
        app.finish(STARTED_S)
        sent_bytes = {part: sent.of(those, together=part in TOGETHER) for part, those in pids.items()}
    numbers = np.load(acknowledged_file)
    with open_store(stage.store) as store:
        found = recount(store, numbers, result["sent"], audience, seed)
    posts = max(1, result["measured"])
    # A killed node takes its processor time with it: what it had used is not known any more.
    cpu = {part: after[part].since(before[part]).cpu_s for part in after} | {"app": result["cpu_s"]}
    lost = ("db",) if killed else ()
    names = ("seconds", "measured", "sent", "acknowledged", "dropped", "failed", "failure", "stddev_ms", "by_class",
             "by_phase", "trend", "samples", "p50_ms", "p99_ms", "max_ms")  # fmt: skip
    return {
        "experiment": wanted.experiment,
        "architecture": wanted.architecture,
        "nodes": database.nodes,
        "replicas": wanted.replicas,
        "turn": wanted.turn,
        "phases": list(wanted.phases),
        "warm_s": wanted.warm_s,
        **{name: result[name] for name in names},
        "accepted_per_s": result["measured"] / result["seconds"],
        "delivered_per_s": result["measured"] / delivered_s,
        "delivered_after_s": delivered_s - result["seconds"],
        "rows_per_post": found.expected / max(1, found.posts),
        "cpu_us": {part: None if part in lost else 1e6 * of / posts for part, of in cpu.items()},
        "sent_bytes": {part: of / posts if network.is_seen() else None for part, of in sent_bytes.items()},
        "memory_mib": memory,
        "check": {**found._asdict(), "complete": found.complete},
        "killed": killed,
        "kill_s": wanted.kill_s,
        "restart_s": wanted.restart_s,
        "over_time": [over_time(one) for one in app.of("progress")],
        "disturbed": disturbed,
    }


def alone(directory: Path, audience: Audience, seed: int, wanted: Run) -> dict[str, Any]:
    """Send the posts of a run to a gateway whose flow nobody follows: what its answers take by themselves.

    Returns:
        ``by_phase`` as in the row of a data flow, processor time of a post by part, and ``busy_cores`` of the machine.
    """
    directory.mkdir(parents=True)
    with LocalCluster(directory / "nodes") as cluster:
        cluster.start()
        cluster.wait_ready()
        asyncio.run(declare(cluster))
        pids = [cluster.pid(name) for name in cluster.ids]
        words = [*words_of(wanted, audience, seed, directory / "acknowledged.npy"),
                 "--endpoints", ",".join(cluster.endpoints)]  # fmt: skip
        with talking("bench.dataflows.app", *words, log=directory / "app.log") as app:
            app.wait("warm", STARTED_S)
            machine, before = MachineTime.now(), Usage.of(pids)
            app.tell("begin")
            result = app.wait("result", sum(seconds for _, seconds in wanted.phases) + ENDED_S)
            seen, nodes = MachineTime.now().since(machine), Usage.of(pids).since(before)
            app.finish(STARTED_S)
    posts = max(1, result["measured"])
    return {
        "phases": list(wanted.phases),
        **{name: result[name] for name in ("measured", "dropped", "failed", "by_phase", "max_ms")},
        "cpu_us": {"app": 1e6 * result["cpu_s"] / posts, "queue": 1e6 * nodes.cpu_s / posts},
        "busy_cores": seen.busy_s / result["seconds"],
    }


def over_time(told: Mapping[str, Any]) -> tuple[float, int, float | None, int, float | None]:
    """Return seconds, acknowledged so far, and of the last second median, dropped and longest; None: no answer."""
    p50_ms, max_ms = (told[name] if math.isfinite(told[name]) else None for name in ("p50_ms", "max_ms"))
    return round(told["at_s"], 2), told["acknowledged"], p50_ms, told["dropped"], max_ms


def start_in_thread(database: Database) -> threading.Thread:
    """Start the last node again, which takes as long as its JVM does."""
    thread = threading.Thread(target=database.start, args=(database.nodes,))
    thread.start()
    return thread


async def declare(cluster: LocalCluster) -> None:
    """Declare the table of posts, and its flow."""
    async with Client(cluster.endpoints) as client:
        await client.declare_table(TABLE, kind="stream", quota_bytes=QUOTA_BYTES, flow=FLOW)


async def _made(queue: JetStream) -> bool:
    await queue.make(replicas=3)
    return True


def _asked(url: str, act: Callable[[JetStream], Awaitable[T]]) -> T | None:
    async def ask() -> T:
        async with await JetStream().connect(url) as queue:
            return await act(queue)

    try:
        return asyncio.run(ask())
    except (OSError, QueueFailed):
        return None
