"""A real Cassandra on one machine, for development and tests: no container, no installation.

The jars come from Maven artifacts (`jars`), a node is one JVM (`node`), and `cluster` starts, stops and kills one to
three of them on 127.0.0.1 … 127.0.0.3. Command line: `python -m oncegate.stores.devcassandra --help`.
"""

from oncegate.stores.devcassandra.cluster import DevCluster, NodeStatus, running
from oncegate.stores.devcassandra.node import Config

__all__ = ["Config", "DevCluster", "NodeStatus", "running"]
