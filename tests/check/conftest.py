"""The seed of runs: fixed, unless ``ONCEGATE_SEED`` says otherwise."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def seed() -> int:
    """Of the runs."""
    return int(os.environ.get("ONCEGATE_SEED", "20"))
