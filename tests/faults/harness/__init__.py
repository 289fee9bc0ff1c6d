"""Clusters of real processes and the faults done to them; the tests of this directory and the benches use it."""
