"""Options of the tests with real faults: how long, and from which seed."""

from __future__ import annotations

import os
import random
import sys

import pytest


@pytest.fixture
def soak() -> int:
    """How many times more rounds than CI does: ``ONCEGATE_SOAK=20``."""
    return int(os.environ.get("ONCEGATE_SOAK", "1"))


@pytest.fixture
def seed() -> int:
    """Of the test's own choices; shown when it fails, repeated with ``ONCEGATE_SEED``."""
    given = os.environ.get("ONCEGATE_SEED")
    chosen = random.SystemRandom().randrange(2**32) if given is None else int(given)
    sys.stdout.write(f"ONCEGATE_SEED={chosen}\n")
    return chosen
