"""Backups of a running cluster, and new clusters made of them. Start at :mod:`oncegate.gateway.backup.manifest`."""
