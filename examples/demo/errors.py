"""The one error that ends a demo without a result: it could not be run to the end, and nothing was shown."""

from __future__ import annotations


class CouldNotRun(Exception):
    """Base of all reasons; the first line of the text is for the person at the terminal."""
