"""Sustained exactly-once events with a Spark job behind them, and their recount: see `bench.stream.__main__`."""
