"""What an operator sees of a node: metrics, logs, the audit log, spans."""
