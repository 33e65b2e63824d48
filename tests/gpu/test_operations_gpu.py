"""Basic operations on a CUDA device: results in every precision, times against an independent clock, DeepBench."""

from pathlib import Path

import pytest
import torch

from charact import cli, load_run
from charact.execution.precision import float32_products
from charact.measure.microbench.operation_timing import result_error
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
        for direction in kind.directions:
            prepared = kind.prepare(problem, direction, precision, device)
            assert result_error(prepared, prepared.inputs()) <= prepared.tolerance, direction


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
