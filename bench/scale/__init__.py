"""How cost grows with rows, values, keys, sessions, tables, flows, watchers and more: see `bench.scale.__main__`."""
