"""A whole cluster on fake time, network and disks, everything from one seed; see
:mod:`oncegate.proof.sim.engine.world`.
"""
