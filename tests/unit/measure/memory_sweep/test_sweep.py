"""Cases looked at for their memory: predicted, measured, not run where they cannot fit; and searches for what does."""

import os
import re
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.notes import Notes
from support.recording import recorded
from support.small import TwoLayers, small_case
from torch import Tensor, nn

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case, cases_of
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.target_devices import target_of_memory
from charact.measure.memory_sweep.largest_fit import FitPlan, run_fits
from charact.measure.memory_sweep.sweep import MemoryPlan, run_memory_cases
from charact.record.reader import Run
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model

MIB = 2**20
AMPLE, TIGHT = target_of_memory(1000 * MIB, "cpu"), target_of_memory(1_700_000, "cpu")
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's data")


@dataclass(kw_only=True)
class Reads(TwoLayers):
    """Computes what a number of a tensor says."""

    name: str = "reads"

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]) * (1.0 if batch[0].sum().item() > 0 else 2.0)


@dataclass(kw_only=True)
class Pairs(TwoLayers):
    """Takes no single sample, as a batch norm does."""

    name: str = "pairs"

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        if len(batch[0]) < 2:
            raise ValueError("needs two samples")
        return model(batch[0])


@dataclass(kw_only=True)
class Patches(TwoLayers):
    """Takes multiples of 96 features."""

    smallest_input_size: int = 96
    input_size_step: int = 96


@dataclass(kw_only=True)
class Long(TwoLayers):
    """Takes 40,000 features at most."""

    longest_input_size: int | None = 40_000


class Short(nn.Sequential):
    """A user's language model for 20 words at most."""

    config = SimpleNamespace(max_position_embeddings=20)

    def __init__(self) -> None:
        super().__init__(nn.Embedding(9, 4), nn.Linear(4, 9))


def looked_at(tmp_path: Path, cases: list[Case], plan: MemoryPlan, notes: Notes | None = None) -> Run:
    return recorded(tmp_path, lambda writer, interrupt: run_memory_cases(
        cases, plan, writer, notes or Notes(), interrupt))


def searched(tmp_path: Path, case: Case, plan: FitPlan) -> tuple[dict[str, Any], Run]:
    run = recorded(tmp_path, lambda writer, interrupt: run_fits([case], plan, writer, Notes(), interrupt))
    (row,) = run.table("fits").astype(object).where(run.table("fits").notna(), None).to_dict("records")
    return row, run


def peaks(run: Run, method: str) -> dict[str, float]:
    rows = run.memory[(run.memory["kind"] == "peak") & (run.memory["method"] == method)]
    return {str(case): float(num_bytes) for case, num_bytes in rows.groupby("case")["bytes"].sum().items()}


def test_cases_are_predicted_and_measured(tmp_path: Path) -> None:
    notes = Notes()
    run = looked_at(tmp_path, [small_case("train"), small_case("infer")], MemoryPlan(AMPLE), notes)
    assert list(run.cases["status"]) == ["ok", "ok"]
    assert notes.told[:4] == [("case", "two_layers-512-b64-train-fp32-cpu", 1, 2), ("pass", "prediction"),
                              ("pass", "memory"), ("ended", "ok")]
    measured, predicted = (peaks(run, method) for method in ("measured", "predicted"))
    assert measured == pytest.approx(predicted, rel=0.001)
    assert set(run.cases["num_parameters"]) == {512 * 256 + 256 * 10}
    for case in run.cases["case"]:
        passes = run.passes(case)
        assert passes["memory"]["peak_bytes"] == measured[case]
        assert passes["prediction"]["peak_bytes"] == predicted[case]
        assert passes["prediction"]["fits"] is True


def test_what_is_predicted_only_is_not_run(tmp_path: Path) -> None:
    notes = Notes()
    run = looked_at(tmp_path, [small_case()], MemoryPlan(AMPLE, measure=False), notes)
    (entry,) = run.manifest["cases"]
    assert (entry["status"], entry["reason"]) == ("ok", None)
    assert entry["passes"]["memory"] == {"status": "skipped", "reason": "predicted only"}
    assert ("pass", "memory") not in notes.told
    assert set(run.memory["method"]) == {"predicted"}


def test_what_is_measured_only_is_not_predicted(tmp_path: Path) -> None:
    run = looked_at(tmp_path, [small_case()], MemoryPlan(AMPLE, predict=False))
    (entry,) = run.manifest["cases"]
    assert set(entry["passes"]) == {"memory"}
    assert set(run.memory["method"]) == {"measured"}


def test_a_case_that_cannot_fit_is_not_run_and_names_the_search(tmp_path: Path) -> None:
    notes = Notes()
    run = looked_at(tmp_path, [small_case(), small_case("infer")],
                    MemoryPlan(TIGHT, fit_command="charact memory two_layers --fit"), notes)
    train, infer = run.manifest["cases"]
    assert (train["status"], infer["status"]) == ("oom", "ok")
    assert train["reason"].startswith("predicted to need ")
    assert train["reason"].endswith(" of the 1.621 MiB of a CPU with 0.001583 GiB")
    assert notes.told.count(("pass", "memory")) == 1
    assert train["passes"]["memory"] == {"status": "skipped", "reason": "predicted not to fit"}
    told = train["out_of_memory"]
    assert told["composition_source"] == "predicted"
    assert sum(told["composition"].values()) == train["passes"]["prediction"]["peak_bytes"]
    assert told["limit_bytes"] == TIGHT.memory_bytes
    assert told["fits"] == {"batch_size": None, "input_size": None}
    assert told["fits_reason"] == "not searched: charact memory two_layers --fit"
    assert [told for told in notes.told if told[0] == "pass"] == [
        ("pass", "prediction"), ("pass", "prediction"), ("pass", "memory")]


def test_the_parts_of_what_a_gpu_needs_are_named_and_add_up(tmp_path: Path) -> None:
    target = target_of_memory(800 * MIB, "cuda")
    run = looked_at(tmp_path, [small_case()], MemoryPlan(target, measure=False))
    (entry,) = run.manifest["cases"]
    facts = entry["passes"]["prediction"]
    parts = re.fullmatch(r"predicted to need (.+) MiB \((.+) MiB allocated, (.+) MiB reserved in addition, (.+) MiB "
                         r"CUDA context\) of the 800 MiB of .*", entry["reason"])
    assert parts is not None, entry["reason"]
    needed, allocated, unused, context = map(float, parts.groups())
    assert needed * MIB == pytest.approx(facts["needed_bytes"], rel=1e-3)
    assert allocated * MIB == pytest.approx(facts["peak_bytes"], rel=1e-3)
    assert context * MIB == pytest.approx(target.context_high_bytes, rel=1e-3)
    assert allocated + unused + context == pytest.approx(needed, rel=1e-3)


@pytest.mark.fresh_process
@linux
@pytest.mark.slow
def test_a_case_that_runs_out_is_told_what_was_held_and_the_sweep_goes_on(tmp_path: Path) -> None:
    plan = MemoryPlan(TIGHT, predict=False, limit_bytes=20 * MIB)
    wide = small_case(workload=TwoLayers(default_input_size=40_000), batch_size=128)
    run = looked_at(tmp_path, [wide, small_case("infer")], plan)
    failed, ok = run.manifest["cases"]
    assert (failed["status"], ok["status"]) == ("oom", "ok")
    assert failed["passes"]["memory"]["status"] == "skipped"
    told = failed["out_of_memory"]
    assert told["limit_bytes"] == 20 * MIB
    assert told["requested_bytes"] == failed["requested_bytes"] > 0
    assert told["fits_reason"].startswith("not searched: ")
    assert set(run.memory["case"]) == {ok["case"]}


def test_what_cannot_be_predicted_is_measured_all_the_same(tmp_path: Path) -> None:
    run = looked_at(tmp_path, [small_case(workload=Reads())], MemoryPlan(AMPLE))
    (entry,) = run.manifest["cases"]
    assert entry["status"] == "ok"
    assert entry["passes"]["prediction"]["status"] == "failed"
    assert "aten._local_scalar_dense" in entry["passes"]["prediction"]["reason"]
    assert entry["passes"]["memory"]["status"] == "ok"


def test_what_can_only_be_predicted_and_cannot_is_an_error_with_its_reason(tmp_path: Path) -> None:
    run = looked_at(tmp_path, [small_case(workload=Reads()), small_case()], MemoryPlan(AMPLE, measure=False))
    failed, ok = run.manifest["cases"]
    assert (failed["status"], ok["status"]) == ("error", "ok")
    assert failed["reason"].startswith("the memory of reads cannot be estimated: ")
    assert failed["reason"].endswith("run it with --measure")


def test_a_signal_ends_the_run_and_keeps_the_finished_cases(tmp_path: Path) -> None:
    def at_case(number: int) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    cases = [small_case(), small_case("infer"), small_case("infer", batch_size=7)]
    run = looked_at(tmp_path, cases, MemoryPlan(AMPLE, measure=False), Notes(at_case))
    assert list(run.cases["status"]) == ["ok", "interrupted"]


class TestSearches:
    def test_the_largest_batch_fits_and_the_next_does_not(self, tmp_path: Path) -> None:
        row, run = searched(tmp_path, small_case(batch_size=1), FitPlan("batch_size", MemoryPlan(TIGHT, measure=False)))
        assert row["case"] == f"two_layers-512-b{row['value']}-train-fp32-cpu"
        assert row["needed_bytes"] <= TIGHT.memory_bytes < row["next_needed_bytes"]
        assert row["margin_bytes"] == TIGHT.memory_bytes - row["needed_bytes"]
        assert row["next_value"] == row["value"] + 1
        assert row["verified"] is None
        (entry,) = run.manifest["cases"]
        assert entry["status"] == "ok"
        assert entry["passes"]["fit"]["ended_by"] == "memory"
        assert entry["passes"]["prediction"]["needed_bytes"] == row["needed_bytes"]
        assert peaks(run, "predicted") == {row["case"]: entry["passes"]["prediction"]["peak_bytes"]}
        assert entry["passes"]["fit"]["num_predictions"] <= 6

    @pytest.mark.slow
    def test_the_largest_input(self, tmp_path: Path) -> None:
        plan = FitPlan("input_size", MemoryPlan(TIGHT, measure=False))
        row, _ = searched(tmp_path, small_case(batch_size=8), plan)
        assert row["case"].startswith(f"two_layers-{row['value']}-b8-")
        assert row["needed_bytes"] <= TIGHT.memory_bytes < row["next_needed_bytes"]
        for value, needed_bytes in ((row["value"], row["needed_bytes"]), (row["next_value"], row["next_needed_bytes"])):
            alone = replace(small_case(batch_size=8), input_size=value)
            assert Estimator(TIGHT).estimate(alone).needed_bytes == needed_bytes

    def test_the_longest_input_of_the_network_is_reached(self, tmp_path: Path) -> None:
        case = small_case("infer", batch_size=1, workload=Long())
        row, run = searched(tmp_path, case, FitPlan("input_size", MemoryPlan(AMPLE, measure=False)))
        assert (row["value"], row["next_value"]) == (40_000, None)
        assert row["needed_bytes"] == Estimator(AMPLE).estimate(replace(case, input_size=40_000)).needed_bytes
        fit = run.passes(row["case"])["fit"]
        assert fit["ended_by"] == "input size 40001 is too large for two_layers (takes at most 40000)"
        assert fit["num_predictions"] <= 8

    def test_a_network_without_a_longest_input_is_searched_up_to_a_limit(self, tmp_path: Path) -> None:
        plan = FitPlan("input_size", MemoryPlan(AMPLE, measure=False))
        row, run = searched(tmp_path, small_case("infer", batch_size=1), plan)
        assert (row["value"], row["next_value"]) == (16_384, None)
        assert run.passes(row["case"])["fit"]["ended_by"] == "the limit of a search is 16,384"

    def test_the_largest_input_is_a_multiple_of_the_step(self, tmp_path: Path) -> None:
        plan = FitPlan("input_size", MemoryPlan(TIGHT, measure=False))
        case = replace(small_case(batch_size=8, workload=Patches()), input_size=96)
        row, run = searched(tmp_path, case, plan)
        assert row["value"] > row["value"] % 96 == 0
        assert row["next_value"] == row["value"] + 96
        assert row["needed_bytes"] <= TIGHT.memory_bytes < row["next_needed_bytes"]
        assert row["case"] == f"two_layers-{row['value']}-b8-train-fp32-cpu"
        assert run.passes(row["case"])["fit"]["ended_by"] == "memory"

    def test_a_search_that_the_data_end(self, tmp_path: Path) -> None:
        row, run = searched(tmp_path, small_case(batch_size=1), FitPlan("batch_size", MemoryPlan(AMPLE, measure=False)))
        assert row["value"] == 256
        assert row["next_value"] is None
        assert run.passes(row["case"])["fit"]["ended_by"].startswith("batch size 257 is larger than the 256 samples")

    def test_a_network_that_takes_no_single_sample_and_of_which_two_do_not_fit(self, tmp_path: Path) -> None:
        plan = FitPlan("batch_size", MemoryPlan(target_of_memory(1000, "cpu"), measure=False))
        row, run = searched(tmp_path, small_case(batch_size=1, workload=Pairs()), plan)
        assert (row["value"], row["next_value"]) == (None, 2)
        assert [entry["status"] for entry in run.manifest["cases"]] == ["oom"]

    def test_nothing_fits(self, tmp_path: Path) -> None:
        plan = FitPlan("batch_size", MemoryPlan(target_of_memory(1000, "cpu"), measure=False))
        row, run = searched(tmp_path, small_case(batch_size=1), plan)
        assert row["value"] is None
        assert row["next_value"] == 1
        (entry,) = run.manifest["cases"]
        assert entry["status"] == "oom"
        assert entry["reason"].startswith("predicted to need ")

    def test_a_search_that_the_users_model_ends(self, tmp_path: Path) -> None:
        workload = own_model(f"{__name__}:Short", "", parse_input_spec("int64[9] S"), None, "SGD", 0.1).prepare()
        (case,) = cases_of(workload, [1], [2], ["prefill"], ["fp32"], [4], ["none"], device=torch.device("cpu"),
                           data=DataRequest())
        row, run = searched(tmp_path, case, FitPlan("input_size", MemoryPlan(AMPLE, measure=False)))
        assert (row["value"], row["next_value"]) == (16, None)
        assert run.passes(row["case"])["fit"]["ended_by"] == (
            "input size 17 with output size 4 is too large for Short (takes at most 20)")

    @linux
    @pytest.mark.slow
    def test_what_was_found_is_run_and_so_is_the_next(self, tmp_path: Path) -> None:
        wide = small_case("infer", workload=TwoLayers(default_input_size=100_000), batch_size=1)
        target = target_of_memory(160 * MIB, "cpu")
        row, run = searched(tmp_path, wide, FitPlan("batch_size", MemoryPlan(target, limit_bytes=160 * MIB)))
        assert row["verified"] == "ok"
        assert row["next_verified"] in ("ok", "oom")
        found, following = run.manifest["cases"]
        assert found["batch_size"] + 1 == following["batch_size"] == row["next_value"]
        assert found["passes"]["memory"]["peak_bytes"] <= 160 * MIB
        assert following["status"] == row["next_verified"]
