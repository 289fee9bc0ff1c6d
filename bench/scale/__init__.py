"""How cost grows with rows, values, keys, sessions, tables, flows, watchers and nodes: see `bench.scale.__main__`."""
