"""The parts of ``python -m bench.consensus``."""
