"""`charact memory` as a user runs it, on cases that take a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.programs import only_record

from charact import Run

Here = Callable[..., Any]
MLP = ["memory", "mlp", "--device", "cpu"]
OWN = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Conv2d(3, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
"""


def entries(run: Run) -> dict[str, Any]:
    return {entry.case: entry for entry in run.entries}


def test_cases_are_predicted_and_measured_and_told(here: Here, tmp_path: Path) -> None:
    done = here(*MLP, "--input-sizes", "4,8", "--batch-sizes", "2", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = only_record(tmp_path)
    assert set(entries(run)) == {f"mlp-{size}-b2-{mode}-fp32-cpu" for size in (4, 8) for mode in ("train", "infer")}
    assert run.manifest["options"]["command"] == "memory"
    for entry in run.entries:
        prediction, memory = entry.passes.prediction, entry.passes.memory
        assert (prediction.status, memory.status, len(entry.passes)) == ("ok", "ok", 2)
        assert prediction.peak_bytes == pytest.approx(memory.peak_bytes, rel=0.02)
        assert memory.process_before_bytes > memory.peak_bytes
    assert set(run.memory["method"]) == {"predicted", "measured"}
    assert f"Wrote runs/{run.path.name}" in done.stdout
    assert "Train ÷ infer" in done.stdout


@pytest.mark.slow
def test_a_gpu_that_is_not_here_is_predicted_for(here: Here, tmp_path: Path) -> None:
    done = here(*MLP[:2], "--device-like", "A100-80GB", "--mode", "train", "--batch-sizes", "8", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    ((case, entry),) = entries(only_record(tmp_path)).items()
    assert case == "mlp-28-b8-train-fp32-cuda"
    assert entry.device_name == "a100-80gb"
    assert (entry.passes.memory.status, entry.passes.memory.reason) == ("skipped", "predicted only")
    prediction = entry.passes.prediction
    assert prediction.needed_bytes >= prediction.reserved_peak_bytes + prediction.context_bytes
    assert prediction.fits is True


@pytest.mark.slow
def test_a_run_of_which_some_cases_fit_has_succeeded(here: Here, tmp_path: Path) -> None:
    arguments = [*MLP, "--predict", "--device-memory", "40MiB", "--mode", "train", "--quiet"]
    done = here(*arguments, "--batch-sizes", "8,20000", cwd=tmp_path)
    assert done.returncode == 0
    assert [entry.status for entry in only_record(tmp_path).entries] == ["ok", "oom"]
    assert "mlp-28-b20000-train-fp32-cpu: oom (predicted to need " in done.stderr
    here(*arguments, "--fit", "--out", "fits", cwd=tmp_path, status=0)
    too_little = [{"40MiB": "1MiB"}.get(argument, argument) for argument in arguments]
    assert here(*too_little, "--fit", "--out", "none", cwd=tmp_path).returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("amount", [["--fit", "32MiB"], ["--fit", "--device-memory", "33554432"]])
def test_the_largest_batch_that_fits(here: Here, tmp_path: Path, amount: list[str]) -> None:
    done = here(*MLP, *amount, "--mode", "train", cwd=tmp_path, status=0)
    run = only_record(tmp_path)
    (row,) = run.table("fits").to_dict("records")
    assert row["limit_bytes"] == 32 * 2**20
    assert row["needed_bytes"] <= 32 * 2**20 < row["next_needed_bytes"]
    assert row["case"] == f"mlp-28-b{row['value']}-train-fp32-cpu"
    assert str(row["value"]) in done.stdout


@pytest.mark.slow
def test_what_was_found_is_run(here: Here, tmp_path: Path) -> None:
    here(*MLP, "--fit", "40MiB", "--verify", "--mode", "infer", "--input-sizes", "32", "-q", cwd=tmp_path, status=0)
    run = only_record(tmp_path)
    (row,) = run.table("fits").to_dict("records")
    assert row["verified"] == "ok"
    assert [entry.batch_size for entry in run.entries] == [row["value"], row["next_value"]]


@pytest.mark.slow
def test_a_model_of_your_own(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_memory.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = here("memory", "--model", "nets_of_memory:Net", "--model-args", "width=16", "--input-spec",
                "3xSxS -> int64[10]", "--input-sizes", "16,24", "--batch-sizes", "4", "--accumulate", "2",
                "--device", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = only_record(tmp_path)
    assert set(entries(run)) == {"Net-16-b4x2-train-fp32-cpu", "Net-24-b4x2-train-fp32-cpu", "Net-16-b4-infer-fp32-cpu",
                                 "Net-24-b4-infer-fp32-cpu"}
    for entry in run.entries:
        assert entry.passes.prediction.peak_bytes == pytest.approx(entry.passes.memory.peak_bytes, rel=0.02)


@pytest.mark.slow
@pytest.mark.views
def test_one_rank_of_many_is_only_predicted(here: Here, tmp_path: Path) -> None:
    done = here(*MLP, "--parallel", "fsdp2,ddp", "--nproc", "2", "--mode", "train", "--batch-sizes", "4", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rank 0, fsdp2 over 2 ranks: batch 4 per rank, 8 in all" in done.stdout
    run = only_record(tmp_path)
    assert set(entries(run)) == {f"mlp-28-b4-train-fp32-cpu-{name}x2" for name in ("ddp", "fsdp2")}
    for entry in run.entries:
        assert (entry.passes.memory.status, entry.rank, entry.world_size, entry.global_batch_size) == (
            "skipped", 0, 2, 8)
    page = (run.path / "report.html").read_text()
    assert "fsdp2 over 2 ranks" in page
    assert "Unsharded weights" in page


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
@pytest.mark.parametrize("arguments", [["--device", "cuda"], ["--device", "cuda:1", "--device-memory", "16GiB"]])
def test_a_gpu_that_is_not_here_has_two_remedies(refused: Here, arguments: list[str]) -> None:
    refused("memory", "mlp", *arguments, said="estimate for a GPU with --device-like t4 (charact list devices), or "
                                              "with --device cuda --device-memory 16GiB\n")


@pytest.mark.parametrize(("arguments", "said"), [
    (["mlp", "--parallel", "fsdp2"], "--parallel fsdp2 needs the number of ranks: add --nproc 8"),
    (["mlp", "--nproc", "2"], "--nproc 2 needs --parallel: add --parallel ddp or --parallel fsdp2"),
    (["mlp", "--parallel", "ddp", "--nproc", "2", "--measure"],
     "--parallel estimates, and runs nothing: leave --measure out"),
    (["resnet19"], "unknown workload 'resnet19': did you mean resnet1"),
    ([], "give a workload, as in charact memory resnet50, or your own model with --model"),
    (["mlp", "--input-sizes", "0"], "--input-sizes: 0 is not positive"),
    (["mlp", "--batch-sizes", "-4"], "--batch-sizes: -4 is not positive"),
    (["mlp", "--mode", "training"], "--mode: 'training' is not one of train, infer"),
    (["mlp", "--predict", "--measure"], "--predict and --measure exclude each other: leave both out to do both"),
    (["mlp", "--verify"], "--verify goes with --fit: add that, or leave --verify out"),
    (["mlp", "--fit-by", "input-size"], "--fit-by goes with --fit: add that, or leave --fit-by out"),
    (["mlp", "--fit", "--fit-by", "depth"], "--fit-by: 'depth' is not one of batch-size, input-size"),
    (["mlp", "--fit", "--measure"], "--fit searches with estimates: leave --measure out; --verify runs the result"),
    (["mlp", "--fit", "--verify", "--predict"], "--verify runs the result: leave --predict out"),
    (["mlp", "--fit", "--batch-sizes", "8"],
     "--fit searches the batch size: leave --batch-sizes out, or search with --fit-by input-size"),
    (["mlp", "--fit", "--fit-by", "input-size", "--input-sizes", "8"],
     "--fit-by input-size searches the input size: leave --input-sizes out"),
    (["mlp", "--fit", "1GiB", "--device-memory", "1GiB"],
     "the memory to fit is given twice: leave one of them out"),
    (["mlp", "16GiB"], "'16GiB' is not a workload: write --fit 16GiB, or --device-memory 16GiB"),
    (["mlp", "--device-memory", "16GX"], "'16GX' is not an amount of memory"),
    (["mlp", "--fit", "16G"], "'16G' is not an amount of memory: write it as 16GiB"),
    (["mlp", "--fit", "16"], "'16' is in bytes: write 16GiB or 16MiB"),
    (["mlp", "--device-memory", "2000TiB"], "'2000TiB' is more than any device has"),
    (["mlp", "--device-memory", "900TiB", "--device", "cpu"], "the limit of 900 TiB is more than the "),
    (["mlp", "--device-like", "t4", "--device-memory", "100GiB"],
     "the limit of 100 GiB is more than the 14.6 GiB of t4: choose a larger GPU, or leave --device-memory out"),
    (["mlp", "--device-like", "t4", "--fit", "100GiB"],
     "the limit of 100 GiB is more than the 14.6 GiB of t4: choose a larger GPU, or leave the amount of --fit out"),
    (["mlp", "--device-like", "16GiB"], "--device-like names a GPU, such as t4 (charact list devices): for any with "
     "16GiB, write --device cuda --device-memory 16GiB"),
    (["mlp", "t4"], "'t4' is a GPU, not a workload: write --device-like t4"),
    (["mlp", "--device-like", "a100"], "there is no device 'a100' in the table: try a100-40gb, a100-80gb"),
    (["mlp", "--device-like", "t4", "--device", "cpu"], "--device-like names a GPU: leave --device cpu out"),
    (["mlp", "--device-like", "k80", "--measure"], "k80 is not present: leave --measure out"),
    (["mlp", "--device-like", "k80", "--fit", "--verify"], "k80 is not present: leave --verify out"),
    (["mlp", "--accumulate", "4", "--mode", "infer"],
     "--accumulate is for training: add train to --mode, or leave it out"),
    (["mlp", "--model", "a:b"], "--model replaces workloads: measure workloads in a separate run"),
    (["mlp", "--data-dir", "x"], "--data-dir is for real data"),
    (["mlp", "--name", " "], "--name is empty"),
])
def test_a_mistake_is_one_line_and_writes_nothing(refused: Here, arguments: list[str], said: str) -> None:
    refused("memory", *arguments, said=f"error: {said}")
