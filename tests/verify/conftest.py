"""Stopped clusters, made once, and a copy for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.scenes import copied, made


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes whose logs hold everything; two have saved their state on the way."""
    return made(tmp_path_factory.mktemp("whole"), bulk=False)


@pytest.fixture(scope="session")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes whose logs begin behind the beginning."""
    return made(tmp_path_factory.mktemp("compacted"), bulk=True)


@pytest.fixture
def nodes(whole: Path, tmp_path: Path) -> list[Path]:
    """The directories of a copy of ``whole``."""
    return copied(whole, tmp_path / "copy")


@pytest.fixture
def late_nodes(compacted: Path, tmp_path: Path) -> list[Path]:
    """The directories of a copy of ``compacted``."""
    return copied(compacted, tmp_path / "copy")
