"""Servers with planted bugs: real nodes behind a proxy that breaks one promise, each in its own way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import aiohttp
import msgspec
from aiohttp import web

from oncegate.gateway.http import page_tokens
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.wire import MSGPACK
from oncegate.proof.check.checks import LOST
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.folder import RunVerdict
from oncegate.proof.check.nemesis import Action, FaultPlan, plan_of
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.runner import run
from oncegate.proof.mutants import bugs

JSON = {"Content-Type": "application/json"}
HOP = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-encoding", "oncegate-leader"})


class Sent(NamedTuple):
    """A request on its way to a node."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def operations(self) -> bool:
        return self.path == "/v1/operations"

    def json(self) -> Any:
        if self.headers.get("Content-Type") == MSGPACK:
            return msgspec.msgpack.decode(self.body)
        return json.loads(self.body)

    def with_json(self, body: Any) -> Sent:
        return self._replace(body=json.dumps(body).encode())


class Got(NamedTuple):
    """An answer on its way back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        if self.headers.get("Content-Type") == MSGPACK:
            return msgspec.msgpack.decode(self.body)
        return json.loads(self.body)

    def with_json(self, body: Any) -> Got:
        return self._replace(status=200, body=json.dumps(body).encode())


Forward = Callable[[Sent], Awaitable[Got]]
Bug = Callable[[Forward, Sent], Awaitable[Got]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StreamBug:
    """A bug in streams of events; other requests pass unless it says otherwise."""

    async def __call__(self, forward: Forward, sent: Sent) -> Got:
        return await forward(sent)

    def asked(self, path: str) -> str:
        """Return what the node is asked in place of this."""
        return path

    def told(self, event: bytes) -> list[bytes]:
        """Return what the client is told in place of this event."""
        return [event]


class LyingCluster(CheckCluster):
    """A cluster whose clients talk to a proxy in front of each node; ``bug`` answers in the nodes' place."""

    def __init__(self, plan: RunPlan, faults: FaultPlan, directory: Path, bug: Bug) -> None:
        super().__init__(directory, plan.nodes, equipment=faults.equipment, seed=plan.seed)
        self._real = {member.node_id: member.http for member in self.members}
        self._ports = dict(zip(self._real, free_ports(len(self._real)), strict=True))
        self._bug = bug
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        up = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve(up)))
        self._thread.start()
        assert up.wait(30)

    def endpoint(self, node_id: str) -> str:
        return f"http://127.0.0.1:{self._ports[node_id]}"

    def close(self) -> None:
        super().close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._loop.close()

    async def _serve(self, up: threading.Event) -> None:
        async with in_front(self._bug, self._real, self._ports):
            up.set()
            await self._stop.wait()


@contextlib.asynccontextmanager
async def in_front(
    bug: Bug, real: Mapping[str, str], ports: Mapping[str, int], *, stop_s: float = 60.0
) -> AsyncIterator[dict[str, str]]:
    """Serve a proxy with a bug in front of each node, at its port, 0 for a free one; tell where they are.

    At the end requests under way have ``stop_s`` to end by themselves.
    """
    handling: set[asyncio.Task[Any]] = set()

    async def ended() -> None:
        for task in handling:
            task.cancel()
        await asyncio.gather(*handling, return_exceptions=True)

    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        stack.push_async_callback(ended)
        found = dict[str, str]()
        for node, port in ports.items():
            app = web.Application(client_max_size=2**26)
            app.router.add_route("*", "/{path:.*}", _noted(lying(bug, http, real[node]), handling))
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=stop_s)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", port).start()
            found[node] = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield found


def _noted(handle: Handler, handling: set[asyncio.Task[Any]]) -> Handler:
    """Keep the tasks of a handler while they run."""

    async def noted(request: web.Request) -> web.StreamResponse:
        task = cast(asyncio.Task[Any], asyncio.current_task())
        handling.add(task)
        try:
            return await handle(request)
        finally:
            handling.discard(task)

    return noted


def lying(bug: Bug, http: aiohttp.ClientSession, real: str) -> Handler:
    """Return what answers in the place of the node at ``real``, with a bug."""

    async def forward(sent: Sent) -> Got:
        async with http.request(sent.method, real + sent.path, data=sent.body, headers=sent.headers) as answer:
            headers = {name: value for name, value in answer.headers.items() if name.lower() not in HOP}
            return Got(answer.status, headers, await answer.read())

    streams = bug if isinstance(bug, StreamBug) else StreamBug()

    async def watch(request: web.Request) -> web.StreamResponse:
        async with http.get(real + streams.asked(request.path_qs), headers=request.headers) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            buffer = b""
            with contextlib.suppress(aiohttp.ClientError, ConnectionResetError):
                async for chunk in answer.content.iter_any():
                    *whole, buffer = (buffer + chunk).split(b"\n\n")
                    for event in whole:
                        for told in streams.told(event + b"\n\n"):
                            await response.write(told)
                await response.write(buffer)
            return response

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/watch"):
            return await watch(request)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        sent = Sent(request.method, request.path_qs, headers, await request.read())
        try:
            got = await bug(forward, sent)
        except aiohttp.ClientError:
            return web.Response(status=502)
        if request.headers.get("Accept") == MSGPACK and got.headers == JSON:  # made here, for the SDK
            got = Got(got.status, {"Content-Type": MSGPACK}, msgspec.msgpack.encode(got.json()))
        return web.Response(status=got.status, headers=got.headers, body=got.body)

    return handle


class Strangers:
    """Executes operations under sessions of its own, one each: what a server does that forgets request ids."""

    def __init__(self) -> None:
        self._numbers = count(1)

    async def execute(self, forward: Forward, operation: dict[str, Any]) -> dict[str, Any]:
        nonce = {"nonce": f"stranger-{id(self)}-{next(self._numbers)}"}
        opened = (await forward(Sent("POST", "/v1/sessions", JSON, json.dumps(nonce).encode()))).json()
        operation = {**operation, "sequence": 1}
        body = {"client_id": opened["client_id"], "epoch": 1, "first_incomplete": 1, "operations": [operation]}
        answer = await forward(Sent("POST", "/v1/operations", JSON, json.dumps(body).encode()))
        return dict(answer.json()["results"][0])

    async def answer(self, forward: Forward, sent: Sent) -> Got:
        """Execute the operations of a request; its numbers are in the answer."""
        operations = sent.json()["operations"]
        return operated([{**await self.execute(forward, one), "sequence": one["sequence"]} for one in operations])


def operated(results: list[dict[str, Any]]) -> Got:
    """The answer to operations."""
    return Got(200, JSON, b"").with_json({"results": results, "memory_ms": 60_000})


def honest() -> Bug:
    """No bug: what the runs of the others are compared with."""

    async def handle(forward: Forward, sent: Sent) -> Got:
        return await forward(sent)

    return handle


def repeats_a_write_without_its_id() -> Bug:
    strangers, number = Strangers(), count(1)

    async def handle(forward: Forward, sent: Sent) -> Got:
        got = await forward(sent)
        if sent.operations and got.status == 200 and next(number) % 10 == 0:
            for operation in sent.json()["operations"]:
                await strangers.execute(forward, operation)
        return got

    return handle


def forgets_request_ids() -> Bug:
    strangers = Strangers()

    async def handle(forward: Forward, sent: Sent) -> Got:
        return await strangers.answer(forward, sent) if sent.operations else await forward(sent)

    return handle


def executes_a_request_backwards() -> Bug:
    """The operations of a request are executed from the last to the first."""

    async def handle(forward: Forward, sent: Sent) -> Got:
        if not sent.operations:
            return await forward(sent)
        body, results = sent.json(), list[dict[str, Any]]()
        headers = {**sent.headers, **JSON, "Accept": "application/json"}
        for one in reversed(body["operations"]):
            got = await forward(sent._replace(headers=headers).with_json({**body, "operations": [one]}))
            if got.status != 200:
                return got
            results += got.json()["results"]
        return operated(results[::-1])

    return handle


def acknowledges_what_it_drops() -> Bug:
    number, last = count(1), [1]

    async def handle(forward: Forward, sent: Sent) -> Got:
        drops = sent.operations and next(number) % 10 == 0
        got = await forward(Sent("GET", "/livez", {}, b"") if drops else sent)
        if sent.operations and not drops and got.status == 200:
            last[0] = max(last[0], *(result.get("commit", 0) for result in got.json()["results"]))
        if not drops:
            return got
        applied = {"status": "applied", "commit": last[0], "version": last[0], "replayed": False}
        return operated([{"sequence": one["sequence"], **applied} for one in sent.json()["operations"]])

    return handle


def in_requests(change: Callable[[dict[str, Any]], None]) -> Bug:
    """Change each operation on its way to the node."""

    async def handle(forward: Forward, sent: Sent) -> Got:
        if not sent.operations:
            return await forward(sent)
        body = sent.json()
        for operation in body["operations"]:
            change(operation)
        return await forward(sent.with_json(body)._replace(headers={**sent.headers, **JSON}))

    return handle


def in_answers(change: Callable[[list[dict[str, Any]]], None]) -> Bug:
    """Change the results of operations on their way back."""

    async def handle(forward: Forward, sent: Sent) -> Got:
        got = await forward(sent)
        if not sent.operations or got.status != 200:
            return got
        body = got.json()
        change(body["results"])
        return got.with_json(body)._replace(headers=JSON)

    return handle


def answers_a_run_with_its_last_commit() -> Bug:
    def change(results: list[dict[str, Any]]) -> None:
        applied = [one for one in results if one["status"] == "applied"]
        for one in applied[1:-1]:
            one["commit"] = applied[-1]["commit"]

    return in_answers(change)


def answers_stale_reads() -> Bug:
    cache: dict[str, Got] = {}
    number = count(1)

    async def handle(forward: Forward, sent: Sent) -> Got:
        path = sent.path.partition("?")[0]
        if sent.method != "GET" or "/rows/" not in path:
            return await forward(sent)
        if path not in cache or next(number) % 20 == 0:
            cache[path] = await forward(sent)
        return cache[path]

    return handle


def ignores_conditions() -> Bug:
    return in_requests(lambda operation: operation.pop("if", None))


def ignores_conditions_of_transactions() -> Bug:
    def change(operation: dict[str, Any]) -> None:
        for write in operation.get("writes", ()):
            write.pop("if", None)
        operation.pop("conditions", None)

    return in_requests(change)


def checks_no_floor() -> Bug:
    def change(operation: dict[str, Any]) -> None:
        for write in operation.get("writes", ()):
            write.pop("floor", None)

    return in_requests(change)


def applies_only_the_first_write_of_a_transaction() -> Bug:
    def change(operation: dict[str, Any]) -> None:
        del operation.get("writes", [])[1:]

    return in_requests(change)


def forgets_idempotency_keys() -> Bug:
    number = count(1)

    async def handle(forward: Forward, sent: Sent) -> Got:
        headers = {
            name: f'"{next(number)}"' if name.lower() == "idempotency-key" else value
            for name, value in sent.headers.items()
        }
        return await forward(sent._replace(headers=headers))

    return handle


def hands_out_taken_rows_again() -> Bug:
    taken: list[Any] = []

    def change(results: list[dict[str, Any]]) -> None:
        for result in results:
            write = (result.get("writes") or [{}])[-1]
            if write.get("rows"):
                taken[:] = write["rows"]
            elif "rows" in write and taken:
                write["rows"] = taken

    return in_answers(change)


def says_sealed_without_asking() -> Bug:
    number = count(1)

    async def handle(forward: Forward, sent: Sent) -> Got:
        if sent.path.endswith("/resolve") and next(number) % 3 == 0:
            return Got(200, JSON, b"").with_json({"state": "sealed"})
        return await forward(sent)

    return handle


def fences_nobody() -> Bug:
    newest: dict[str, int] = {}

    async def handle(forward: Forward, sent: Sent) -> Got:
        if sent.operations:
            body = sent.json()
            body["epoch"] = max(body["epoch"], newest.get(body["client_id"], 1))
            sent = sent.with_json(body)
        got = await forward(sent)
        if sent.path.endswith("/take-over") and got.status == 200:
            client_id = sent.path.split("/")[-2]
            newest[client_id] = max(newest.get(client_id, 1), got.json()["epoch"])
        return got

    return handle


def executes_for_sessions_that_have_ended() -> Bug:
    strangers = Strangers()

    async def handle(forward: Forward, sent: Sent) -> Got:
        got = await forward(sent)
        if not sent.operations or b"SESSION_EXPIRED" not in got.body:
            return got
        answer = await strangers.answer(forward, sent)
        # The first refusal is passed on: the client knows of the end, and then learns that it was none.
        if sent.json()["client_id"] in told:
            return got._replace(status=200, body=answer.body)
        told.add(sent.json()["client_id"])
        return got

    told: set[str] = set()
    return handle


def loses_an_item_of_a_batch() -> Bug:
    async def handle(forward: Forward, sent: Sent) -> Got:
        got = await forward(sent)
        lines = got.body.splitlines(keepends=True)
        if "/batches/" in sent.path and "ndjson" in sent.headers.get("Accept", "") and len(lines) > 1:
            return got._replace(body=b"".join(lines[:-1]))
        return got

    return handle


def sends_other_bytes_of_a_batch_each_time() -> Bug:
    number = count(1)

    async def handle(forward: Forward, sent: Sent) -> Got:
        got = await forward(sent)
        if "/batches/" in sent.path and "ndjson" not in sent.headers.get("Accept", "") and got.status == 200:
            return got._replace(body=got.body + bytes(next(number)))
        return got

    return handle


def loses_a_change_when_a_watch_goes_on() -> Bug:
    class Loses(StreamBug):
        loses = False

        def asked(self, path: str) -> str:
            self.loses = self.loses or "from=" in path
            return path

        def told(self, event: bytes) -> list[bytes]:
            if self.loses and b"event: changes" in event:
                self.loses = False
                return []
            return [event]

    return Loses()


def tells_a_change_before_an_earlier_one() -> Bug:
    class Swaps(StreamBug):
        def __init__(self) -> None:
            self.held, self.number = b"", count(1)

        def told(self, event: bytes) -> list[bytes]:
            if self.held and b"event: changes" in event:
                held, self.held = self.held, b""
                return [event, held]
            if b"event: changes" in event and next(self.number) % 5 == 0:
                self.held = event
                return []
            return [event]

    return Swaps()


def mixes_states_in_the_pages_of_a_scan() -> Bug:
    async def handle(forward: Forward, sent: Sent) -> Got:
        path, _, token = sent.path.partition("page=")
        if not token:
            return await forward(sent)
        token, more, rest = token.partition("&")
        commit, keys = page_tokens.read(token)
        now = (await forward(Sent("GET", "/v1/cluster", {}, b""))).json()["commit"]
        got = await forward(sent._replace(path=f"{path}page={page_tokens.write(now, keys)}{more}{rest}"))
        return got.with_json({**got.json(), "commit": commit}) if got.status == 200 else got

    return handle


def calls_rows_of_a_damaged_block_absent() -> Bug:
    async def handle(forward: Forward, sent: Sent) -> Got:
        got = await forward(sent)
        if got.status != 503 or b"is damaged" not in got.body or "/rows/" not in sent.path:
            return got
        return Got(404, JSON, b"").with_json({"code": "NOT_FOUND"})._replace(status=404)

    return handle


class Retold(StreamBug):
    """Tells other changes in place of those of an event."""

    def __init__(self, retell: Callable[[Any], list[Any]]) -> None:
        self._retell = retell

    def told(self, event: bytes) -> list[bytes]:
        head, _, data = event.partition(b"data: ")
        if b"event: changes" not in head:
            return [event]
        return [head + b"data: " + json.dumps(one).encode() + b"\n\n" for one in self._retell(json.loads(data))]


def _later(told: Any) -> Any:
    """The same changes, each at the next commit number."""
    changes = [{**change, "commit": change["commit"] + 1} for change in told["changes"]]
    return {**told, "commit": told["commit"] + 1, "changes": changes}


def tells_a_change_twice() -> Bug:
    number = count(1)
    return Retold(lambda told: [told] if next(number) % 5 else [told, _later(told)])


def tells_an_end_twice() -> Bug:
    return Retold(lambda told: [told, _later(told)] if '"cause"' in json.dumps(told) else [told])


def tells_a_transaction_in_parts() -> Bug:
    return Retold(lambda told: [{"commit": one["commit"], "changes": [one]} for one in told["changes"]])


CASES: list[tuple[Callable[[], Bug], str, str]] = [
    (repeats_a_write_without_its_id, "append", "each acknowledged item once"),
    (repeats_a_write_without_its_id, "counter", "linearizable counter"),
    (repeats_a_write_without_its_id, "runs", "each row has the version"),
    (answers_a_run_with_its_last_commit, "runs", "each row has the version"),
    (executes_a_request_backwards, "order", "the effects of a session's calls"),
    (forgets_request_ids, "dedup", "all attempts of a request"),
    (acknowledges_what_it_drops, "append", LOST),
    (answers_stale_reads, "register", "linearizable register"),
    (answers_stale_reads, "stream", "a writer reads its own writes"),
    (ignores_conditions, "compare-and-set", "linearizable cas-register"),
    (ignores_conditions, "rows", "no two writes follow"),
    (checks_no_floor, "bank", "money is neither made nor lost"),
    (applies_only_the_first_write_of_a_transaction, "bank", "money is neither made nor lost"),
    (ignores_conditions_of_transactions, "lock", "no write of an earlier holder"),
    (ignores_conditions_of_transactions, "queue", "each item is completed or set aside exactly once"),
    (forgets_idempotency_keys, "queue", "each item is completed or set aside exactly once"),
    (hands_out_taken_rows_again, "queue", "attempts are counted"),
    (says_sealed_without_asking, "resolve", "a request is applied with one result or sealed"),
    (says_sealed_without_asking, "doubts", "each doubt ends"),
    (fences_nobody, "hand-over", "an owner that was taken over from"),
    (executes_for_sessions_that_have_ended, "lease", "a session that was told of its end"),
    (loses_an_item_of_a_batch, "flow", LOST),
    (sends_other_bytes_of_a_batch_each_time, "flow", "a batch is the same bytes"),
    (loses_a_change_when_a_watch_goes_on, "watch", LOST),
    (tells_a_change_before_an_earlier_one, "watch", LOST),
    (tells_a_change_twice, "watch", LOST),
    (tells_an_end_twice, "watch", "each end is told once"),
    (tells_a_transaction_in_parts, "watch", "what a transaction has changed"),
    (mixes_states_in_the_pages_of_a_scan, "watch", "a scan is the state"),
]
"""Which bug which workload shows, and the check that says so."""


def hands_out_an_old_backup() -> Bug:
    number, old = count(1), list[tuple[Forward, Got]]()

    async def handle(forward: Forward, sent: Sent) -> Got:
        if sent.operations and next(number) == 5:
            old.append((forward, await forward(Sent("POST", "/v1/snapshots", {}, b""))))
        if not sent.path.startswith("/v1/snapshots"):
            return await forward(sent)
        its_node, answer = old[0]
        return await its_node(sent) if sent.method == "GET" else answer

    return handle


FAULT_CASES: list[tuple[Callable[[], Bug], str, Action, str]] = [
    (
        calls_rows_of_a_damaged_block_absent,
        "register",
        Action("damaged_block", 1.0, 3.0, ("n3",)),
        "linearizable register",
    ),
    (
        hands_out_an_old_backup,
        "register",
        Action("backup_restored", 2.5, 0.5, ("n1",)),
        "linearizable register",
    ),
]
"""Which bug shows under which fault only."""


LENGTHS: Final = (1, 4, 16)
"""Times as long: a run is repeated so until its bug shows, for how much is done in a second is the machine's."""


def shown(check: str, judged: Callable[[int], RunVerdict]) -> RunVerdict:
    """Return the first verdict whose ``check`` is invalid, of runs of growing length; the longest's if none is."""
    for times in LENGTHS:
        verdict = judged(times)
        if any(result.verdict == "invalid" and result.name.startswith(check) for result in verdict.checks):
            break
    return verdict


def verdict_under(workload: str, bug: Callable[[], Bug], action: Action, runs: Path, times: int = 1) -> RunVerdict:
    """Run a workload under one fault, against three servers with a bug; ``times`` as long with the fault."""
    action = msgspec.structs.replace(action, seconds=times * action.seconds)
    plan = RunPlan(workload=workload, faults=(action.fault,), seed=7, seconds=action.end + times)
    nodes = tuple(f"n{number + 1}" for number in range(plan.nodes))
    faults = FaultPlan(plan.seed, plan.seconds, nodes, plan.faults, (action,))
    _, verdict = run(plan, runs, faults, lambda plan, faults, directory: LyingCluster(plan, faults, directory, bug()))
    return verdict


class BuggyCluster(CheckCluster):
    """A cluster of nodes with a bug of :mod:`oncegate.proof.mutants.bugs`."""

    def __init__(self, bug: str, directory: Path, **options: Any) -> None:
        super().__init__(directory, **options)
        self._bug = bug

    def command(self, node_id: str) -> list[str]:
        whole = super().command(node_id)
        at = whole.index("oncegate.proof.check.node_process")
        return [*whole[:at], "oncegate.proof.mutants.buggy_node", self._bug, *whole[at + 1 :]]


UNPROVED: Final = "node/unproved-frames"


def verdict_without_macs(runs: Path, times: int = 1) -> RunVerdict:
    """Run a workload against nodes that do not check the MACs of frames, while somebody changes frames."""
    action = Action("forged_links", 0.5, 2.0 * times, (), {"forgery": 1.0})
    plan = RunPlan(workload="bank", faults=(action.fault,), seed=7, seconds=action.end + 1.0)
    faults = FaultPlan(plan.seed, plan.seconds, ("n1", "n2", "n3"), plan.faults, (action,))
    _, verdict = run(
        plan, runs, faults, lambda plan, faults, directory: BuggyCluster(UNPROVED, directory, seed=plan.seed)
    )
    return verdict


def verdict_on(workload: str, bug: Callable[[], Bug], runs: Path, times: int = 1) -> RunVerdict:
    """Run a workload against one server with a bug, a flow against two; ``times`` 1.5 s."""
    plan = RunPlan(workload=workload, seed=7, seconds=1.5 * times, nodes=2 if workload == "flow" else 1)
    faults = plan_of(plan.seed, [], plan.seconds, plan.nodes)
    _, verdict = run(plan, runs, faults, lambda plan, faults, directory: LyingCluster(plan, faults, directory, bug()))
    return verdict


def verdict_with(bug: bugs.Bug, runs: Path, times: int = 1) -> RunVerdict:
    """Run a workload whose workers have a bug, against a real server that has none; ``times`` 1.5 s."""
    with bug.planted():
        return verdict_on(bug.by, honest, runs, times)
