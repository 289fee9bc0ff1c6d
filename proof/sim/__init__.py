"""Simulators on virtual time, network and disks: the engine alone, and whole gateways with clients."""
