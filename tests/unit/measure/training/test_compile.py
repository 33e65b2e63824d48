"""torch.compile: models are really compiled, the time for that is told apart, and counts do not change."""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.notes import Notes
from support.recording import recorded
from support.small import TwoLayers, small_case
from torch import nn
from torch._inductor import config as inductor_config

from charact.analysis.training.stages import training_summary
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.measure.passes.runner import run_cases
from charact.measure.passes.timing import StopRule
from charact.measure.training.infer_case import InferencePlan, infer_cases
from charact.measure.training.plan import Training
from charact.measure.training.train_case import train_cases
from charact.record.reader import Run
from charact.workload.registry import find_workload

pytestmark = [
    pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # PyTorch's compiler imports what it deprecates
]


@dataclass(kw_only=True)
class Recurrent(TwoLayers):
    """A recurrent layer, which torch.compile leaves alone."""

    def model(self, dataset: Any) -> nn.Module:
        return nn.RNN(512, 10)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0])[0]


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """Leave nothing compiled to other tests."""
    yield
    torch.compiler.reset()


def run(tmp_path: Path, cases: list[Case]) -> Run:
    rule = StopRule(max_iterations=6, max_seconds=1.0)
    return recorded(tmp_path, lambda writer, interrupt: run_cases(cases, rule, writer, Notes(), interrupt))


@pytest.fixture(scope="module", params=["train", pytest.param("infer", marks=pytest.mark.slow)])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The MLP in a mode, compiled and not; ids do not tell the two apart, names do."""
    directory = tmp_path_factory.mktemp("runs")
    workload = find_workload("mlp").prepare()
    cases = [Case(workload, 8, 2 + compiled, request.param, "fp32", torch.device("cpu"), DataRequest(),
                  compiled=compiled) for compiled in (False, True)]
    return run(directory, cases)


def case_of(mode: str, *, compiled: bool) -> str:
    return f"mlp-8-b{2 + compiled}-{mode}-fp32-cpu"


@pytest.fixture
def mode(record: Run) -> str:
    return str(record.cases["mode"][0])


@pytest.mark.slow
class TestTheMLP:
    @pytest.mark.slow
    def test_every_pass_succeeds(self, record: Run, mode: str) -> None:
        for compiled in (False, True):
            assert {name: facts["status"] for name, facts in record.passes(case_of(mode, compiled=compiled)).items()
                    } == {"timing": "ok", "operators": "ok", "kernels": "skipped", "memory": "ok", "flop": "ok",
                          "counters": "skipped"}

    @pytest.mark.slow
    def test_it_is_really_compiled(self, record: Run, mode: str) -> None:
        types = record.operators.groupby("case")["operator_type"].agg(set)
        assert "compiled" in types[case_of(mode, compiled=True)]
        assert "compiled" not in types[case_of(mode, compiled=False)]
        assert "activation" not in types[case_of(mode, compiled=True)]  # fused into generated code

    @pytest.mark.slow
    def test_generated_kernels_have_their_own_time(self, record: Run, mode: str) -> None:
        rows = record.operators[record.operators["case"] == case_of(mode, compiled=True)]
        kernels = rows[rows["operator"].str.contains("cpp_fused")]
        assert (kernels["operator_type"] == "compiled").all()
        assert any("relu" in name for name in kernels["operator"])
        assert (kernels["self_host_s"] > 0).all()

    @pytest.mark.slow
    def test_products_have_the_layers_that_they_have_without_compilation(self, record: Run, mode: str) -> None:
        products = record.operators[record.operators["operator_type"] == "GEMM"]
        compiled, eager = ({(row.phase, row.layer) for row in products[products["case"] == case].itertuples()}
                           for case in (case_of(mode, compiled=True), case_of(mode, compiled=False)))
        assert compiled == eager
        assert len({layer for _, layer in eager}) == 3
        assert record.entry(case_of(mode, compiled=True)).passes.operators.kernel_layers
        assert record.entry(case_of(mode, compiled=False)).passes.operators.kernel_layers is None

    def test_compile_time_is_told_and_no_iteration_holds_it(self, record: Run, mode: str) -> None:
        compile_s = record.passes(case_of(mode, compiled=True))["timing"]["compile_s"]
        walls_s = record.iterations.groupby(["case", "iteration"])["host_s"].sum()[case_of(mode, compiled=True)]
        assert compile_s > 0
        assert compile_s > 5 * walls_s.max()
        assert record.passes(case_of(mode, compiled=False))["timing"]["compile_s"] is None

    def test_the_work_is_the_same_and_none_of_it_is_unplaced(self, record: Run, mode: str) -> None:
        flop = record.flop.groupby("case")["flop"].sum()
        placed = record.operators.groupby("case")["flop"].sum()
        compiled, eager = case_of(mode, compiled=True), case_of(mode, compiled=False)
        assert flop[compiled] / 3 == flop[eager] / 2  # a sample's
        assert placed[compiled] == flop[compiled]
        assert record.passes(compiled)["flop"]["unplaced_flop"] == 0

    def test_memory_is_measured(self, record: Run, mode: str) -> None:
        peak = record.memory.query("kind == 'peak'").set_index(["case", "category"])["bytes"]
        for compiled in (False, True):
            assert peak[case_of(mode, compiled=compiled), "weights"] == 4 * (192 * 512 + 512 * 512 + 512 * 10 + 1034)


def test_a_prediction_of_a_compiled_model_tells_its_compilation_apart(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tracing is compilation enough; code in C++ takes seconds for each shape.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    cases, plan = [small_case("infer", batch_size=100, compiled=True)], InferencePlan(num_warm_loads=1)
    record = recorded(tmp_path, lambda writer, interrupt: infer_cases(cases, plan, writer, Notes(), interrupt))
    (entry,) = record.entries
    assert entry.status == "ok", entry.reason
    walls_s = record.iterations.groupby("iteration")["host_s"].sum()
    assert len(walls_s) == 3  # the last one of 56 samples, a shape of its own
    assert entry.passes.inference.compile_s > 5 * walls_s.max()


@pytest.mark.slow
def test_a_training_of_a_compiled_model_tells_what_part_of_it_was_compilation(tmp_path: Path) -> None:
    training = Training(small_case("train", batch_size=100, compiled=True), 2, validation="valid")
    run = recorded(tmp_path, lambda writer, interrupt: train_cases([training], writer, Mock(), interrupt))
    assert run.entries[0].status == "ok", run.entries[0].reason
    walls_s = run.stages.groupby(["number", "stage"])["host_s"].sum()
    # Training and validation compile for themselves, and again for the last batch, which is smaller; epoch 2 does not.
    compiling = walls_s[1, "training"] + walls_s[1, "validation"] - walls_s[2, "training"] - walls_s[2, "validation"]
    assert training_summary(run)["compile_s"][0] == pytest.approx(compiling, rel=0.2)


def test_a_model_that_is_left_as_it_was_is_not_measured_as_compiled(tmp_path: Path) -> None:
    cases = [small_case("infer", workload=Recurrent(), compiled=True), small_case("infer", batch_size=32)]
    refused, ok = run(tmp_path, cases).manifest["cases"]
    assert (refused["status"], ok["status"]) == ("error", "ok")
    assert refused["reason"] == ("RuntimeError: torch.compile compiled no part of this model (it cannot compile "
                                 "PyTorch's recurrent layers): leave --compile out")


def test_a_compilation_that_fails_is_the_cases_error_in_one_line(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho out of ideas >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))  # nothing is compiled yet
    begun = time.perf_counter()
    # Not monkeypatch.setattr, which would delete the setting at its end, and with it later compilations.
    with inductor_config.patch({"cpp.cxx": (str(broken),)}):
        failed, ok = run(tmp_path / "runs", [small_case("infer", compiled=True),
                                             small_case("infer", batch_size=32)]).manifest["cases"]
    assert time.perf_counter() - begun < 60
    assert (failed["status"], ok["status"]) == ("error", "ok")
    assert "\n" not in failed["reason"]
    assert "ompil" in failed["reason"]
