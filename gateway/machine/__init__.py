"""The replicated state machine: commands in, effects and records out.

Start at :mod:`~oncegate.gateway.machine.machine`.
"""
