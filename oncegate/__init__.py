"""oncegate: each write happens once."""
