"""What an earlier build would read otherwise has another command: its nodes end, instead of making other batches."""

from __future__ import annotations

from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.settings import Settings
from tests.gateway.http_contract import assert_problem, serving
from tests.gateway.state_harness import Fed
from tests.gateway.test_cascades import format_of

LATER = {
    c.Cascade,
    c.ClockBatches,
    c.DeclareTable5,
    c.DeclareFlow5,
    c.AlterFlow5,
    c.RaiseLevel,
    c.OperateMixed,
    c.KeyedMixed,
    c.EndRows,
    c.OperateRuns,
    c.OperateMixed5,
    c.KeyedMixed5,
}
EARLIER: Any = reduce(or_, [kind for kind in get_args(c.Command) if kind not in LATER])


@pytest.mark.parametrize(
    ("call", "known"),
    [
        (("PUT", "/v1/flows/g", {"source": "t", "target": "u"}), True),
        (("PUT", "/v1/flows/g", {"source": "t", "target": ["u"], "retention_bytes": 0}), True),
        (("PUT", "/v1/flows/g", {"source": "t", "target": ["u", "v"]}), False),
        (("PUT", "/v1/flows/g", {"source": "t", "retention_bytes": 5}), False),
        (("PUT", "/v1/flows/g", {"source": "t", "event_time": "at"}), False),
        (("PUT", "/v1/flows/g", {"source": "t", "shed_lag_bytes": 5}), False),
        (("PUT", "/v1/tables/s", {"kind": "stream", "flow": {"linger_ms": 5}}), True),
        (("PUT", "/v1/tables/s", {"kind": "stream", "flow": {"retention_bytes": 5}}), False),
        (("PATCH", "/v1/flows/f", {"version": 1, "retention_ms": 5}), True),
        (("PATCH", "/v1/flows/f", {"version": 1, "retention_bytes": 5}), False),
        (("PATCH", "/v1/flows/f", {"version": 1, "event_time": "at"}), False),
        (("PATCH", "/v1/flows/f", {"version": 1, "shed_lag_bytes": 5}), False),
    ],
)
async def test_an_earlier_build_ends_at_a_declaration_that_it_would_read_otherwise(
    files: Settings, monkeypatch: pytest.MonkeyPatch, call: tuple[str, str, Any], known: bool
) -> None:
    async with serving(files) as (api, node):
        await api.call("PUT", "/v1/tables/t", {"kind": "resident"})
        await api.call("PUT", "/v1/flows/f", {"source": "t"})
        sent, submit = list[c.Command](), node.submit
        monkeypatch.setattr(node, "submit", lambda command, size: sent.append(command) or submit(command, size))
        status, _, body = await api.call(*call)
    assert status == 200, body
    text = c.encode_commands(sent)
    assert c.decode_commands(text) == sent
    earlier = msgspec.msgpack.Decoder(list[EARLIER])
    if known:
        assert earlier.decode(text) == sent
    else:
        with pytest.raises(msgspec.ValidationError, match="Invalid value"):
            earlier.decode(text)


def test_a_state_with_several_targets_has_a_version_that_earlier_builds_refuse(tmp_path: Path) -> None:
    node = Fed(tmp_path)
    node.do(c.DeclareTable("t", "resident", 1 << 20))
    for name, target, version in (("f", "u", 3), ("g", ("u", "v"), 5)):
        flow = FlowDeclaration(name=name, source="t", target=target)
        node.do(c.DeclareFlow(msgspec.json.encode(flow)))
        node.save()
        assert format_of(node) == version
    node.close()


@pytest.mark.parametrize("name", ["A", "a b", "a\n", "\x1b[31ma", '"];', "x" * 65])
async def test_a_target_has_the_name_of_a_table(files: Settings, name: str) -> None:
    async with serving(files) as (api, _):
        await api.call("PUT", "/v1/tables/t", {"kind": "resident"})
        for target in (name, ["u", name]):
            assert_problem(await api.call("PUT", "/v1/flows/f", {"source": "t", "target": target}), "BAD_REQUEST")
