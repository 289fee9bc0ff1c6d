"""Small applications on the SDK; each runs against ``oncegate dev`` and is executed by tests/examples."""
