"""Bugs that are planted in production code, one at a time, by tests only; each has to be caught by a verdict."""
