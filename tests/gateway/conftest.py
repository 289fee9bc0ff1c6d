"""Fixtures of the tests that need one node."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncegate.gateway.node.settings import Settings
from tests.conftest import Api
from tests.gateway.http_contract import declare, one_node


@pytest.fixture
def files(tmp_path: Path) -> Settings:
    """Settings of one node, the same for each of its lives."""
    return one_node(tmp_path)


@pytest.fixture
async def client_id(api: Api) -> str:
    """A session at a node that has the resident table ``rows`` and the stream table ``events``."""
    await declare(api)
    await declare(api, "events", "stream")
    return await api.session()
