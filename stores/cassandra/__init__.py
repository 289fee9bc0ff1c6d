"""The store of the product. Start at :mod:`oncegate.stores.cassandra.store`."""
