"""Targets of a flow have names of tables."""

from __future__ import annotations

import pytest

from oncegate.gateway.node.settings import Settings
from tests.gateway.http_contract import assert_problem, serving


@pytest.mark.parametrize("name", ["A", "a b", "a\n", "\x1b[31ma", '"];', "x" * 65])
async def test_a_target_has_the_name_of_a_table(files: Settings, name: str) -> None:
    async with serving(files) as (api, _):
        await api.call("PUT", "/v1/tables/t", {"kind": "resident"})
        for target in (name, ["u", name]):
            assert_problem(await api.call("PUT", "/v1/flows/f", {"source": "t", "target": target}), "BAD_REQUEST")
