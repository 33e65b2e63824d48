"""Suites and compositions that somebody else made: none of their texts is imported, called or opened."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from support.brick_runs import brick_run, composition

from charact import load_run
from charact.machine.facts import machine_facts
from charact.measure.counters._support.rerun_case import child_command
from charact.record.in_progress import write_manifest

Here = Callable[..., Any]
BRIEF = ["--max-seconds", "0.05"]
OWN = {"model_args": "", "input_spec": "S", "loss": None, "optimizer": "SGD", "learning_rate": 0.01}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a suite on this machine."""
    path = brick_run(tmp_path / "runs", {"a": {"forward": 1e-4}, "b": {"forward": 1e-4}}).path
    manifest = json.loads((path / "run.json").read_text())
    manifest["machine"], manifest["software"]["torch"] = machine_facts(), torch.__version__
    manifest["options"] |= {"threads": torch.get_num_threads(), "compositions": str(tmp_path / "suite.private")}
    write_manifest(path, manifest)
    return path


def received(run: Path, *facts: dict[str, Any], mode: str = "infer") -> None:
    """Compositions of models, as their facts name them, next to the suite of the run."""
    (run.parents[1] / "suite.private").mkdir()
    for number, told in enumerate(facts):
        case = f"net-{number}-b1-{mode}-fp32"
        made = asdict(composition(["a", "b"], case=case, mode=mode, facts={"seed": 0, **told}))
        (run.parents[1] / "suite.private" / f"{case}.json").write_text(json.dumps(made))


def system(marker: Path) -> dict[str, Any]:
    return {"asked_as": "os:system", "own": {**OWN, "model_args": f"command='touch {marker}'"}}


class TestRunningCode:
    @pytest.mark.parametrize(("facts", "code", "remedy"), [
        (lambda marker: system(marker), "", "add --model 'os:system(command="),
        (lambda marker: {"asked_as": "received_code:Net", "own": OWN}, "received_code", "received_code:Net"),
    ])
    def test_verifying_imports_and_calls_nothing_that_a_composition_names(
            self, run: Path, here: Here, facts: Callable[[Path], dict[str, Any]], code: str, remedy: str) -> None:
        marker = run.parents[1] / "it-ran"
        if code:
            (run.parents[1] / f"{code}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
        received(run, facts(marker))
        done = here("bricks", "construct", "all", run, "--verify", *BRIEF, cwd=run.parents[1], status=0)
        assert not marker.exists()
        (line,) = [line for line in done.stderr.splitlines() if "not verified" in line]
        assert remedy in line

    def test_nor_does_calibrating(self, run: Path, here: Here) -> None:
        marker = run.parents[1] / "it-ran"
        received(run, system(marker), system(marker))
        done = here("bricks", "calibrate", run, "--turns", "1", *BRIEF, cwd=run.parents[1], status=2)
        assert not marker.exists()
        assert "add --model" in done.stderr

    @pytest.mark.slow
    def test_no_loss_is_imported(self, run: Path, here: Here) -> None:
        marker = run.parents[1] / "it-ran"
        (run.parents[1] / "received_loss.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
        own = {**OWN, "model_args": "in_features=4, out_features=4", "loss": "received_loss:loss"}
        received(run, {"asked_as": "torch.nn:Linear", "own": own})
        call = "torch.nn:Linear(in_features=4, out_features=4)"
        done = here("bricks", "construct", "all", run, "--verify", "--model", call, *BRIEF, cwd=run.parents[1])
        assert not marker.exists()
        assert "add --loss received_loss:loss" in done.stderr

    def test_processes_of_charact_import_nothing_from_the_working_directory(self) -> None:
        assert child_command("_support.pm_child")[1:3] == ["-P", "-m"]


class TestNamedOnTheCommandLine:
    def verified(self, run: Path, here: Here, *options: str, name: str = "all") -> Any:
        done = here("bricks", "construct", name, str(run), "--verify", *BRIEF, *options, cwd=run.parents[1])
        assert done.returncode == 0, done.stderr
        (path,) = run.parent.glob("*constructed*")
        (entry,) = load_run(path).entries
        return entry.passes.timing

    @pytest.mark.slow
    def test_a_model_is_verified(self, run: Path, here: Here) -> None:
        received(run, {"asked_as": "torch.nn:ReLU", "own": OWN})
        assert self.verified(run, here, "--model", "torch.nn:ReLU").status == "ok"

    @pytest.mark.slow
    def test_other_arguments_are_another_call(self, run: Path, here: Here) -> None:
        received(run, {"asked_as": "torch.nn:ReLU", "own": {**OWN, "model_args": "inplace=True"}})
        timing = self.verified(run, here, "--model", "torch.nn:ReLU")
        assert timing.status == "failed"
        assert timing.reason.endswith("add --model 'torch.nn:ReLU(inplace=True)'")

    def test_names_without_verifying_are_a_mistake(self, run: Path, refused: Here) -> None:
        refused("bricks", "construct", "all", run, "--model", "torch.nn:ReLU", said="--verify")


@pytest.mark.parametrize("facts", [
    {"asked_as": 5}, {"asked_as": "torch.nn:ReLU", "own": "os:system"}, {"seed": "0"}, {"seed": -1},
    {"asked_as": "x:y", "own": {"model_args": "path='a\x1b[8m'"}}, {"asked_as": "net\ud800"},
])
def test_facts_that_are_none_are_refused(run: Path, refused: Here, facts: dict[str, Any]) -> None:
    received(run, {"asked_as": "mlp", **facts})
    refused("bricks", "construct", "all", run, "--verify", said="is not a composition")


@pytest.mark.parametrize("threads", [10**9, 0, "4", None])
def test_a_number_of_threads_that_no_machine_has_is_refused(run: Path, refused: Here, threads: Any) -> None:
    received(run, {"asked_as": "mlp"})
    manifest = json.loads((run / "run.json").read_text())
    manifest["options"]["threads"] = threads
    write_manifest(run, manifest)
    refused("bricks", "construct", "all", run, "--verify", *BRIEF, said="threads")
