"""Fixtures that every test may use."""

from pathlib import Path

import pytest
from support import records


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A run directory with known numbers: resnet50 at 32 and 224 px, train and infer."""
    return records.write_record(tmp_path / "runs")
