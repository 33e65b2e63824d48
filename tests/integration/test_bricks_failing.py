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
        assert here("bricks", "generate", *models, "--quiet", cwd=tmp_path).returncode == 0
    assert here("bricks", "run", "suite", "--max-rounds", "6", "--quiet", cwd=tmp_path).returncode == 0
    (path,) = (tmp_path / "runs").iterdir()
    return path


@pytest.fixture
def fails(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is that run."""
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
    timings = [entry["passes"]["timing"]["status"] for entry in load_run(path).manifest["cases"]]
    assert timings == ["failed", "ok", "ok"]
    assert load_run(path).constructions.query("strategy == 'sequential'")["latency_s"].notna().all()


@pytest.mark.usefixtures("fails")
@pytest.mark.slow
def test_a_correction_is_learned_from_the_others(run: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(run.parents[1] / "cache"))
    for models, status in (([], 0), (["Fickle", "mlp-8-b2-infer-fp32"], 2)):
        done = here("bricks", "calibrate", str(run), *models, "--model", FICKLE[0], "--turns", "2", "--max-seconds",
                    "0.1", cwd=run.parents[1])
        assert done.returncode == status
        assert "warning: a model is left out: Fickle" in done.stderr
        assert "Traceback" not in done.stderr
    assert "a correction needs 2 models that can be run here, but bricks-suite-g1-infer-fp32-cpu has 1" in (
        done.stderr)


@pytest.mark.parametrize("arguments", [["generate", "x" * 300], ["construct", "x" * 300, "suite"]])
def test_names_that_no_file_can_have(tmp_path: Path, here: Here, arguments: list[str]) -> None:
    done = here("bricks", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: ")
