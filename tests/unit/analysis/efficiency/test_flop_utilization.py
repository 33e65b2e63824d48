"""MFU and HFU of records, and of a loop whose FLOP and sleep are known."""

import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest
import torch
from support.notes import Notes
from support.recording import recorded
from support.records import case_entry, case_tables, run_of
from support.small import TwoLayers, small_case
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from charact.analysis.efficiency import flop_utilization as module
from charact.analysis.efficiency.flop_utilization import flop_utilization
from charact.machine.datasheets import Datasheet
from charact.measure.passes.runner import run_cases
from charact.measure.passes.timing import StopRule
from charact.record.reader import Run

PEAK = 1e12
BATCH_SIZE, FEATURES = 64, 256
PRODUCT = 2 * BATCH_SIZE * FEATURES * FEATURES


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A datasheet of every device, with a peak in fp32 only."""
    monkeypatch.setattr(module, "datasheet", lambda name: Datasheet({"fp32": PEAK}, 1e9, "by hand"))


def run_with(tmp_path: Path, flop_pass: dict[str, Any] | None = None, **changes: Any) -> Run:
    entry = case_entry("resnet50", 32, "train") | changes
    entry["passes"]["flop"] |= {"recomputed_flop": 0.0} if flop_pass is None else flop_pass
    return run_of(tmp_path, (entry, case_tables("train", 32)))


def only_row(run: Run) -> "pd.Series[Any]":
    (_, row), = flop_utilization(run).iterrows()
    return row


MEDIAN_S = 0.1 * 1.0045


@pytest.mark.usefixtures("peaks")
def test_shares_are_flop_over_time_and_peak(tmp_path: Path) -> None:
    row = only_row(run_with(tmp_path, {"recomputed_flop": 6.5e10}))
    assert row["model_flop"] == 1.3e11
    assert row["peak_source"] == "by hand"
    assert row["mfu_frac"] == pytest.approx(1.3e11 / MEDIAN_S / PEAK)
    assert row["hfu_frac"] == pytest.approx(1.95e11 / MEDIAN_S / PEAK)
    assert pd.isna(row["mfu_reason"])


@pytest.mark.usefixtures("peaks")
def test_no_hfu_if_nothing_is_recomputed(tmp_path: Path) -> None:
    row = only_row(run_with(tmp_path))
    assert row["mfu_frac"] == pytest.approx(1.95e11 / MEDIAN_S / PEAK)
    assert pd.isna(row["hfu_frac"])


@pytest.mark.usefixtures("peaks")
@pytest.mark.parametrize(("flop_pass", "changes", "reason"), [
    ({"recomputed_flop": None}, {}, "lacks the recomputed FLOP"),
    (None, {"precision": "bf16"}, "the datasheet of AMD EPYC has no peak in bf16"),
    (None, {"precision": "as written"}, "precision of the program’s products was not counted"),
])
def test_a_missing_share_has_its_reason(tmp_path: Path, flop_pass: dict[str, Any] | None, changes: dict[str, Any],
                                        reason: str) -> None:
    row = only_row(run_with(tmp_path, flop_pass, **changes))
    assert reason in row["mfu_reason"]
    assert pd.isna(row["mfu_frac"])


def test_a_processor_without_datasheet_has_no_share(tmp_path: Path) -> None:
    row = only_row(run_with(tmp_path))
    assert row["mfu_reason"].startswith("no datasheet peak of AMD EPYC is known")
    assert row[["peak_flop_per_s", "mfu_frac", "hfu_frac"]].isna().all()


def test_the_peak_is_that_of_the_device_and_precision(tmp_path: Path) -> None:
    facts = {"device": "cuda:0", "device_name": "NVIDIA H100 80GB HBM3"}
    for precision, peak in (("fp32", 67e12), ("tf32", 494.5e12), ("pure-bf16", 989.5e12)):
        row = only_row(run_with(tmp_path / precision, precision=precision, **facts))
        assert row["mfu_frac"] == pytest.approx(1.95e11 / MEDIAN_S / peak)


def test_a_case_without_flop_has_the_reason_of_its_pass(tmp_path: Path) -> None:
    entry = case_entry("resnet50", 32, "train")
    entry["passes"]["flop"] = {"status": "failed", "reason": "RuntimeError: no"}
    tables = {name: rows for name, rows in case_tables("train", 32).items() if name != "flop"}
    assert only_row(run_of(tmp_path, (entry, tables)))["mfu_reason"] == "RuntimeError: no"


class Products(nn.Module):
    """A product with a square matrix, and a second one that may be computed again in the backward."""

    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(2))
        self.recomputes = recomputes

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return checkpoint(self._last, hidden, use_reentrant=False) if self.recomputes else self._last(hidden)

    def _last(self, hidden: Tensor) -> Tensor:
        return self.second(hidden).relu()  # its backward needs the product: else the recomputation would stop before it


@dataclass(kw_only=True)
class Sleepy(TwoLayers):
    """Two products and a sleep in each batch."""

    default_input_size: int = FEATURES
    recomputes: bool = False
    optimizer: Any = field(default=partial(torch.optim.SGD, lr=1e-6))

    def model(self, dataset: Any) -> nn.Module:
        return Products(recomputes=self.recomputes)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        time.sleep(0.02)
        return model(batch[0])


@pytest.mark.usefixtures("peaks")
@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("accumulate", [1, 4, 8])
def test_shares_of_a_loop_of_known_flop(tmp_path: Path, accumulate: int, recomputes: bool) -> None:
    """Forward two products; backward the gradients of both weights, and of the second layer's input."""
    case = replace(small_case("train", workload=Sleepy(recomputes=recomputes)), accumulate=accumulate)
    rule = StopRule(max_iterations=6, max_seconds=60.0)
    run = recorded(tmp_path, lambda writer, interrupt: run_cases([case], rule, writer, Notes(), interrupt))
    walls = run.iterations.groupby("iteration")["host_s"].sum().tolist()
    assert min(walls) >= 0.02 * accumulate
    row = only_row(run)
    per_second = accumulate / median(walls) / PEAK
    assert row["mfu_frac"] == pytest.approx(5 * PRODUCT * per_second, rel=0.01)
    if recomputes:
        assert row["hfu_frac"] == pytest.approx(6 * PRODUCT * per_second, rel=0.01)
    else:
        assert pd.isna(row["hfu_frac"])
