"""Traces that others recorded on real devices, against what AMD's TraceLens computes from the same files."""

import csv
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from charact.traces.cases import trace_case
from charact.traces.reader import read_trace

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="needs recorded traces in ../shared/traces")

INFERENCES = ("h100_bert_small_infer", "h100_vit_infer", "h100_timesformer_infer")


@cache
def case_of(name: str) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    entry, tables = trace_case(read_trace(TRACES / f"{name}.json.gz"), name)
    return entry, {table: pd.DataFrame(rows) for table, rows in tables.items()}


def of_tracelens(name: str, table: str, key: str, value: str) -> dict[str, float]:
    with (TRACES / f"{name}.tracelens_{table}.csv").open(newline="") as file:
        return {row[key]: float(row[value]) / 1e3 for row in csv.DictReader(file)}


@pytest.mark.parametrize("name", INFERENCES)
def test_the_devices_time_is_spent_as_tracelens_says(name: str) -> None:
    theirs = of_tracelens(name, "gpu_timeline", "type", "time ms")
    ours = case_of(name)[1]["counters"].set_index("counter")["value"]
    pairs = {"computation_time": "computation_s", "exposed_comm_time": "exposed_communication_s",
             "exposed_memcpy_time": "exposed_copy_s", "busy_time": "busy_s", "idle_time": "idle_s",
             "total_time": "span_s", "total_comm_time": "communication_s", "total_memcpy_time": "copy_s"}
    assert set(theirs) == set(pairs)
    assert {kind: ours[counter] for kind, counter in pairs.items()} == pytest.approx(theirs, rel=0.005, abs=1e-9)


@pytest.mark.parametrize("name", INFERENCES)
def test_operators_categories_take_as_long_as_tracelens_says(name: str) -> None:
    theirs = of_tracelens(name, "ops_by_category", "op category", "total_direct_kernel_time_ms")
    operators = case_of(name)[1]["operators"]
    types = operators.groupby("operator_type")["device_s"].sum()
    # TraceLens counts activations and copies as elementwise; its "other" holds attention, softmax, joins and the rest.
    copied = operators.loc[operators["operator"] == "aten::copy_", "device_s"].sum()
    ours = {"GEMM": types["GEMM"], "NORM_fwd": types["normalization"], "reduce": types.get("reduction", 0),
            "CONV_fwd": types.get("convolution", 0),
            "elementwise": types.get("elementwise", 0) + types.get("activation", 0) + copied}
    ours["other"] = types.sum() - sum(ours.values())
    assert {kind: ours[kind] for kind in theirs} == pytest.approx(theirs, rel=0.02)


class TestDataParallelTraining:
    NAME = "mi300_resnet_ddp_train"

    def test_phases_sum_to_each_step(self) -> None:
        rows = case_of(self.NAME)[1]["iterations"]
        steps_s = [16_799e-6, 15_951e-6, 15_887e-6]  # the trace's own ProfilerStep#15 to #17
        assert rows.groupby("iteration")["host_s"].sum().tolist() == pytest.approx(steps_s, rel=1e-4)
        found = rows.groupby("phase")[["host_s", "device_s"]].sum()
        assert set(found.index) == {"data", "forward", "loss", "backward", "update", "communication", "other"}
        assert (found >= 0).all(axis=None)
        host = found["host_s"] / found["host_s"].sum()
        assert host[["data", "forward", "backward", "update"]].gt(0).all()
        assert host["other"] < 0.01
        rows = case_of(self.NAME)[1]["iterations"]
        # The device is behind the host: the optimizer's marks of two steps, as the device ran them, are so far apart.
        optimizer_us = [49_405.6, 68_390.6, 86_946.6]
        apart = [(after - before) / 1e6 for before, after in pairwise(optimizer_us)]
        assert rows.groupby("iteration")["device_s"].sum().tolist()[1:] == pytest.approx(apart, rel=0.005)

    def test_communication_is_exposed_or_overlapped(self) -> None:
        _, tables = case_of(self.NAME)
        used = tables["counters"].set_index("counter")["value"]
        assert used["exposed_communication_s"] + used["overlapped_communication_s"] == pytest.approx(
            used["communication_s"])
        assert used["overlapped_communication_s"] > 0.1 * used["communication_s"]
        alone = tables["iterations"].query("phase == 'communication'")["device_s"].sum()
        # The trace's first 30 of 87 ms are the device's work for a step before it.
        assert 0.5 < alone / used["exposed_communication_s"] < 1

    def test_the_case_is_one_rank_of_a_training(self) -> None:
        entry, _ = case_of(self.NAME)
        assert (entry.rank, entry.world_size, entry.mode) == (0, 8, "train")
        assert entry.device_name == "AMD Instinct MI300X"
        operators = case_of(self.NAME)[1]["operators"]
        backward = operators[operators["operator"] == "aten::convolution_backward"]
        assert set(backward["phase"]) == {"backward"}
        assert backward["layer"].str.match(r"Conv2d_\d+$").all()
        forward = operators[operators["operator"] == "aten::miopen_convolution"]
        assert set(backward["layer"]) == set(forward["layer"])
