"""`charact ops`: what it runs, what it says, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from charact import cli, load_run
from charact.ops import all_suites
from charact.record.reader import Run

QUICK = ["--max-repetitions", "6", "--max-seconds", "0.5", "--threads", "1"]


def ops(tmp_path: Path, *arguments: str) -> Run:
    assert cli.run(["ops", *arguments, *QUICK, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    return load_run(path)


@pytest.mark.slow
def test_problems_are_run_in_every_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ops(tmp_path, "--problem", "gemm:48x32x16", "--problem", "convolution:2x3x8x8:4x3x3", "--precision",
              "fp32,bf16")
    assert list(run.cases["case"]) == [
        "gemm-48x32x16-fp32-cpu", "gemm-48x32x16-bf16-cpu", "convolution-2x3x8x8-4x3x3-fp32-cpu",
        "convolution-2x3x8x8-4x3x3-bf16-cpu"]
    assert set(run.cases["status"]) == {"ok"}
    assert run.manifest["ceilings"]
    assert run.run_id.split("-", 2)[2].startswith("operations-")
    said = capsys.readouterr().out
    assert "48x32x16" in said
    assert "Wrote " in said


@pytest.mark.slow
def test_a_view_that_fails_costs_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(runs: object) -> str:
        raise ValueError("no such figure")

    monkeypatch.setattr("charact.views.html.report.report", failing)
    with pytest.raises(ValueError, match="no such figure"):
        cli.run(["ops", "--problem", "gemm:8x8x8", *QUICK, "--out", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    assert list(load_run(path).cases["status"]) == ["ok"]


@pytest.mark.slow
def test_a_part_of_a_suite_is_sampled(tmp_path: Path) -> None:
    run = ops(tmp_path, "--suite", "deepbench", "--set", "inference_device", "--operations", "gemm", "--sample", "6",
              "--quiet")
    assert list(run.problems["problem"]) == ["gemm:5124x700x2048", "gemm:3072x1500x128", "gemm:4224x1x128"]
    assert set(run.problems["set"]) == {"inference_device"}
    assert run.manifest["options"]["sample"] == 6


@pytest.mark.slow
def test_ranks_are_those_of_the_problem_or_the_option(tmp_path: Path) -> None:
    run = ops(tmp_path, "--problem", "all_reduce:1000", "--ranks", "2")
    assert run.cases[["workload", "status"]].to_numpy().tolist() == [["all_reduce:1000x2", "ok"]]
    assert len(run.repetitions) == 6


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "nothing to run: give a --suite or a --problem, as in --problem gemm:3072x128x1024"),
    (["--set", "training"], "--set selects a part of a suite: give --suite"),
    (["--problem", "gemm:2x2x2", "--set", "training"], "--set selects a part of a suite: give --suite"),
    (["--suite", "deepmind"], "--suite: 'deepmind' is not one of crossover, deepbench, modern, vo"),
    (["--suite", "deepbench", "--set", "train"],
     "--set: 'train' is not one of training, inference_server, inference_device"),
    (["--suite", "crossover", "--set", "a"], "--set: crossover has no parts: leave it out"),
    (["--suite", "vo", "--operations", "gem"], "--operations: 'gem' is not one of all_reduce, attention"),
    (["--suite", "vo", "--operations", "softmax"], "nothing to run: --operations softmax matches none of the problems"),
    (["--problem", "product:3x4"], "--problem: 'product:3x4' is not an operation: write one of"),
    (["--problem", "gemm:2x2x2", "--precision", "fp8"],
     "--precision: 'fp8' is not one of fp32, tf32, bf16, fp16, int8"),
    (["--problem", "gemm:2x2x2", "--precision", "fp16"], "fp16 is not measured on a CPU"),
    (["--problem", "all_reduce:8"], "all_reduce is between several ranks: use --ranks 2"),
    (["--problem", "sparse_gemm:8x8x8:s0.5", "--layouts", "csr,cso"], "--layouts: 'cso' is not one of csr, csc, coo"),
    (["--problem", "gemm:2x2x2", "--name", " "], "--name is empty"),
    (["--problem", "gemm:2x2x2", "--sample", "0"], "--sample: '0' is not allowed"),
    (["--suite", "vo", "--layouts", ","], "--layouts is empty"),
])
def test_bad_input_is_one_line(refused: Callable[..., None], arguments: list[str], said: str) -> None:
    refused("ops", *arguments, "--device", "cpu", said=f"error: {said}")


@pytest.mark.slow
@pytest.mark.parametrize(("part", "every"), [("training", 23), ("inference_server", 12), ("inference_device", 2)])
def test_a_sample_of_deepbench_runs_and_is_right(tmp_path: Path, part: str, every: int) -> None:
    """58 problems, some of each set and kind, each timed once: 1.7 TFLOP where all are called once.

    All of them are 132 TFLOP, 96 of these in the recurrent layers of training, up to 16 each: hours on a CPU. The tests
    for GPUs run them all.
    """
    once = ["--max-repetitions", "1", "--max-seconds", "0", "--threads", "1", "--quiet", "--out", str(tmp_path)]
    assert cli.run(["ops", "--suite", "deepbench", "--set", part, "--sample", str(every), *once]) == 0
    run = load_run(next(tmp_path.iterdir()))
    assert set(run.cases["status"]) <= {"ok", "oom"}
    measured = run.problems[run.problems["case"].isin(run.cases.query("status == 'ok'")["case"])]
    of_set = [problem.operation for problem in all_suites()["deepbench"].problems() if problem.set == part]
    assert set(measured["operation"]) == set(of_set)
    assert (measured["max_error"] <= measured["tolerance"]).all()
