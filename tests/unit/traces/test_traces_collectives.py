"""Collectives of a trace: bytes, groups, phases, and the time that no computation hides."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.traces import ENGINE, TraceMaker, training

from charact.record.manifest_passes import CollectivesPass
from charact.traces.cases import trace_case
from charact.traces.collectives import _exposed
from charact.traces.device_events import length_ns, union, without
from charact.traces.events import Mark
from charact.traces.reader import read_trace

MI300 = Path(__file__).resolve().parents[4] / "shared" / "traces" / "mi300_resnet_ddp_train.json.gz"
ALL_REDUCE = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000, "Out msg nelems": 1000,
              "Group size": 8, "Process Group Name": "0", "Process Group Description": "default_pg", "Seq": 41}


def collectives(made: TraceMaker, path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    entry, tables = trace_case(read_trace(made.write(path / "trace.json")), "x")
    return pd.DataFrame(tables["collectives"]), entry


def with_kernels(*kernels: tuple[float, float, dict[str, Any]], **options: Any) -> TraceMaker:
    """One iteration of 1,000 µs: a backward operator whose kernel computes from 500 to 700 µs, and NCCL's kernels."""
    made = TraceMaker()
    made.mark("ProfilerStep#5", 0, 1000)
    made.mark("charact.phase:backward", 100, 800)
    made.kernel("gemm", 460, 500, 200, by=made.operator("aten::mm", 450, 100, ENGINE), tid=ENGINE)
    for number, (start, length, args) in enumerate(kernels):
        made.kernel(options.get("name", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"), 470 + number, start, length,
                    tid=ENGINE, stream=9, **args)
    return made


class TestOnADevice:
    """NCCL's kernels and their metadata."""

    def test_all_facts_of_one(self, tmp_path: Path) -> None:
        rows, entry = collectives(with_kernels((600, 300, ALL_REDUCE)), tmp_path)
        assert entry.passes.collectives == CollectivesPass("ok")
        assert rows.to_dict("records") == [{
            "iteration": 0, "phase": "backward", "group": "default", "group_size": 8, "sequence": 41,
            "operation": "all_reduce", "bytes": 4000, "start_s": pytest.approx(470e-6), "wait_s": None,
            "exposed_s": pytest.approx(200e-6), "device_s": pytest.approx(300e-6)}]
        rows, _ = collectives(with_kernels((600, 300, ALL_REDUCE), (650, 400, ALL_REDUCE)), tmp_path)
        assert rows["exposed_s"].tolist() == pytest.approx([200e-6, 150e-6])  # 700 to 900, then 900 to 1,050
        assert rows["device_s"].tolist() == pytest.approx([300e-6, 400e-6])
        gather = ALL_REDUCE | {"Collective name": "_allgather_base", "dtype": "BFloat16", "Out msg nelems": 8000,
                               "Process Group Description": "fsdp", "Process Group Name": "7"}
        rows, _ = collectives(with_kernels((600, 10, gather)), tmp_path)
        assert rows[["operation", "bytes", "group"]].to_numpy().tolist() == [["all_gather", 16_000, "fsdp"]]
        made = with_kernels((600, 10, ALL_REDUCE))
        made.kernel("ncclDevKernel_AllReduce", 5000, 5010, 10)
        assert len(collectives(made, tmp_path)[0]) == 1
        rows, _ = collectives(training(), tmp_path)
        assert rows["iteration"].tolist() == [0, 1, 2]
        assert rows["exposed_s"].tolist() == pytest.approx([200e-6] * 3)  # 100 of 300 beside the backward's product

    def test_metadata_of_the_operator_that_launched_it(self, tmp_path: Path) -> None:
        made = with_kernels()
        called = made.operator("record_param_comms", 480, 20, ENGINE, **ALL_REDUCE)
        made.kernel("ncclDevKernel_Generic(x)", 485, 600, 50, by=called, tid=ENGINE)
        made.operator("record_param_comms", 510, 5, ENGINE, **(ALL_REDUCE | {"Collective name": "wait"}))
        rows, _ = collectives(made, tmp_path)
        assert rows[["operation", "bytes", "sequence"]].to_numpy().tolist() == [["all_reduce", 4000, 41]]
        made = with_kernels((600, 10, {}), (620, 10, {}))
        rows, _ = collectives(made, tmp_path)
        assert rows["operation"].tolist() == ["all_reduce", "all_reduce"]
        assert rows["sequence"].tolist() == [0, 1]
        assert rows["group"].tolist() == ["n/a", "n/a"]
        assert rows[["bytes", "group_size"]].isna().all(axis=None)
        spoiled = {"Group size": -8, "Seq": 2.5, "Process Group Name": 3, "Process Group Description": ""}
        rows, _ = collectives(with_kernels((600, 10, ALL_REDUCE | spoiled)), tmp_path)
        assert rows["group_size"].isna().all()
        assert rows[["group", "sequence"]].to_numpy().tolist() == [["n/a", 0]]

    @pytest.mark.parametrize("spoiled", [
        {"In msg nelems": -1, "Out msg nelems": 2**62}, {"dtype": "Strange"}, {"dtype": ["Float"]},
        {"In msg nelems": "many", "Out msg nelems": None}])
    def test_impossible_sizes_are_unknown(self, tmp_path: Path, spoiled: dict[str, Any]) -> None:
        rows, _ = collectives(with_kernels((600, 10, ALL_REDUCE | spoiled)), tmp_path)
        assert rows["bytes"].isna().all()

def test_on_a_host_a_collective_is_exposed_while_no_operator_computes(tmp_path: Path) -> None:
    made = TraceMaker()
    made.mark("ProfilerStep#5", 0, 1000)
    made.mark("charact.phase:backward", 100, 800)
    made.operator("aten::mm", 450, 150, ENGINE)
    made.operator("autograd::engine::evaluate_function: AddmmBackward0", 600, 20, ENGINE)
    made.operator("c10d::allreduce_", 650, 30, ENGINE)  # not computation
    made.operator("record_param_comms", 480, 5, ENGINE, **ALL_REDUCE)
    made.event("user_annotation", "gloo:all_reduce", 500, 250, 999)
    rows, _ = collectives(made, tmp_path)
    (row,) = rows.to_dict("records")
    assert (row["operation"], row["bytes"], row["device_s"]) == ("all_reduce", 4000, None)
    assert row["exposed_s"] == pytest.approx(130e-6)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda one: (one[0], one[0] + one[1])))


@given(SPANS, SPANS)
def test_exposed_times_sum_to_what_no_computation_covers(spans: list[tuple[int, int]],
                                                         computing: list[tuple[int, int]]) -> None:
    spans.sort()
    busy = {at for start, end in spans for at in range(start, end)}
    covered = {at for start, end in computing for at in range(start, end)}
    exposed = _exposed([Mark((1, 1), *span, "") for span in spans], computing)
    assert sum(exposed) == len(busy - covered) == length_ns(without(union(spans), union(computing)))
    assert all(0 <= alone <= end - start for alone, (start, end) in zip(exposed, spans, strict=True))


def swept(events: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Time in which only communication ran, and in which communication and computation ran (µs), by a sweep line."""
    edges = []
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memset"):
            kind = "communication" if "nccl" in event["name"].lower()[:40] else "computation"
            edges += [(event["ts"], 1, kind), (event["ts"] + event["dur"], -1, kind)]
    running = {"communication": 0, "computation": 0}
    alone = together = last = 0.0
    for at, change, kind in sorted(edges):
        if running["communication"]:
            together, alone = ((together + at - last, alone) if running["computation"] else
                               (together, alone + at - last))
        running[kind] += change
        last = at
    return alone, together


@pytest.mark.skipif(not MI300.is_file(), reason="needs recorded traces in ../shared/traces")
class TestRecorded:
    """ResNet-18 in bfloat16 on eight MI300X with DDP."""

    def test_buckets_have_the_bytes_of_all_parameters(self) -> None:
        _, tables = trace_case(read_trace(MI300), "x")
        rows = pd.DataFrame(tables["collectives"])
        reduced = rows[rows["operation"] == "all_reduce"].groupby("iteration")["bytes"].sum()
        assert reduced.tolist() == [11_689_512 * 2] * 3
        sent = rows[rows["operation"] == "broadcast"].groupby("iteration")["bytes"].sum()
        assert sent.tolist() == [2 * 4800 * 2 + 20 * 8] * 3  # mean and variance, and 20 counts of batches
        assert set(rows["group_size"]) == {8}
        assert set(rows["phase"]) == {"forward", "backward"}

    def test_exposed_and_overlapped_times_are_those_of_a_sweep_line(self) -> None:
        _, tables = trace_case(read_trace(MI300), "x")
        counters = pd.DataFrame(tables["counters"]).set_index("counter")["value"]
        alone_us, together_us = swept(json.loads(gzip.decompress(MI300.read_bytes()))["traceEvents"])
        assert counters["exposed_communication_s"] == pytest.approx(alone_us / 1e6, rel=1e-5)
        assert counters["overlapped_communication_s"] == pytest.approx(together_us / 1e6, rel=1e-5)
        # What TraceLens (commit 171dd74) printed for the same trace, in ms.
        for counter, found_ms in (("exposed_communication_s", 55.371218), ("communication_s", 71.516523),
                                  ("computation_s", 26.175002), ("busy_s", 84.002069), ("idle_s", 2.565639)):
            assert counters[counter] == pytest.approx(found_ms / 1e3, rel=1e-5)
        rows = pd.DataFrame(tables["collectives"])
        # All but the first five of 17 kernels, which were launched before the trace began.
        assert 0.5 < rows["exposed_s"].sum() / counters["exposed_communication_s"] < 1
