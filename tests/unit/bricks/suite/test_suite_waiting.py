"""A suite that another process writes: it is waited for as long as was asked, and no longer."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from charact.bricks.suite.suite import suite_lock
from charact.core.errors import UserError


def entered(directory: Path, patience_s: float) -> bool:
    with suite_lock(directory, patience_s):
        return True


def test_who_has_patience_comes_after_who_writes(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        with suite_lock(tmp_path / "suite"):
            other = pool.submit(entered, tmp_path / "suite", 600.0)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.5)
        assert other.result(timeout=60)


def test_who_has_none_is_refused(tmp_path: Path) -> None:
    with suite_lock(tmp_path / "suite"), pytest.raises(UserError, match="is being written by another process"):
        entered(tmp_path / "suite", 0.2)
