from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from oncegate.testing import FakeGateway


@pytest.fixture
async def fake() -> AsyncIterator[FakeGateway]:
    """One node with a table."""
    async with FakeGateway() as gateway:
        gateway.declare("rows")
        yield gateway
