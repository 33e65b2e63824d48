"""`charact bricks` with models that fail when they are run, though they could be captured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import failing_nets

from charact import load_run
from charact.bricks.suite.suite import load_suite

Here = Callable[..., Any]
FICKLE = ["support.failing_nets:Fickle", "--input-spec", "S", "--input-sizes", "4", "--batch-sizes", "2"]


@pytest.fixture
def run(tmp_path: Path, here: Here) -> Path:
    """A run of a suite of `Fickle` and two others in the directory of the test."""
    others = ["mlp", "--input-sizes", "8,9", "--batch-sizes", "2"]
    for models in (others, FICKLE):
        here("bricks", "generate", *models, "--quiet", cwd=tmp_path, status=0)
    here("bricks", "run", "suite", "--max-rounds", "6", "--quiet", cwd=tmp_path, status=0)
    (path,) = (tmp_path / "runs").iterdir()
    return path


@pytest.fixture
def fails(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing_nets, "fails", True)


def test_a_model_that_ends_the_program_is_named_and_the_others_go_on(tmp_path: Path, here: Here) -> None:
    done = here("bricks", "generate", "support.failing_nets:Leaves", "torch.nn:ReLU", *FICKLE[1:], cwd=tmp_path)
    assert done.returncode == 0
    assert "its code ends the program (SystemExit: 3)" in done.stderr
    assert [entry["layer_types"] for entry in load_suite(tmp_path / "suite").bricks.values()] == [["relu"]]


@pytest.mark.slow
@pytest.mark.usefixtures("fails")
def test_what_cannot_be_verified_is_told_and_stays_constructed(run: Path, here: Here) -> None:
    done = here("bricks", "construct", "Fickle", "mlp", str(run), "--verify", "--model", FICKLE[0], "--max-seconds",
                "0.1", cwd=run.parents[1])
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "not verified" in line]
    assert "cannot be run: ZeroDivisionError: by zero" in line
    (path,) = (path for path in run.parent.iterdir() if path != run)
    timings = [entry.passes.timing.status for entry in load_run(path).entries]
    assert timings == ["failed", "ok", "ok"]
    assert load_run(path).constructions.query("strategy == 'sequential'")["latency_s"].notna().all()
