"""Running operations into a record: what each leaves, also one that fails, and what a signal keeps."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cpu_kernels import needs_int8
from support.notes import Notes
from support.recording import recorded

from charact.measure.microbench.cases import OperationCase, operation_cases, run_operations
from charact.measure.passes.timing import StopRule
from charact.ops import Problem, parse_problem
from charact.record.reader import Run

CPU = torch.device("cpu")
RULE = StopRule(max_iterations=6, max_seconds=1.0)
PRODUCT, CONVOLUTION = "gemm:33x17x5", "convolution:2x3x8x8:4x3x3"
TOO_LARGE = "gemm:1000000x1000000x1000000"


def run(tmp_path: Path, cases: list[OperationCase], notes: Notes | None = None, *, hot: bool = False) -> Run:
    return recorded(tmp_path, lambda writer, interrupt: run_operations(
        cases, RULE, writer, notes or Notes(), interrupt, hot=hot))


def cases_of(*texts: str, precisions: tuple[str, ...] = ("fp32",), **place: Any) -> list[OperationCase]:
    return operation_cases([replace(parse_problem(text), **place) for text in texts], precisions, CPU)


def test_every_direction_leaves_its_rows(tmp_path: Path) -> None:
    notes = Notes()
    record = run(tmp_path, cases_of(PRODUCT, CONVOLUTION), notes)
    assert record.cases[["case", "workload", "variant", "mode", "status"]].to_numpy().tolist() == [
        ["gemm-33x17x5-fp32-cpu", PRODUCT, "", "op", "ok"],
        ["convolution-2x3x8x8-4x3x3-fp32-cpu", CONVOLUTION, "", "op", "ok"]]
    problems = record.problems
    directions = ["forward", "forward", "backward_input", "backward_weight"]
    assert list(problems["direction"]) == directions
    assert list(problems["flop"]) == [2 * 33 * 17 * 5, *[2 * 2 * 4 * 36 * 27] * 3]
    assert problems["bytes"][0] == 4 * (33 * 5 + 5 * 17 + 33 * 17)
    assert set(problems["hot"]) == {"no"}
    assert (problems["max_error"] <= problems["tolerance"]).all()
    assert problems[["suite", "set", "published_flop", "convention", "sparsity_frac", "layout"]].isna().all(axis=None)
    counts = record.repetitions.groupby(["case", "direction"], sort=False)["repetition"].agg(list)
    assert counts.tolist() == [[0, 1, 2, 3, 4, 5]] * 4
    assert (record.repetitions["host_s"] > 0).all()
    assert record.repetitions["device_s"].isna().all()
    facts = record.passes("gemm-33x17x5-fp32-cpu")["ops"]
    assert (facts["status"], facts["directions"]["forward"]["num_repetitions"]) == ("ok", 6)
    assert [told[1] for told in notes.told if told[0] == "pass"] == directions


def test_what_a_suite_says_of_a_problem_is_recorded(tmp_path: Path) -> None:
    text = "convolution:1x1x7x7:1x3x3:s2"
    record = run(tmp_path, cases_of(text, suite="deepbench", set="inference_server", forward_only=True), hot=True)
    (row,) = record.problems.to_dict("records")
    assert (row["suite"], row["set"]) == ("deepbench", "inference_server")
    assert (row["direction"], row["hot"]) == ("forward", "yes")
    assert (row["flop"], row["published_flop"]) == (2 * 3 * 3 * 9, 2 * 2.5 * 2.5 * 9)
    assert row["convention"].startswith("DeepBench: ")
    record = run(tmp_path, cases_of("gemm:2x3x4", suite="vo", set="dmm", convention="N is the inner dimension"))
    assert record.problems["convention"].tolist() == ["N is the inner dimension"]
    assert str(record.cases["source"][0]).startswith("Vo")


@pytest.mark.slow
def test_a_sparse_product_tells_its_zeros_and_layout(tmp_path: Path) -> None:
    record = run(tmp_path, cases_of("sparse_gemm:40x8x10:s0.75:coo", "sparse_gemm:40x8x10:s0.75:dense"))
    assert record.problems[["sparsity_frac", "layout", "flop"]].to_numpy().tolist() == [
        [0.75, "coo", 2 * 8 * 100], [0.75, "dense", 2 * 8 * 400]]


def test_what_does_not_fit_is_out_of_memory_and_the_run_goes_on(tmp_path: Path) -> None:
    record = run(tmp_path, cases_of(TOO_LARGE, PRODUCT))
    assert list(record.cases["status"]) == ["oom", "ok"]
    assert record.cases["reason"][0].startswith("out of memory: ")
    assert record.cases["requested_bytes"][0] == 4e12
    failed, done = record.problems.to_dict("records")
    assert (failed["flop"], failed["max_error"] > 0, done["max_error"] >= 0) == (2e18, False, True)
    assert set(record.repetitions["case"]) == {"gemm-33x17x5-fp32-cpu"}
    assert record.passes(record.cases["case"][0])["ops"]["status"] == "failed"


@needs_int8
def test_what_is_refused_has_its_reason(tmp_path: Path) -> None:
    record = run(tmp_path, cases_of(PRODUCT, CONVOLUTION, precisions=("int8",)))
    assert list(record.cases["status"]) == ["ok", "error"]
    assert "no plain int8 convolution" in record.cases["reason"][1]
    assert record.problems["bytes"][0] == 33 * 5 + 5 * 17 + 4 * 33 * 17


def test_an_error_of_one_problem_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise ValueError("no luck\nat all")

    monkeypatch.setattr(torch, "mm", broken)
    record = run(tmp_path, cases_of(PRODUCT, CONVOLUTION))
    assert list(record.cases["status"]) == ["error", "ok"]
    assert record.cases["reason"][0] == "ValueError: no luck"


def test_a_signal_keeps_what_has_finished(tmp_path: Path) -> None:
    def at_case(number: int) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    record = run(tmp_path, cases_of(PRODUCT, CONVOLUTION, "gemm:2x2x2"), Notes(at_case))
    assert list(record.cases["status"]) == ["ok", "interrupted"]
    assert record.cases["reason"][1] == "by SIGINT"
    assert set(record.repetitions["case"]) == {"gemm-33x17x5-fp32-cpu"}


def listed(text: str, suite: str | None, part: str | None = None) -> Problem:
    return replace(parse_problem(text), suite=suite, set=part)


def test_what_a_suite_lists_twice_is_two_cases_and_what_is_named_twice_one() -> None:
    problems = [listed("gemm:2x2x2", "deepbench", "training")] * 2 + [listed("gemm:2x2x2", "deepbench", "inference")]
    problems += [listed("gemm:2x2x2", None)] * 2
    assert [case.id for case in operation_cases(problems, ["fp32"], CPU)] == [
        "gemm-2x2x2-deepbench-training-fp32-cpu", "gemm-2x2x2-deepbench-training-2-fp32-cpu",
        "gemm-2x2x2-deepbench-inference-fp32-cpu", "gemm-2x2x2-fp32-cpu"]


def test_every_problem_is_a_case_in_every_precision() -> None:
    found = cases_of(PRODUCT, CONVOLUTION, precisions=("fp32", "bf16"))
    assert [case.id for case in found] == [
        "gemm-33x17x5-fp32-cpu", "gemm-33x17x5-bf16-cpu", "convolution-2x3x8x8-4x3x3-fp32-cpu",
        "convolution-2x3x8x8-4x3x3-bf16-cpu"]
