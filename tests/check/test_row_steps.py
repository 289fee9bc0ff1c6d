"""What workloads of rows ask for follows from what they were told, and what they write down is what was done."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from oncegate import Code, OperationFailed, OutcomeUnknown
from oncegate.proof.check.direct_session import AttemptReply
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.lincheck import Event
from tests.check.test_workload_steps import ABSENT, OK, reply, result, worker

STEPS = 300


class Table:
    """The rows of one table, each with its version; others than the workload write to it too."""

    def __init__(self, seed: int) -> None:
        self.dice, self.commit = Random(seed), 0
        self.rows: dict[str, tuple[Any, int]] = {}
        self.asked = list[dict[str, Any]]()
        """The operations that came, each with what it met and how it ended."""

    def answer(self, node: str, method: str, path: str, body: Any) -> AttemptReply:
        if method == "GET":
            key = path.rpartition("/")[2]
            self.asked.append({"op": "read", "key": key, "met": self.rows.get(key)})
            if key not in self.rows:
                return ABSENT
            value, version = self.rows[key]
            return reply(200, {"value": value, "version": version})
        operation = dict(body["operations"][0])
        value, version = self.rows.get(operation["key"], (None, 0))
        self.asked.append(operation | {"met": self.rows.get(operation["key"])})
        condition = operation.get("if", {})
        fits = {"absent": not version, "version": condition.get("version") == version}
        fits["value"] = bool(version) and condition.get("value") == value
        if not all(fits[name] for name in condition):
            self.asked[-1]["refused"] = True
            there = {"version": version, "value": value} if version else {"version": 0}
            return result("refused", code="CONDITION_FAILED", **there)
        if operation["op"] == "get":
            return result("applied", version=version, value=value)
        self.commit += 1
        self.rows.pop(operation["key"], None)
        if operation["op"] == "put":
            self.rows[operation["key"]] = (operation["value"], self.commit)
        return result("applied", commit=self.commit, version=self.commit)


async def stepped(workload: str, seed: int) -> tuple[Table, list[Event]]:
    table, events, ran = Table(seed), list[Event](), workload_of(workload)
    one = worker(table.answer, events)
    one.random = Random(seed)
    for _ in range(STEPS):
        await ran.step(one)
    models = [found for found in ran.check(events) if found.name.startswith("linearizable")]
    assert [(found.verdict, found.failures) for found in models] == [("valid", [])]
    return table, events


@pytest.mark.parametrize("seed", range(4))
async def test_value_is_compared_with_the_one_that_was_told_last_also_by_a_refusal(seed: int) -> None:
    table, _ = await stepped("compare-and-set", seed)
    seen, refused = dict[str, Any](), 0
    for one in table.asked:
        key, met = one["key"], one["met"]
        if one["op"] == "read":
            if met is not None:
                seen[key] = met[0]
        elif "if" in one:
            assert one["if"] == ({"value": seen[key]} if seen.get(key) is not None else {"absent": True})
            refused += "refused" in one
            seen[key] = (met and met[0]) if "refused" in one else one["value"]
    assert refused > 5


@pytest.mark.parametrize("seed", range(4))
async def test_condition_names_the_version_that_was_told_last_and_none_of_a_row_that_was_deleted(seed: int) -> None:
    table, events = await stepped("rows", seed)
    told, deleted, commit = dict[str, int](), 0, 0
    kinds = [event.f for event in events if event.type == "invoke"]
    for f, one in zip(kinds, table.asked, strict=True):
        key, version = one["key"], one["met"][1] if one["met"] else 0
        if "if" in one and f != "insert":
            assert one["if"] == ({"version": told[key]} if told.get(key) else {"absent": True})
        if one["op"] == "read":
            told[key] = version or told.get(key, 0)
        elif one["op"] == "get" or "refused" in one:
            told[key] = 0 if f == "delete" else version
        else:
            commit += 1
            deleted += f == "delete"
            told[key] = 0 if f == "delete" else commit
    assert deleted > 5


@pytest.mark.parametrize(
    ("end", "kind", "value"),
    [
        (None, "ok", 41),
        (OperationFailed(Code.QUOTA), "fail", None),
        (OutcomeUnknown(Code.TIMEOUT), "info", None),
    ],
)
async def test_counter_writes_down_the_sum_that_it_was_told_and_a_doubt_as_a_doubt(
    monkeypatch: pytest.MonkeyPatch, end: BaseException | None, kind: str, value: int | None
) -> None:
    class Told:
        value: int = 41

    class Ends:
        async def increment(self, *_: Any) -> Told:
            if end is not None:
                raise end
            return Told()

    events = list[Event]()
    one = worker(lambda *_: OK, events)

    async def through_sdk(step: Any, *more: Any) -> None:
        for _ in range(20):
            await step(Ends())

    monkeypatch.setattr(one, "through_sdk", through_sdk)
    await workload_of("counter").run_process(one)
    ends = [(event.type, event.value) for event in events if event.f == "increment" and event.type != "invoke"]
    assert ends
    assert set(ends) == {(kind, value)}
