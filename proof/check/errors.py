"""What may keep a check from being made: the machine lacks something, or the cluster did not recover."""

from __future__ import annotations

from collections.abc import Mapping


class CheckError(Exception):
    """A run cannot go on; what is wrong is in the message."""


class Unavailable(CheckError):
    """This machine does not allow it; the message says what is missing."""


class NotHealed(CheckError):
    """Faults have ended, and the cluster is not whole again within its deadline.

    ``wrong`` says what, by node id (or name of a target).
    """

    def __init__(self, wrong: Mapping[str, str]) -> None:
        super().__init__("not healed: " + "; ".join(f"{name}: {what}" for name, what in sorted(wrong.items())))
        self.wrong = dict(wrong)
