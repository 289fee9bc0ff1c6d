"""Stream tables whose rows are handed over to the store: they are read back as before when their batches are gone.

A real Spark job (:mod:`oncegate.proof.check.delivery_processes`) delivers the table's flow to a store, retention is a
fraction of a second, and the nodes read on there. Workers do what those of :mod:`oncegate.proof.check.workloads.stream`
do, over more keys, so that most of them were written long ago, and put, delete and read *past* keys, each written
rarely and by one worker. In the end everything is delivered and dropped, and every key is read at every node.

Judged as `stream` is; past keys by the row model, whose versions are the commits of the items.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from oncegate.gateway.client.paths import flow_path, table_path
from oncegate.proof.check.checks import Findings, linearizable
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.delivery_processes import CassandraProcess, StreamRowsJob, lacking
from oncegate.proof.check.direct_session import DirectSession
from oncegate.proof.check.durability import no_lost_version
from oncegate.proof.check.equipment import Target
from oncegate.proof.check.plan import PROCESSES_MAX, RunPlan
from oncegate.proof.check.run_context import NotRecovered, World
from oncegate.proof.check.workloads.rows import versioned
from oncegate.proof.check.workloads.stream import StreamReads
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


class StoredReads(StreamReads):
    """Own, shared and past keys; the job and, if asked for, Cassandra run beside the nodes."""

    name: ClassVar[str] = "stored"
    proves: ClassVar[str] = "rows are read as written, deleted ones not at all, before and after their batch is dropped"
    table: ClassVar[str] = "stored"
    shared: ClassVar[int] = 12
    own: ClassVar[int] = 12

    def __init__(self) -> None:
        super().__init__()
        self._job: StreamRowsJob

    # Beside the nodes: see :class:`~oncegate.proof.check.workload.WithProcesses`

    def processes(self, plan: RunPlan) -> Collection[str]:
        """The job, and Cassandra where it is the store."""
        return ("spark", "cassandra") if plan.store == "cassandra" else ("spark",)

    def lacks(self, plan: RunPlan) -> str:
        """Java, pyspark or Cassandra's driver."""
        return lacking(cassandra=plan.store == "cassandra")

    def equip(self, cluster: CheckCluster, plan: RunPlan) -> None:
        """Start the store; the job waits for the table."""
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

    # The run

    async def set_up(self, world: World) -> None:
        """Write every past key, and wait until the job has delivered a batch: the run's time begins then."""
        await world.insist("PUT", table_path(self.table), {"kind": "stream", "flow": FLOW})
        self._job.start()
        random = world.random("past")
        session = await world.session(random, time.monotonic() + START_S)
        if session is None:
            raise NotRecovered("no session")
        for process in range(world.plan.processes):
            for key in past_keys(process):
                await self._change(world, process, session, key, delete=False)
        await self._until(
            world, START_S, lambda flow: flow["consumers"][ROWS_CONSUMER]["cursor"] > 0, "a batch is delivered"
        )

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Mostly as in `stream`; sometimes read anybody's past key, rarely write one of one's own."""
        dice = random.random()
        if dice < 0.6:
            await super().step(world, process, session, random)
        elif dice < 0.95:
            key = random.choice(past_keys(random.randrange(world.plan.processes)))
            await world.read(process, self.table, key, random, f="get", answer=versioned)
        else:
            await self._change(world, process, session, random.choice(past_keys(process)), delete=random.random() < 0.4)

    async def _change(self, world: World, process: int, session: DirectSession, key: str, *, delete: bool) -> None:
        operation: dict[str, Any] = {"op": "delete" if delete else "put", "table": self.table, "key": key}
        argument = {} if delete else {"value": self.next_value()}
        await world.write(process, session, {**operation, **argument}, operation["op"], argument, answer=committed)

    async def finish(self, world: World) -> None:
        """Wait until everything is delivered and dropped, then read every key at every node."""
        try:
            await self._hand_over_all(world)
        finally:
            told = {"kills": self._job.kills, "ended": list(self._job.ended)}
            world.recorder.begin(PROCESSES_MAX, "job", self._job.name).ok(told)
        await super().finish(world)
        past = [key for process in range(world.plan.processes) for key in past_keys(process)]
        await world.final_reads(self.table, past, f="get", answer=versioned)
        flow = await world.insist("GET", flow_path(self.table))
        for node in world.nodes.ids:
            reply = await world.insist("GET", "/metrics", node=node)
            reads = _READS.search(bytes(reply.body))
            told = {"first_batch": flow.body["first_batch"], "reads": float(reads[1]) if reads else 0.0}
            world.recorder.begin(PROCESSES_MAX, "handed-over", node, node=node).ok(told)

    async def _hand_over_all(self, world: World) -> None:
        """Bring every item into the store and have its batch dropped: at a cut, when retention is over."""
        last = (await self._until(world, DELIVER_S, is_delivered, "everything is delivered"))["last_batch"]
        session = await world.session(world.random("last"), time.monotonic() + DELIVER_S)
        ends = time.monotonic() + DELIVER_S
        while session is not None and time.monotonic() < ends:
            await asyncio.sleep(float(FLOW["retention_ms"]) / 1000)
            await self._change(world, PROCESSES_MAX, session, past_keys(0)[0], delete=False)
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

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        return [
            *super().check(folder, history),
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
