"""``oncegate check``: a real cluster, faults, workloads, and what their histories prove."""
