"""What proves the promises: checker, runs under faults, offline comparison, simulators, planted bugs."""
