"""The replicated state on disk (docs/decisions/0009-state-on-disk.md).

Read in this order: :mod:`gateway.state.rows` (where a row is found), :mod:`gateway.state.layout` (what is stored),
:mod:`gateway.state.frozen` (what one save writes), :mod:`gateway.state.durable` (who does it when).
"""

from gateway.state.digest import state_digest
from gateway.state.durable import MachineState

__all__ = ["MachineState", "state_digest"]
