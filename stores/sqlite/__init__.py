"""The embedded store. Start at :mod:`oncegate.stores.sqlite.store`."""
