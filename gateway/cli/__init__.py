"""The ``oncegate`` command: one file a command group."""
