"""Basic operations on a CUDA device: results in every precision, times against an independent clock, DeepBench."""

from pathlib import Path
from statistics import median

import pytest
import torch
from torch.utils.benchmark import Timer

from charact import cli, load_run
from charact.execution.precision import float32_products
from charact.measure.microbench.operation_timing import result_error, rotated_inputs, time_direction
from charact.measure.passes.timing import StopRule
from charact.ops import all_kinds, all_suites, parse_problem
from charact.record.schema import OPERATION_PRECISIONS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

KINDS = all_kinds()
TEXTS = (
    "gemm:96x80x72", "gemm:96x80x72:tn", "convolution:3x8x19x18:16x3x3:p1:s2", "convolution:4x1x161x700:32x5x20:s2",
    *(f"sparse_gemm:96x40x64:s0.9:{layout}" for layout in ("csr", "coo", "bsr", "dense")),
    "rnn:lstm:64x4x8", "attention:2x3x64x64x32:causal", "normalization:layer_norm:40x32", "softmax:20x300",
    "embedding:50x16x400", "optimizer:adamw:1000x7:fused", "copy:100000", "copy:100000:host_to_device",
)


@pytest.mark.parametrize("precision", OPERATION_PRECISIONS)
@pytest.mark.parametrize("text", TEXTS)
def test_results_are_those_of_float64(text: str, precision: str) -> None:
    device, problem = torch.device("cuda", 0), parse_problem(text)
    kind = KINDS[problem.operation]
    if (refusal := kind.refusal(problem, precision, device)) is not None:
        pytest.skip(refusal)
    with float32_products("tf32" if precision == "tf32" else "fp32"):
        for direction in kind.directions(problem):
            prepared = kind.prepare(problem, direction, precision, device)
            assert result_error(prepared, prepared.inputs()) <= prepared.tolerance, direction


@pytest.mark.parametrize(("text", "statement"), [
    ("gemm:4096x4096x4096", "torch.mm(*inputs)"),
    ("convolution:32x64x56x56:64x3x3:p1", "torch.nn.functional.conv2d(*inputs, padding=1)"),
])
def test_times_are_those_of_torch_utils_benchmark(text: str, statement: str) -> None:
    device, problem = torch.device("cuda", 0), parse_problem(text)
    prepared = KINDS[problem.operation].prepare(problem, "forward", "fp32", device)
    rotated = rotated_inputs(prepared, device, hot=True)
    timer = Timer(statement, globals={"torch": torch, "inputs": rotated[0]})
    ratios = []
    with float32_products("fp32"):
        for _ in range(9):
            rows = time_direction(prepared, rotated, device, StopRule(0.0, 20, 5.0), lambda number, median_s: None).rows
            ours = median(row["device_s"] for row in rows)
            ratios.append(ours / median(timer.timeit(20).mean for _ in range(5)))
    assert median(ratios) == pytest.approx(1, abs=0.03)


def test_a_problem_that_does_not_fit_is_recorded(tmp_path: Path) -> None:
    problems = ["--problem", "gemm:1000000x1000000x1000000", "--problem", "gemm:64x64x64"]
    assert cli.run(["ops", *problems, "--device", "cuda", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    assert list(load_run(path).cases["status"]) == ["oom", "ok"]


@pytest.mark.slow
def test_every_problem_of_deepbench_runs_and_is_right(tmp_path: Path) -> None:
    assert cli.run(["ops", "--suite", "deepbench", "--max-repetitions", "6", "--max-seconds", "0.1", "--device", "cuda",
                    "--layouts", "csr", "--quiet", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    run = load_run(path)
    assert len(run.cases) == len(all_suites()["deepbench"].problems())
    assert set(run.cases["status"]) <= {"ok", "oom"}
    measured = run.problems[run.problems["case"].isin(run.cases.query("status == 'ok'")["case"])]
    assert (measured["max_error"] <= measured["tolerance"]).all()
