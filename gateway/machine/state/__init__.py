"""The replicated state on disk (docs/decisions/0009-state-on-disk.md).

Read in this order: :mod:`oncegate.gateway.machine.state.rows` (where a row is found),
:mod:`oncegate.gateway.machine.state.layout` (what is stored), :mod:`oncegate.gateway.machine.state.frozen` (what one
save writes), :mod:`oncegate.gateway.machine.state.durable` (when a save runs, and in which thread).
"""

from oncegate.gateway.machine.state.digest import state_digest
from oncegate.gateway.machine.state.durable import MachineState

__all__ = ["MachineState", "state_digest"]
