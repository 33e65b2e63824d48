"""`charact bricks` from models to constructed latencies, as a user runs it on workloads of seconds."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from charact import cli, load_run
from charact.bricks.suite.composition import load_compositions
from charact.bricks.suite.suite import load_suite
from charact.record.in_progress import write_manifest

Here = Callable[..., Any]
FEW = ["--max-rounds", "6", "--threads", "1"]
TINY = ["--input-sizes", "8", "--batch-sizes", "2"]


def only_run(directory: Path, name: str) -> Path:
    (path,) = directory.glob(f"runs/*{name}*")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a suite of two models, and a run of it."""
    directory = tmp_path_factory.mktemp("bricks")
    suite = str(directory / "suite")
    for command in (["generate", "mlp", "-g", "2", *TINY, "--out", suite],
                    ["generate", "model_a", "-g", "2", "--input-sizes", "32", "--batch-sizes", "2", "--out", suite],
                    ["run", suite, *FEW, "--out", str(directory / "runs")]):
        assert cli.run(["bricks", *command, "--quiet"]) == 0
    return directory


@pytest.fixture
def there(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    run = only_run(tmp_path, "bricks-suite")
    write_manifest(run, json.loads((run / "run.json").read_text().replace(str(made), str(tmp_path))))
    return tmp_path


class TestTheWholeWay:
    @pytest.mark.views
    def test_from_models_to_latencies_beside_measured_ones(self, there: Path, here: Here) -> None:
        run = only_run(there, "bricks-suite")
        taught = here("bricks", "calibrate", run, "--turns", "1", "--max-seconds", "0.2", cwd=there)
        assert taught.returncode == 0, taught.stderr
        assert "sum ÷ measured" in taught.stdout
        assert "Saved for this machine" in taught.stdout
        done = here("bricks", "construct", "all", run, "--verify", "--max-seconds", "0.2", cwd=there, status=0)
        for words in ("plain sum", "longest path", "corrected", "95 % interval", "Measured", "Mean |error|",
                      "benchmarking time", "by layer type"):
            assert words in done.stdout
        record = load_run(only_run(there, "constructed-suite"))
        assert list(record.cases["case"]) == ["mlp-8-b2-infer-fp32-cpu", "model_a-32-b2-infer-fp32-cpu"]
        assert set(record.cases["status"]) == {"ok"}
        assert set(record.iterations["case"]) == set(record.cases["case"])
        assert (record.path / "report.html").exists()

    def test_a_construction_is_the_json_of_its_record(self, there: Path, here: Here) -> None:
        done = here("bricks", "construct", "mlp", only_run(there, "bricks-suite"), "--json", cwd=there)
        assert (done.returncode, done.stderr) == (0, "")
        shown = here("show", f"runs/{only_run(there, 'constructed-suite').name}", "--json", cwd=there)
        assert done.stdout == shown.stdout
        assert json.loads(done.stdout)["cases"][0]["headline"]["latency_s"] > 0

    def test_the_plain_sum_is_that_of_the_pieces(self, there: Path, here: Here) -> None:
        here("bricks", "construct", "mlp", only_run(there, "bricks-suite"), cwd=there, status=0)
        record = load_run(only_run(there, "constructed-suite"))
        plain = record.constructions.set_index("strategy")["latency_s"]["sequential"]
        assert plain == pytest.approx(record.pieces["time_s"].sum())
        (composition,) = [each for each in load_compositions(there / "suite.private") if each.model == "mlp"]
        assert list(record.pieces["brick"]) == [piece.brick for piece in composition.pieces]
        assert len(record.iterations) == 0

    @pytest.mark.slow
    def test_a_training_is_constructed_by_phase(self, tmp_path: Path, here: Here) -> None:
        here("bricks", "generate", "mlp", *TINY, "--mode", "train", "--out", "s", cwd=tmp_path, status=0)
        assert load_suite(tmp_path / "s").method == "heavy"
        here("bricks", "run", "s", *FEW, cwd=tmp_path, status=0)
        run = only_run(tmp_path, "bricks-s")
        here("bricks", "construct", "mlp", run, "--verify", "--max-seconds", "0.2", cwd=tmp_path, status=0)
        record = load_run(only_run(tmp_path, "constructed-s"))
        plain = record.constructions.query("strategy == 'sequential'").set_index("phase")["latency_s"]
        assert set(plain.index) == {"forward", "backward", "update", "all"}
        assert plain["all"] == pytest.approx(plain[["forward", "backward", "update"]].sum())
        assert set(record.iterations["phase"]) >= {"forward", "loss", "backward", "update"}

class TestGenerating:
    def test_what_is_there_is_not_made_again(self, there: Path, here: Here) -> None:
        before = load_suite(there / "suite")
        done = here("bricks", "generate", "mlp", "-g", "2", *TINY, "--out", "suite", cwd=there, status=0)
        assert f"Wrote suite: {len(before.bricks)} bricks, 0 of them new" in done.stdout
        assert load_suite(there / "suite").digest == before.digest

    def test_what_cannot_be_captured_is_named_and_the_others_go_on(self, tmp_path: Path, here: Here) -> None:
        nets(tmp_path)
        own = [*TINY, "--input-spec", "S", "--out", "s"]
        done = here("bricks", "generate", "nets_of_bricks:broken", "torch.nn:Identity", *own, cwd=tmp_path, status=1)
        assert re.fullmatch("error: nets_of_bricks:broken cannot be captured: .*no such luck.*\n"
                            "error: torch.nn:Identity cannot be captured: it calls no operator.*\n"
                            ".*no model could be captured: nothing is written\n", done.stderr)
        assert not (tmp_path / "s").exists()
        done = here("bricks", "generate", "nets_of_bricks:broken", "mlp", *own, cwd=tmp_path, status=0)
        assert len(done.stderr.splitlines()) == 1
        assert [each.model for each in load_compositions(tmp_path / "s.private")] == ["mlp"]


    def test_decoys_are_bricks_of_no_composition(self, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
                                                 ) -> None:
        from charact.workload.registry import all_workloads

        few = {name: workload for name, workload in all_workloads().items() if name in ("mlp", "convolve2d")}
        monkeypatch.setattr("charact.bricks.commands._generate.all_workloads", lambda: few)
        here("bricks", "generate", "mlp", *TINY, "--decoys", "1", "--out", "s", cwd=tmp_path, status=0)
        composition, = load_compositions(tmp_path / "s.private")
        assert composition.model == "mlp"
        used = {piece.brick for piece in composition.pieces}
        assert len(set(load_suite(tmp_path / "s").bricks) - used) == 1

def nets(directory: Path) -> None:
    """A module of models: one that fails, and one that computes otherwise for other values."""
    (directory / "nets_of_bricks.py").write_text('''
import torch
from torch import nn

class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("no such luck")

class Fickle(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
    def forward(self, x):
        hidden = self.first(x)
        return self.second(hidden) if hidden.sum().item() < 1e9 else hidden

def broken():
    return Broken()

def fickle():
    return Fickle()
''')


class TestSeveralMachines:
    def test_a_run_of_another_machine_calibrates_nothing_here(self, there: Path, refused: Here) -> None:
        path = only_run(there, "bricks-suite")
        manifest = json.loads((path / "run.json").read_text())
        manifest["machine"]["fingerprint"] = "0" * 12
        write_manifest(path, manifest)
        refused("bricks", "calibrate", path, cwd=there, said="is of another machine or PyTorch")


class TestOtherModels:
    def test_a_model_of_the_same_bricks_needs_no_composition(self, there: Path, here: Here) -> None:
        shutil.rmtree(there / "suite.private")
        here("bricks", "construct", "mlp", only_run(there, "bricks-suite"), *TINY, cwd=there, status=0)
        assert load_run(only_run(there, "constructed-suite")).cases["status"].tolist() == ["ok"]

    def test_a_model_whose_bricks_are_not_there_has_no_number(self, there: Path, here: Here) -> None:
        done = here("bricks", "construct", "mlp", only_run(there, "bricks-suite"), "--input-sizes", "9",
                    "--batch-sizes", "2", cwd=there)
        assert done.returncode == 1
        assert "the run lacks" in done.stderr
        record = load_run(only_run(there, "constructed-suite"))
        assert record.constructions["latency_s"].isna().all()
        assert record.constructions["reason"].str.contains("linear").all()


def test_a_suite_is_audited(there: Path, here: Here) -> None:
    audited = here("bricks", "audit", "suite", cwd=there)
    assert audited.returncode == 0, audited.stdout
    assert "linear" in audited.stdout
    (there / "suite" / "notes.txt").write_text("resnet18")
    audited = here("bricks", "audit", "suite", cwd=there)
    assert audited.returncode == 1
    assert "should not be there: notes.txt" in audited.stdout
