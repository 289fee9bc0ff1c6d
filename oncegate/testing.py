"""Nodes in the test's own process, and faults on request; the pytest fixture ``oncegate_cluster`` is a FakeCluster.

Needs ``oncegate[testing]``; without it importing raises ModuleNotFoundError, which names the extra.
"""

from oncegate.gateway.testing import Applied, FakeCluster, FakeGateway, FakeNode

__all__ = ["Applied", "FakeCluster", "FakeGateway", "FakeNode"]
