"""The device's work that no operator launched: rows of its own, so that shares are of all kernels' time."""

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.trace_reader import ReadTrace
from support.traces import TraceMaker, training

from charact.core.operator_types import WITHOUT_OPERATOR
from charact.record.manifest import CaseEntry
from charact.traces.cases import trace_case
from charact.traces.reader import read_trace

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
Case = tuple[CaseEntry, pd.DataFrame]


def case_of(made: TraceMaker, tmp_path: Path) -> Case:
    entry, tables = trace_case(read_trace(made.write(tmp_path / "made.json")), "made")
    return entry, pd.DataFrame(tables["operators"])


def spots(case: Case) -> list[str]:
    return [spot for spot in case[0].passes.timing.blind_spots if spot.startswith("operators launched")]


def replay(made: TraceMaker, at: float, correlation: int, kernels: list[tuple[str, float]],
           launch: str = "cudaGraphLaunch") -> None:
    made.event("cuda_runtime", launch, at, 5, correlation=correlation)
    for place, (name, length) in enumerate(kernels):
        made.event("kernel", name, at + 10 + 20 * place, length, 7, device=0, stream=7, correlation=correlation)


def decode() -> TraceMaker:
    """Two iterations with an operator's kernel of 10 µs, a graph of 3 kernels and 30 µs, and another once."""
    made = TraceMaker()
    for number in range(2):
        at = 1000.0 * number
        made.mark(f"ProfilerStep#{number}", at, 1000)
        made.kernel("argmax", at + 20, at + 30, 10, by=made.operator("aten::argmax", at + 10, 50))
        names = ["attention", "gemm", "gemm"] if number else ["gemm", "attention", "gemm"]
        replay(made, at + 100, 9000 + number, [(name, 10) for name in names])
    replay(made, 1500, 9100, [("prefill", 40)], "hipGraphLaunch")
    return made


def test_replays_of_a_graph_are_rows(tmp_path: Path) -> None:
    case = entry, operators = case_of(decode(), tmp_path)
    rows = operators[operators["operator_type"] == WITHOUT_OPERATOR].set_index("operator")
    assert rows[["num_calls", "self_host_s", "device_s"]].to_dict("index") == {
        "graph 1, 3 kernels": {"num_calls": 3, "self_host_s": 0, "device_s": pytest.approx(30e-6)},
        "graph 2, 1 kernel": {"num_calls": 0.5, "self_host_s": 0, "device_s": pytest.approx(20e-6)}}
    assert spots(case) == ["operators launched 16.7 % of the kernels’ time: the rest has the type “kernels without an "
                           "operator”"]
    assert entry.passes.operators.status == "ok"
    # An independent reader: all work of the device, per iteration.
    read = ReadTrace(tmp_path / "made.json")
    spent_us = float(sum(end - start for start, end in read.device()))
    assert operators["device_s"].sum() * 1e6 == pytest.approx(spent_us / 2)


def test_other_launches_without_an_operator_are_one_row(tmp_path: Path) -> None:
    made = TraceMaker()
    made.operator("aten::linear", 0, 50)
    made.kernel("triton_moe", 100, 110, 60)
    made.kernel("triton_norm", 200, 210, 30)
    made.kernel("void vllm::cross_device_reduce_1stage<half, 8>()", 300, 310, 10)
    _, operators = case_of(made, tmp_path)
    rows = operators[operators["operator"] == WITHOUT_OPERATOR].set_index("operator_type")
    assert (rows["device_s"] * 1e6).to_dict() == pytest.approx({WITHOUT_OPERATOR: 90, "communication": 10})
    assert rows.loc["communication", "phase"] == "communication"


def test_a_trace_whose_operators_launched_all_has_no_such_row(tmp_path: Path) -> None:
    case = case_of(training(), tmp_path)
    assert WITHOUT_OPERATOR not in set(case[1]["operator_type"])
    assert spots(case) == []
    made = TraceMaker()
    made.kernel("gemm", 0, 10, 90)
    entry, operators = case_of(made, tmp_path)
    assert operators.empty
    assert entry.passes.operators.status == "failed"


def test_work_outside_of_iterations_is_left_out(tmp_path: Path) -> None:
    made = decode()
    replay(made, 5000, 9200, [("late", 500)])
    _, operators = case_of(made, tmp_path)
    assert operators["device_s"].sum() == pytest.approx(60e-6)


def test_many_graphs_become_others(tmp_path: Path) -> None:
    made = TraceMaker()
    made.operator("aten::linear", 0, 50)
    for number in range(30):
        replay(made, 100.0 + 100 * number, 9000 + number, [(f"k{number}", 10)])
    _, operators = case_of(made, tmp_path)
    rows = operators[operators["operator_type"] == WITHOUT_OPERATOR]
    assert len(rows) == 21
    assert rows.set_index("operator").loc["other graphs", "num_calls"] == 10


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs recorded traces in ../shared/traces")
@pytest.mark.parametrize("name", ["h100_bert_small_infer", "h100_vit_infer", "h100_timesformer_infer"])
def test_operators_of_recorded_traces_have_all_time_of_the_device(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    _, tables = trace_case(read_trace(path), name)
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spent_us = sum(event["dur"] for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    assert sum(row["device_s"] for row in tables["operators"]) * 1e6 == pytest.approx(spent_us, rel=1e-6)
