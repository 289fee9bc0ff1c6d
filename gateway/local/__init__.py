"""Clusters of real processes on this machine: for ``oncegate dev`` and ``check``, demo, benches and tests."""
