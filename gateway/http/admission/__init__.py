"""Admission: which work a node accepts, decided before anything is proposed. See docs/limits.md."""
