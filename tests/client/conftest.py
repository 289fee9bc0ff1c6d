from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from oncegate.gateway.testing.cluster import FakeGateway


@pytest.fixture
async def fake() -> AsyncIterator[FakeGateway]:
    """One node with a table of each kind."""
    async with FakeGateway() as gateway:
        gateway.tables.update(rows="resident", events="stream")
        yield gateway


@pytest.fixture
async def trio() -> AsyncIterator[FakeGateway]:
    """Three nodes with a table of each kind; the first leads."""
    async with FakeGateway(nodes=3) as gateway:
        gateway.tables.update(rows="resident", events="stream")
        yield gateway
