"""Three data flows over one Cassandra, side by side: see `bench.dataflows.__main__`."""
