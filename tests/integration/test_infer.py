"""`charact infer` as a user runs it, on seconds-long cases."""

import pickle
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forked import Server
from support.programs import only_record

from charact import load_run
from charact.datasets._common.request import DataRequest
from charact.measure.training.weight_files import save_weights
from charact.workload.registry import find_workload

pytestmark = pytest.mark.clock

SMALL = ["mlp", "--input-sizes", "8", "--synthetic", "classes=4"]
CASES = ["mlp-8-b3000-infer-fp32-cpu", "mlp-8-b3000-infer-pure-bf16-cpu", "mlp-8-b4000-infer-fp32-cpu",
         "mlp-8-b4000-infer-pure-bf16-cpu"]
Finished = tuple[subprocess.CompletedProcess[str], Path]


def small_model() -> torch.nn.Module:
    from charact.datasets._common.request import Synthetic

    workload = find_workload("mlp").prepare()
    torch.manual_seed(3)
    return workload.model(workload.dataset(8, DataRequest(split="test", synthetic=Synthetic(num_classes=4))))


class PretendsToBeWeights:
    """Pickles to a call that leaves a directory behind."""

    def __reduce__(self) -> object:
        import os

        return os.mkdir, ("ran",)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Finished:
    directory = tmp_path_factory.mktemp("infer") / "place"
    directory.mkdir()
    save_weights(small_model(), directory / "w.pt")
    done = server.charact("infer", *SMALL, "--weights", "w.pt", "--batch-sizes", "3000,4000", "--precision",
                          "fp32,pure-bf16", "--repeats", "2", cwd=directory)
    assert done.returncode == 0, done.stderr
    return done, only_record(directory).path


class TestAFinishedRun:
    def test_it_ends_with_a_summary_and_where_to_go_next(self, finished: Finished) -> None:
        done, path = finished
        assert re.sub(r"^\[\d/\d\] .*\n", "", done.stderr, flags=re.MULTILINE) == ""  # but for progress
        assert "No --weights" not in done.stdout
        assert f"Wrote runs/{path.name}" in done.stdout

    def test_the_record_holds_every_load_and_the_whole_split(self, finished: Finished) -> None:
        run = load_run(finished[1])
        assert list(run.cases["case"]) == CASES
        assert set(run.cases["status"]) == {"ok"}
        for case, num_batches in zip(CASES, (4, 4, 3, 3), strict=True):  # of 10,000 samples: the last one smaller
            facts = run.entry(case).passes.inference
            assert (facts.num_samples, facts.num_batches, facts.weights) == (10_000, num_batches, "w.pt")
            assert run.iterations[run.iterations["case"] == case]["iteration"].nunique() == num_batches
            stages = run.stages[run.stages["case"] == case]
            assert stages[stages["stage"] == "load_warm"]["number"].nunique() == 2
        assert list((finished[1]).glob("**/*.pt")) == []

    def test_answers_do_not_depend_on_the_batch_size_and_are_those_of_the_weights(self, finished: Finished) -> None:
        from charact.datasets._common.request import Synthetic

        workload, model = find_workload("mlp").prepare(), small_model().eval()
        dataset = workload.dataset(8, DataRequest(split="test", synthetic=Synthetic(num_classes=4)))
        pictures, labels = next(iter(torch.utils.data.DataLoader(dataset, batch_size=10_000)))
        with torch.inference_mode():
            share = (model(pictures).argmax(1) == labels).double().mean().item()
        found = load_run(finished[1]).metrics.set_index("case")["value"]
        assert found[CASES[0]] == found[CASES[2]] == pytest.approx(share)
        assert 0.15 < share < 0.35  # four classes of noise


class TestBadInput:
    @pytest.mark.parametrize(("arguments", "message"), [
        (["--weights", "code.pt"], "error: code.pt has more than tensors and is not read, because that could run code"),
        (["--weights", "w.pt", "--input-sizes", "8,9"], "error: w.pt does not fit: its 1.weight is 512×192"),
        (["--repeats", "0"], "error: "),
        (["--max-batches", "0"], "error: "),
        (["--split", "exam"], "error: --split: 'exam' is not one of train, valid, test"),
        (["--data", "mnist"], "error: --synthetic is for synthetic data, not for mnist"),
        (["--data-dir", "."], "error: --data-dir is for real data"),
        (["--name", " "], "error: --name is empty"),
        (["--out", "w.pt"], "error: w.pt is a file"),
    ])
    def test_it_gets_one_line_and_nothing_is_written(
        self, tmp_path: Path, arguments: list[str], message: str, refused: Callable[..., None],
    ) -> None:
        save_weights(small_model(), tmp_path / "w.pt")
        (tmp_path / "code.pt").write_bytes(pickle.dumps({"model": PretendsToBeWeights()}, protocol=2))
        refused("infer", *SMALL, "--device", "cpu", *arguments, "--quiet", said=message)

@pytest.mark.slow
def test_without_weights_random_ones_are_loaded_and_that_is_said(tmp_path: Path, here: Callable[..., Any]) -> None:
    done = here("infer", *SMALL, "--max-batches", "2", cwd=tmp_path, status=0)
    assert "No --weights: random weights are saved first" in done.stdout
    run = only_record(tmp_path)
    facts = run.entries[0].passes.inference
    assert (facts.weights, facts.weights_reason, facts.num_samples) == (None, "random: --weights names none", 2 * 128)
    assert list(run.path.rglob("*.pt")) == []


@pytest.mark.slow
def test_ctrl_c_keeps_the_finished_cases_and_exits_130(tmp_path: Path, server: Server) -> None:
    child = server.start("infer", "mlp", "--input-sizes", "8,64", "--batch-sizes", "1", "--repeats", "1", cwd=tmp_path)
    child.until(lambda: list(tmp_path.glob("runs/.partial-*/parts/stages-0000.parquet")))
    time.sleep(0.5)
    child.kill(signal.SIGINT)
    done = child.wait()
    assert done.status == 130, done.error
    assert done.error.splitlines()[-1] == "mlp-64-b1-infer-fp32-cpu: interrupted (by SIGINT)"
    run = only_record(tmp_path)
    assert list(run.cases["status"]) == ["ok", "interrupted"]
    assert set(run.stages["case"]) == {"mlp-8-b1-infer-fp32-cpu"}
    assert list(run.path.rglob("*.pt")) == []
