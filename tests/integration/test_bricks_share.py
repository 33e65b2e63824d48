"""`charact bricks run --share`: some bricks are timed, and the others' times predicted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from charact import cli, load_run

Here = Callable[..., Any]
ROUNDS = ["--max-rounds", "6", "--threads", "1"]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a suite of ResNet-18, whose bricks are alike but for their sizes, and a run of a third of it."""
    directory = tmp_path_factory.mktemp("share")
    suite = str(directory / "suite")
    assert cli.run(["bricks", "generate", "resnet18", "--input-sizes", "32", "--batch-sizes", "1", "--out", suite,
                    "--quiet"]) == 0
    assert cli.run(["bricks", "run", suite, "--share", "0.4", *ROUNDS, "--out", str(directory / "runs"), "--name",
                    "some", "--quiet"]) == 0
    return directory


def run_of(directory: Path, name: str) -> Path:
    (path,) = directory.glob(f"runs/*-{name}-*")
    return path


@pytest.mark.slow
def test_what_is_left_out_was_not_run_and_is_not_called_failed(there: Path) -> None:
    run = load_run(run_of(there, "some"))
    left_out = run.bricks["status"] == "left_out"
    assert set(run.bricks["status"]) == {"ok", "left_out"}
    assert 0.3 < 1 - left_out.mean() < 0.5
    assert not set(run.bricks.loc[left_out, "brick"]) & set(run.table("brick_times")["brick"])
    assert (run.bricks.loc[left_out, "set_up_s"] == 0).all()
    convolutions = run.bricks[run.bricks["layer_types"] == '["conv2d"]']
    assert convolutions["flop"].notna().all()
    facts = run.cases.iloc[0]
    assert facts["status"] == "ok"
    bricks = run.entry(facts["case"]).passes.bricks
    assert (bricks.num_failed, bricks.num_left_out) == (0, left_out.sum())


@pytest.mark.slow
@pytest.mark.views
def test_the_model_is_constructed_and_says_how_much_is_predicted(there: Path, here: Here) -> None:
    done = here("bricks", "construct", "resnet18", str(run_of(there, "some")), "--name", "built", cwd=there, status=0)
    assert "not timed: a regression on the other bricks" in " ".join(done.stdout.split())
    record = load_run(run_of(there, "built"))
    assert set(record.pieces["method"]) == {"measured", "predicted"}
    plain = record.constructions.set_index("strategy").loc["sequential"]
    assert plain["latency_s"] == pytest.approx(record.pieces["time_s"].sum())
    assert plain["low_s"] < plain["latency_s"] < plain["high_s"]
    assert "not timed: a regression on the other bricks" in (record.path / "report.html").read_text()


def test_a_training_is_refused(tmp_path: Path, here: Here) -> None:
    here("bricks", "generate", "mlp", "--input-sizes", "8", "--batch-sizes", "2", "--mode", "train", "--out",
                "s", cwd=tmp_path, status=0)
    done = here("bricks", "run", "s", "--share", "0.5", cwd=tmp_path)
    assert done.returncode == 2
    assert "add --mode infer, or leave --share out" in done.stderr
