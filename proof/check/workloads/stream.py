"""Stream tables: rows are read back while their batches are sealed, and after they were handed over to a store.

Every worker reads its own keys at any node with ``session`` consistency: it sees at least what it wrote. Shared keys
are read linearizably. Judged by the register model and by each worker's own order.

With a store, a real Spark job (:mod:`oncegate.proof.check.delivery_processes`) delivers the table's flow, retention is
a fraction of a second, and the nodes read on there. There are more keys, so that most of them were written long ago,
and *past* keys, each written rarely and by one worker; these are judged by the row model, whose versions are the
commits of the items. In the end everything is delivered and dropped, and every key is read at every node.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import Any, Final

from oncegate.gateway.client.paths import flow_path, table_path
from oncegate.proof.check.checks import Findings, is_final, linearizable, no_lost_version, no_lost_write
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.delivery_processes import CassandraProcess, StreamRowsJob, lacking
from oncegate.proof.check.equipment import Target
from oncegate.proof.check.plan import PROCESSES_MAX, RunPlan
from oncegate.proof.check.workload import NotRecovered, Worker, Workload, World
from oncegate.proof.check.workloads.rows import versioned
from oncegate.proof.lincheck import Event, Operation, Result, operations
from oncegate.stores.stream_rows import ROWS_CONSUMER

Condition = Callable[[Mapping[str, Any]], bool]

FLOW: Final[dict[str, Any]] = {"consumers": [ROWS_CONSUMER], "retention_ms": 200, "max_items": 30, "linger_ms": 100}
PAST: Final = 4
"""Past keys of each worker."""

START_S: Final = 180.0
"""How long the job may take for its first batch: a JVM starts, beside much else."""
DELIVER_S: Final = 150.0
"""How long for what is left in the end: it may have been killed just before."""
_LOOK_S: Final = 0.1
_READS: Final = re.compile(rb"^oncegate_stream_store_reads_total (\S+)$", re.MULTILINE)

HANDED_OVER: Final = "batches were dropped, and every node read rows from the store"
JOB: Final = "the job is ended by nobody but the faults"


class StreamReads(Workload):
    """Writes to shared keys and to the worker's own, read back at once and later."""

    name = "stream"
    proves = "rows of a stream table are read as written, by their writer at once, while batches are sealed"
    table = "streamed"
    shared = 3
    """How many keys belong to all workers."""
    own = 1
    """How many keys belong to each worker."""

    def __init__(self) -> None:
        self._values = count(1)
        self._commits: dict[int, int] = {}

    async def set_up(self, world: World) -> None:
        await world.declare(self.table, "stream")

    async def step(self, worker: Worker) -> None:
        random, process = worker.random, worker.process
        own = random.random() < 0.5
        key = f"own{process}.{random.randrange(self.own)}" if own else f"h{random.randrange(self.shared)}"
        if random.random() < 0.5:
            value = next(self._values)
            verdict = await worker.write({"op": "put", "table": self.table, "key": key, "value": value}, "write", value)
            if verdict.kind == "applied":
                self._note_commit(process, verdict.result)
        elif own:
            query = f"?consistency=session&min_commit={self._commits.get(process, 0)}"
            row = await worker.read(self.table, key, f="read-own", query=query)
            if row is not None:
                self._note_commit(process, row)
        else:
            await self.read(worker, key)

    def _note_commit(self, process: int, found: Mapping[str, Any]) -> None:
        self._commits[process] = max(self._commits.get(process, 0), int(found["commit"]))

    async def finish(self, world: World) -> None:
        shared = [f"h{number}" for number in range(self.shared)]
        own = [f"own{process}.{number}" for process in range(world.plan.processes) for number in range(self.own)]
        await world.final_reads(self.table, shared + own)

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        register = linearizable(found, "register", ("read", "write"))
        return [register, no_lost_write(found, ("write",)), _own_writes(found)]


def _own_writes(found: Sequence[Operation]) -> Result:
    """Check that no worker reads its own key older than it wrote or has read it."""
    findings = Findings("a writer reads its own writes at every node, and never goes back")
    seen: dict[Any, int] = {}
    for op in (op for op in found if str(op.key).startswith("own")):
        if op.status != "ok" or is_final(op):
            continue
        # Values of one key grow in the order of its worker's calls.
        value = op.argument if op.f == "write" else op.result or 0
        findings.saw(op.key)
        if value < seen.get(op.key, 0):
            words = f"{op.key} was read as {value} at {op.node} after {seen[op.key]} had been written or read"
            findings.violated(op.key, words, [op])
        seen[op.key] = max(seen.get(op.key, 0), value)
    return findings.result()


class StoredReads(StreamReads):
    """Own, shared and past keys; the job and, if asked for, Cassandra run beside the nodes."""

    name = "stored"
    proves = "rows are read as written, deleted ones not at all, before and after their batch is dropped"
    table = "stored"
    shared = 12
    own = 12

    def __init__(self) -> None:
        super().__init__()
        self._job: StreamRowsJob

    def processes(self, plan: RunPlan) -> Collection[str]:
        return ("spark", "cassandra") if plan.store == "cassandra" else ("spark",)

    def lacks(self, plan: RunPlan) -> str:
        return lacking(cassandra=plan.store == "cassandra")

    def equip(self, cluster: CheckCluster, plan: RunPlan) -> None:
        store = f"sqlite://{cluster.directory / 'store'}?shards=4"
        beside: list[Target] = []
        if plan.store == "cassandra":
            cassandra = CassandraProcess(cluster.directory / "cassandra")
            store = cassandra.url
            beside.append(cassandra)
        self._job = self.job(cluster, store)
        for target in (*beside, self._job):
            cluster.register(target)
        cluster.flags = (*cluster.flags, "--stream-store", store)
        for target in beside:
            target.start()

    def job(self, cluster: CheckCluster, store: str) -> StreamRowsJob:
        """Return the job, not started."""
        return StreamRowsJob(
            cluster.directory / "spark", lambda: [cluster.endpoint(one) for one in cluster.first_ids], self.table, store
        )

    async def set_up(self, world: World) -> None:
        """Write every past key, and wait until the job has delivered a batch: only then the run's time begins."""
        await world.insist("PUT", table_path(self.table), {"kind": "stream", "flow": FLOW})
        self._job.start()
        writer = Worker(world, 0, time.monotonic() + START_S, world.random("past"))
        if not await writer.has_session():
            raise NotRecovered("no session")
        for process in range(world.plan.processes):
            for key in past_keys(process):
                await self._change(writer, key, delete=False)
        await self._until(
            world, START_S, lambda flow: flow["consumers"][ROWS_CONSUMER]["cursor"] > 0, "a batch is delivered"
        )

    async def step(self, worker: Worker) -> None:
        random = worker.random
        dice = random.random()
        if dice < 0.6:
            await super().step(worker)
        elif dice < 0.95:
            key = random.choice(past_keys(random.randrange(worker.world.plan.processes)))
            await worker.read(self.table, key, f="get", seen=versioned)
        else:
            await self._change(worker, random.choice(past_keys(worker.process)), delete=random.random() < 0.4)

    async def _change(self, worker: Worker, key: str, *, delete: bool) -> None:
        f, argument = ("delete", {}) if delete else ("put", {"value": next(self._values)})
        await worker.write({"op": f, "table": self.table, "key": key, **argument}, f, argument, answer=committed)

    async def finish(self, world: World) -> None:
        """Wait until everything is delivered and dropped, then read every key at every node."""
        try:
            await self._hand_over_all(world)
        finally:
            world.note("job", self._job.name, {"kills": self._job.kills, "ended": list(self._job.ended)})
        await super().finish(world)
        past = [key for process in range(world.plan.processes) for key in past_keys(process)]
        await world.final_reads(self.table, past, f="get", seen=versioned)
        flow = await world.insist("GET", flow_path(self.table))
        for node in world.nodes.ids:
            reply = await world.insist("GET", "/metrics", node=node)
            reads = _READS.search(bytes(reply.body))
            found = {"first_batch": flow.body["first_batch"], "reads": float(reads[1]) if reads else 0.0}
            world.note("handed-over", node, found, node=node)

    async def _hand_over_all(self, world: World) -> None:
        """Bring every item into the store and have its batch dropped: at a cut, when retention is over."""
        last = (await self._until(world, DELIVER_S, is_delivered, "everything is delivered"))["last_batch"]
        writer = Worker(world, PROCESSES_MAX, time.monotonic() + DELIVER_S, world.random("last"))
        while await writer.has_session() and writer.goes_on():
            await asyncio.sleep(float(FLOW["retention_ms"]) / 1000)
            await self._change(writer, past_keys(0)[0], delete=False)
            if (await world.insist("GET", flow_path(self.table))).body["first_batch"] > last:
                return
        raise NotRecovered("the last batches are not dropped")

    async def _until(self, world: World, seconds: float, condition: Condition, what: str) -> Mapping[str, Any]:
        flow: Mapping[str, Any] = {}

        async def holds() -> bool:
            nonlocal flow
            flow = (await world.insist("GET", flow_path(self.table))).body
            if found := condition(flow):
                return found
            await asyncio.to_thread(self._job.start)
            return False

        state = lambda: f"the flow is {flow}; what the job says is in spark.log"  # noqa: E731
        await world.wait(holds, seconds, what, state=state, every_s=_LOOK_S)
        return flow

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [
            *super().check(history),
            linearizable(found, "row", ("get", "put", "delete")),
            no_lost_version(found, ("put", "delete")),
            _handed_over(found),
            _job(found),
        ]


def past_keys(process: int) -> list[str]:
    """Return the keys that this worker alone writes, rarely."""
    return [f"past{process}.{number}" for number in range(PAST)]


def committed(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return an applied write's result as the row model has it: an item's commit is its row's version."""
    return {"version": result["commit"]}


def is_delivered(flow: Mapping[str, Any]) -> bool:
    """Whether everything that was written is in the store."""
    return bool(flow["open_items"] == 0 and flow["consumers"][ROWS_CONSUMER]["cursor"] >= flow["last_batch"])


def _handed_over(found: Sequence[Operation]) -> Result:
    """Check that the run was about what it is meant to be about."""
    findings = Findings(HANDED_OVER)
    looks = [op for op in found if op.f == "handed-over" and op.status == "ok"]
    for op in looks:
        findings.saw(op.node, int(op.result["reads"]))
        if op.result["first_batch"] <= 1 or not op.result["reads"]:
            findings.undecided(f"{op.node} read {op.result['reads']:g} rows from the store; {op.result}")
    if not looks:
        findings.undecided("the run did not come to its final reads")
    return findings.result()


def _job(found: Sequence[Operation]) -> Result:
    findings = Findings(JOB)
    for op in (op for op in found if op.f == "job" and op.status == "ok"):
        findings.saw(op.key, op.result["kills"])
        if op.result["ended"]:
            findings.violated(op.key, f"the job ended by itself, with status {op.result['ended']}", [op])
    return findings.result()
