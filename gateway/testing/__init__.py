"""A gateway in the test's own process, for tests of applications: the real state machine behind the real routes.

What is missing is consensus and the disk: an entry is applied as soon as it is submitted, by one machine that all nodes
share. Faults are asked for explicitly. Needs ``oncegate[testing]``; without it importing raises ModuleNotFoundError.
"""

from oncegate.version import installing

try:
    from oncegate.gateway.testing.nodes import FakeCluster, FakeGateway, FakeNode
    from oncegate.gateway.testing.state import Applied
except ModuleNotFoundError as missing:
    detail = f"the fixture runs a node's state machine and lacks {missing.name}: {installing('testing')}"
    raise ModuleNotFoundError(detail, name=missing.name) from missing

__all__ = ["Applied", "FakeCluster", "FakeGateway", "FakeNode"]
