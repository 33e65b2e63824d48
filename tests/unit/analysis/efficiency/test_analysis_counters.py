"""What counters of records with known numbers say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.counter_records import (
    CEILING_FLOP_PER_S,
    POWERS_W,
    cpu_entry,
    cpu_tables,
    described,
    gpu_entry,
    gpu_tables,
    row,
    write_cpu,
    write_gpu,
)
from support.records import case_entry, case_tables

from charact.analysis.efficiency import utilization as utilization_analysis
from charact.analysis.efficiency.counters import (
    counter_ranges,
    counter_sources,
    counter_spans,
    counter_timeline,
    counter_values,
    counters_by_kernel,
    counters_by_phase,
    missing_counters,
    thinned,
)
from charact.analysis.efficiency.kernels import counted_kernels, top_kernels
from charact.analysis.efficiency.utilization import energy_reason, utilization
from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.record.schema import Rows
from charact.record.writer import RunWriter

ANALYSES: list[Callable[[Run], pd.DataFrame]] = [
    counter_values, counters_by_phase, counters_by_kernel, counter_timeline,
    counter_ranges, counter_spans, counter_sources, missing_counters,
    utilization_analysis.energy, top_kernels, counted_kernels,
]  # fmt: skip
GPU, CPU = "resnet50-224-b8-train-bf16-cuda", "resnet50-32-b8-train-fp32-cpu"


def run_of(tmp_path: Path, entry: dict[str, Any], tables: dict[str, Rows], **facts: Any) -> Run:
    writer = RunWriter(tmp_path, "r", described() | facts)
    writer.add_case(typed_entry(entry), tables)
    return load_run(writer.close("complete"))


@pytest.fixture
def gpu(tmp_path: Path) -> Run:
    return load_run(write_gpu(tmp_path))


@pytest.fixture
def cpu(tmp_path: Path) -> Run:
    return load_run(write_cpu(tmp_path))


def value_of(frame: pd.DataFrame, **where: str) -> Any:
    for column, wanted in where.items():
        frame = frame[frame[column] == wanted]
    assert len(frame) == 1
    return frame.iloc[0]


class TestCounterValues:
    def test_values_over_the_pass(self, gpu: Run, tmp_path: Path) -> None:
        values = counter_values(gpu)
        power = value_of(values, source="nvml", counter="power_w")
        assert power["value"] == pytest.approx(sum(POWERS_W) / 40)
        assert power["num_samples"] == 40
        energy = value_of(values, source="nvml", counter="energy_j")
        assert energy["value"] == 600.0
        assert pd.isna(energy["num_samples"])
        values = counter_values(gpu)
        assert value_of(values, source="ncu", counter="flop_per_s")["value"] == 8e12
        assert value_of(values, source="pm", counter="warp_occupancy_frac")["value"] == 0.62
        rows = [row("host", "rss_bytes", 7.0), row("host", "rss_bytes", 1.0, time_s=0.1, phase="forward")]
        values = counter_values(run_of(tmp_path, cpu_entry(), {"counters": rows}))
        assert values[["value", "num_samples"]].fillna(-1).to_numpy().tolist() == [[7.0, -1]]
        rows = [row("kineto", "busy_s", float(number), rank=rank, device=device) for number, (rank, device) in
                enumerate([(None, "cuda:0"), (None, "cuda:1"), (1, "cuda:0")])]  # fmt: skip
        values = counter_values(run_of(tmp_path, gpu_entry(), {"counters": rows}))
        assert values["value"].tolist() == [0.0, 1.0, 2.0]

def test_samples_phases_kernels_and_ranges(gpu: Run) -> None:
    values = counters_by_phase(gpu)
    occupancy = value_of(values, source="pm", counter="warp_occupancy_frac", phase="forward")
    assert occupancy["value"] == pytest.approx(0.558)
    used = values[(values["source"] == "nvml") & (values["counter"] == "utilization_frac")]
    assert dict(zip(used["phase"], used["value"], strict=True)) == pytest.approx({"forward": 0.9, "backward": 1.0})
    assert set(used["num_samples"]) == {20}
    assert "ncu" not in set(values["source"])
    assert list(values["phase"].unique()) == ["forward", "backward"]
    rows = counters_by_kernel(gpu)
    assert len(rows) == 2 * 2 * 6
    spent = value_of(rows, kernel="renamed<1>", phase="backward", counter="kernel_s")
    assert (spent["value"], spent["source"]) == (0.01, "ncu")
    rows = counter_timeline(gpu).query("source == 'nvml' and counter == 'power_w'")
    assert rows["value"].tolist() == POWERS_W
    assert rows["time_s"].is_monotonic_increasing
    assert set(rows["phase"]) == {"forward", "backward"}
    power = value_of(counter_ranges(gpu), counter="power_w")
    assert (power["lowest"], power["highest"]) == (min(POWERS_W), max(POWERS_W))
    assert (power["mean"], power["num_samples"]) == (pytest.approx(sum(POWERS_W) / 40), 40)
    spans = counter_spans(gpu)
    assert len(spans) == 20 * 5
    assert (spans["end_s"] - spans["start_s"]).groupby(spans["phase"]).mean()["backward"] == pytest.approx(0.05)


@pytest.mark.parametrize(("num_rows", "values", "times"), [
    (2, [1.0, 3.5], [2.0, 4.0]), (3, [0.5, 2.5, 4.0], [1.0, 3.0, 4.0]), (5, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
    (9, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
])  # fmt: skip
def test_thinned_samples_are_means_at_the_time_of_their_last(num_rows: int, values: list[float],
                                                             times: list[float]) -> None:  # fmt: skip
    samples = pd.DataFrame({"time_s": range(5), "value": range(5)}, dtype="float64")
    thin = thinned(samples, num_rows)
    assert (thin["value"].tolist(), thin["time_s"].tolist()) == (values, times)


def test_sources_that_gave_nothing_have_reason_and_remedy(gpu: Run) -> None:
    sources = counter_sources(gpu)
    assert sources.loc[sources["status"] == "ok", "source"].tolist() == ["host", "kineto", "pm", "nvml", "gpm", "ncu"]
    rapl = value_of(sources, source="rapl")
    assert (rapl["reason"], rapl["remedy"]) == ("its files are for administrators only", "run as root")
    assert pd.isna(value_of(sources, source="perf")["remedy"])
    missing = missing_counters(gpu)
    assert missing["counter"].tolist() == ["flop_per_s", "pcie_sent_bytes_per_s"]


class TestUtilization:
    def test_the_preferred_source_is_taken(self, gpu: Run) -> None:
        used = utilization(gpu).set_index("metric")
        assert used["value"].tolist() == [0.62, 0.97, 0.91, 0.35, 8e12]
        assert used["source"].tolist() == ["pm", "pm", "pm", "pm", "ncu"]
        assert used.loc["flop_per_s", "value_frac"] == pytest.approx(8e12 / CEILING_FLOP_PER_S)
        assert used["method"].tolist() == ["sampled"] * 4 + ["measured"]
        assert used["reason"].isna().all()

    @pytest.mark.parametrize(("without", "occupancy", "source", "method"), [
        (("pm",), 0.6, "ncu", "measured"), (("pm", "ncu"), 0.5, "gpm", "estimated"),
        (("pm", "ncu", "gpm"), 0.45, "kineto", "estimated"),
    ])  # fmt: skip
    def test_the_next_source_where_one_gave_nothing(self, tmp_path: Path, without: tuple[str, ...], occupancy: float,
                                                    source: str, method: str) -> None:  # fmt: skip
        entry, tables = gpu_entry(), gpu_tables()
        tables["counters"] = [each for each in tables["counters"] if each["source"] not in without]
        used = utilization(run_of(tmp_path, entry, tables)).set_index("metric").loc["warp_occupancy_frac"]
        assert used["value"] == pytest.approx(occupancy, rel=0.01)
        assert (used["source"], used["method"]) == (source, method)

    def test_a_rate_that_was_not_counted_is_modelled(self, cpu: Run) -> None:
        rate = value_of(utilization(cpu), metric="flop_per_s")
        assert rate["value"] == pytest.approx(195e9 / 0.10045)  # FLOP of the record over its median iteration
        assert rate["ideal"] > 100e9  # layers of the record exceed the measured ceiling, and raise it
        assert rate["value_frac"] == pytest.approx(rate["value"] / rate["ideal"])
        assert rate["value_frac"] < 1
        assert (rate["source"], rate["method"]) == ("flop pass", "modelled")
        used = utilization(cpu).set_index("metric")
        assert set(used["reason"].iloc[:3]) == {"a CPU has no warps"}
        assert used.loc["bandwidth_utilization_frac", "reason"] == "a CPU has no counter for it"
        assert used["value"].iloc[:4].isna().all()

    def test_what_is_missing_says_why_of_each_source(self, tmp_path: Path) -> None:
        entry, tables = gpu_entry(), gpu_tables()
        sources = entry["passes"]["counters"]["sources"]
        sources["pm"] |= {"status": "n/a", "reason": "for administrators only"}
        sources["gpm"]["missing"] = {"bandwidth_utilization_frac": "not on this GPU"}
        del sources["ncu"]
        tables["counters"] = [each for each in tables["counters"] if each["source"] in ("nvml", "kineto")]
        used = utilization(run_of(tmp_path, entry, tables)).set_index("metric")
        unasked = "not requested: --counters ncu"
        assert used.loc["nonpredicated_efficiency_frac", "reason"] == f"pm: for administrators only; {unasked}"
        assert used.loc["bandwidth_utilization_frac", "reason"] == (
            f"pm: for administrators only; gpm: not on this GPU; {unasked}")
        assert used.loc["warp_occupancy_frac", "source"] == "kineto"

    def test_a_rate_without_a_ceiling_says_why_it_has_no_share(self, tmp_path: Path) -> None:
        unmeasured = {"ceilings": [], "ceilings_reason": "not measured here: charact doctor --ceilings"}
        run = run_of(tmp_path, gpu_entry(), gpu_tables(), **unmeasured)
        rate = value_of(utilization(run), metric="flop_per_s")
        assert (rate["value"], rate["reason"]) == (8e12, unmeasured["ceilings_reason"])
        assert pd.isna(rate["value_frac"])
        entry = gpu_entry() | {"precision": "fp16"}
        rate = value_of(utilization(run_of(tmp_path / "b", entry, gpu_tables())), metric="flop_per_s")
        assert "fp16" in rate["reason"]
        run = run_of(tmp_path, gpu_entry() | {"precision": "pure-bf16"}, gpu_tables())
        assert value_of(utilization(run), metric="flop_per_s")["ideal"] == CEILING_FLOP_PER_S
        failed = case_entry("r", 32, "train", status="error", reason="model broke") | {"device": "cuda"}
        run = run_of(tmp_path, failed, {})
        assert set(utilization(run)["reason"]) == {"model broke"}

class TestEnergy:
    def test_energy_of_an_iteration_and_a_sample(self, gpu: Run, cpu: Run) -> None:
        (spent,) = utilization_analysis.energy(gpu).to_dict("records")
        assert spent["energy_per_iteration_j"] == pytest.approx(600 / 20)
        assert spent["energy_per_sample_j"] == pytest.approx(600 / 20 / 8)
        assert spent["power_w"] == pytest.approx(sum(POWERS_W) / 40)
        assert (spent["device"], spent["source"]) == ("cuda:0", "nvml")
        (spent,) = utilization_analysis.energy(cpu).to_dict("records")
        assert (spent["energy_per_iteration_j"], spent["power_w"]) == (2.5, 25.0)

    def test_power_alone_gives_no_energy(self, tmp_path: Path) -> None:
        tables = gpu_tables()
        tables["counters"] = [each for each in tables["counters"] if each["counter"] != "energy_j"]
        entry = gpu_entry()
        (spent,) = utilization_analysis.energy(run_of(tmp_path, entry, tables)).to_dict("records")
        assert spent["reason"] == "only power was read"
        assert pd.isna(spent["energy_per_iteration_j"])
        entry["passes"]["counters"]["sources"]["nvml"]["missing"] = {"energy_j": "Pascal does not tell"}
        (spent,) = utilization_analysis.energy(run_of(tmp_path / "b", entry, tables)).to_dict("records")
        assert spent["reason"] == "Pascal does not tell"

    def test_why_nothing_tells_it(self, cpu: Run, tmp_path: Path) -> None:
        assert energy_reason(cpu) is None
        entry = cpu_entry()
        entry["passes"]["counters"]["sources"]["rapl"] |= {"status": "n/a", "reason": "for administrators only"}
        assert energy_reason(run_of(tmp_path, entry, {})) == "rapl: for administrators only"
        del entry["passes"]["counters"]
        assert energy_reason(run_of(tmp_path / "b", entry, {})) == "not measured: use --counters auto"

    def test_no_energy_of_a_sample_where_the_batch_size_is_not_told(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, cpu_entry() | {"batch_size": None}, cpu_tables())
        (spent,) = utilization_analysis.energy(run).to_dict("records")
        assert spent["energy_per_iteration_j"] == 2.5
        assert pd.isna(spent["energy_per_sample_j"])


@pytest.mark.parametrize("analyse", ANALYSES, ids=lambda analyse: analyse.__name__)
class TestContract:
    def test_a_record_of_before_there_was_a_counter_pass(self, tmp_path: Path,
                                                         analyse: Callable[[Run], pd.DataFrame]) -> None:  # fmt: skip
        writer = RunWriter(tmp_path, "r", {})
        writer.add_case(typed_entry(case_entry("r", 32, "train")), case_tables("train", 32))
        found = analyse(load_run(writer.close("complete")))
        assert found["case"].tolist() == (["r-32-b8-train-fp32-cpu"] if analyse is counter_values else [])


def test_utilization_of_an_older_record_and_of_none(tmp_path: Path) -> None:
    assert utilization(load_run(RunWriter(tmp_path, "r", {}).close("complete"))).empty
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(typed_entry(case_entry("r", 32, "train") | {"device": "cuda"}), case_tables("train", 32))
    used = utilization(load_run(writer.close("complete"))).set_index("metric")
    assert set(used["reason"].iloc[:4]) == {"not measured"}
    assert "no ceilings were measured" in used.loc["flop_per_s", "reason"]
