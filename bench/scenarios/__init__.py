"""Scenarios of operating the pipeline, one command each: see `bench.scenarios.__main__`."""
