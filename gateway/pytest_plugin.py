"""Fixtures for the tests of applications, there as soon as ``oncegate[testing]`` is installed beside pytest.

Owns: ``oncegate_cluster``. Imports the gateway only when a test asks for it, and for that reason does not live with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oncegate.gateway.testing import FakeCluster


@pytest.fixture
def oncegate_cluster() -> Iterator[FakeCluster]:
    """Three nodes in this process, under the real state machine, on a clock that only the test moves."""
    from oncegate.gateway.testing import FakeCluster

    with FakeCluster() as cluster:
        yield cluster
