"""The soak of the fan-out and of the library's jobs; see `bench.soak_fanout.__main__`."""
