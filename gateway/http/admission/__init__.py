"""Admission: what a node takes on, decided before anything is proposed. See docs/limits.md."""
