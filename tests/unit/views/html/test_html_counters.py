"""Utilization, energy, kernels and counters in the report: their numbers, and what stands where there are none."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import counter_records as made
from support.damage import unseal
from support.records import case_entry, case_tables, manifest

from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.record.schema import Rows
from charact.record.writer import RunWriter
from charact.views.html.report import render, sections
from charact.views.sections.profile import counters, kernels, utilization
from charact.views.tables.counter_text import counter_name, counter_value

BUILDERS = {"utilization": utilization.SECTION.html, "counters": counters.SECTION.html, "kernels": kernels.SECTION.html}


def html_of(run: Run, name: str) -> str:
    return render("section.html.j2", body=BUILDERS[name](run))


def run_of(tmp_path: Path, entry: dict[str, Any], tables: dict[str, Rows], **facts: Any) -> Run:
    writer = RunWriter(tmp_path, "r", made.described() | facts)
    writer.add_case(typed_entry(entry), tables)
    return load_run(writer.close("complete"))


def figures(html: str) -> list[str]:
    return re.findall(r'<div class="ch-large">.*?</div>', html, re.DOTALL)


def texts(html: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", html)


class TestUtilization:
    def test_the_five_stand_in_the_figure_with_their_source(self, tmp_path: Path) -> None:
        html = html_of(load_run(made.write_gpu(tmp_path)), "utilization")
        words = texts(figures(html)[0])
        for text in ("62.0 %", "97.0 %", "91.0 %", "35.0 %", "8.00 TFLOP/s, 40.0 %", "ncu, measured",
                     "Non-predicated execution efficiency"):
            assert text in words
        assert words.count("pm, sampled") == 4
        assert "Not measured" not in html

    def test_what_a_cpu_has_not_is_no_zero(self, tmp_path: Path) -> None:
        html = html_of(load_run(made.write_cpu(tmp_path)), "utilization")
        words = texts(figures(html)[0])
        assert "0.0 %" not in words
        assert not [word for word in words if "warp" in word]
        assert "n/a (a CPU has no warps)" in html

    def test_a_metric_that_some_cases_lack_says_in_how_many(self, tmp_path: Path) -> None:
        writer = RunWriter(tmp_path, "r", made.described())
        writer.add_case(typed_entry(made.gpu_entry()), made.gpu_tables())
        writer.add_case(typed_entry(made.cpu_entry()), made.cpu_tables())
        html = html_of(load_run(writer.close("complete")), "utilization")
        assert "n/a (a CPU has no warps) in 1 of 2 cases" in html
        assert texts(figures(html)[0]).count("n/a") == 4

    def test_a_rate_without_a_ceiling(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, made.gpu_entry(), made.gpu_tables(), ceilings=[], ceilings_reason="none: measure them")
        html = html_of(run, "utilization")
        assert "8.00 TFLOP/s, its ideal n/a" in texts(figures(html)[0])
        assert "the ideal of FLOP/s" in html
        assert "n/a (none: measure them)" in html

    def test_a_case_that_failed_is_not_drawn(self, tmp_path: Path) -> None:
        failed = case_entry("r", 32, "train", status="error", reason="model broke")
        failed["passes"]["counters"] = {"status": "skipped", "reason": "model broke"}
        html = html_of(run_of(tmp_path, failed, {}), "utilization")
        assert figures(html) == []
        assert "n/a (model broke)" in html


class TestEnergy:
    def test_one_case_has_a_table_and_several_have_bars(self, tmp_path: Path) -> None:
        one = html_of(load_run(made.write_gpu(tmp_path)), "utilization")
        for text in ("30.0 J", "3.75 J", "300 W"):
            assert text in one
        assert len(figures(one)) == 1
        several = html_of(load_run(made.write_cpu(tmp_path, sizes=(32, 64))), "utilization")
        assert len(figures(several)) == 3
        assert "energy of a sample (mJ)" in texts(figures(several)[2])

    def test_where_nothing_tells_it_the_reason_does(self, tmp_path: Path) -> None:
        tables, entry = made.gpu_tables(), made.gpu_entry()
        tables["counters"] = [row for row in tables["counters"] if row["source"] != "nvml"]
        entry["passes"]["counters"]["sources"]["nvml"]["missing"] = {"energy_j": "no meter"}
        html = html_of(run_of(tmp_path, entry, tables), "utilization")
        assert "Energy of an iteration" not in html
        assert "nvml: no meter; rapl: its files are for administrators only" in html


class TestCounters:
    @pytest.mark.drawn
    def test_samples_are_drawn_with_phases_behind_them(self, tmp_path: Path) -> None:
        html = html_of(load_run(made.write_gpu(tmp_path)), "counters")
        nvml, gpm = figures(html)
        assert "280 W to 320 W" in texts(nvml)
        assert "60.0 °C to 69.8 °C" in texts(nvml)
        assert "tensor pipe" in texts(gpm)
        assert {"#4477aa", "#ee6677", "#228833"} <= set(re.findall(r"fill: (#[0-9a-f]{6})", nvml))
        assert "Always 0: throttled (nvml), FP64 pipe (gpm)." in html
        assert "throttled" not in texts(nvml)

    def test_all_that_was_read_says_how(self, tmp_path: Path) -> None:
        html = html_of(load_run(made.write_gpu(tmp_path)), "counters")
        assert "what tensor_core_frac means" in html
        assert "55.0 %" in html
        assert "466 GiB" in html
        assert "n/a (read once)" in html
        assert "55.8 %" in html  # of the forward pass alone

    def test_sources_that_gave_nothing_say_why_and_what_to_do(self, tmp_path: Path) -> None:
        html = html_of(load_run(made.write_gpu(tmp_path, sizes=(32, 64, 96))), "counters")
        told = html[html.index("Sources without values") :]
        assert "resnet50-32-b8-train-bf16-cuda and 2 more" in told
        assert "its files are for administrators only" in told
        assert "run as root" in told
        assert "n/a (none is known)" in told
        assert "PM sampling counts no instructions by type" in told

    @pytest.mark.slow
    def test_many_timelines_are_folded(self, tmp_path: Path) -> None:
        runs = [load_run(made.write_gpu(tmp_path, sizes=sizes)) for sizes in ((32,), (32, 64, 96))]
        drawn = [html_of(run, "counters") for run in runs]
        folded = [html.count("<summary>Over time: ") - html.count("as a table</summary>") for html in drawn]
        assert folded == [0, 3]
        assert [len(figures(html)) for html in drawn] == [2, 6]

    def test_thousands_of_samples_are_drawn_as_means(self, tmp_path: Path) -> None:
        sizes = []
        for num_samples in (300, 2000):
            rows = [made.row("nvml", "power_w", float(at % 7), time_s=0.1 * at) for at in range(num_samples)]
            html = html_of(run_of(tmp_path / str(num_samples), made.gpu_entry(), {"counters": rows}), "counters")
            assert ("The figure shows means of successive samples" in html) == (num_samples == 2000)
            assert "0 W to 6.00 W" in texts(figures(html)[0])
            sizes.append(len(figures(html)[0]))
        assert sizes[1] < 1.5 * sizes[0]

    def test_only_counters_that_stayed_at_zero_leave_a_table(self, tmp_path: Path) -> None:
        rows = [made.row("nvml", "throttled_frac", 0.0, time_s=0.1 * number) for number in range(3)]
        html = html_of(run_of(tmp_path, made.gpu_entry(), {"counters": rows}), "counters")
        assert figures(html) == []
        assert "Always 0: throttled (nvml)." in html

    def test_a_counter_pass_that_failed_says_so(self, tmp_path: Path) -> None:
        entry = made.gpu_entry()
        entry["passes"]["counters"] = {"status": "failed", "reason": "the device fell off"}
        tables = made.gpu_tables()
        del tables["counters"]
        assert "n/a (the device fell off)" in html_of(run_of(tmp_path, entry, tables), "counters")


class TestKernels:
    def test_geometry_and_what_was_counted(self, tmp_path: Path) -> None:
        html = html_of(load_run(made.write_gpu(tmp_path)), "kernels")
        for text in ("64 × 2 × 1", "256 × 1 × 1", ">128<", "48.0 KiB", ">several<", "n/a (a copy or fill)", "25.0 %",
                     "63.0 %", "13.5 TFLOP/s", "n/a (not counted)"):
            assert text in html
        assert "<gemm" not in html
        assert "gemm&lt;bf16" in html
        alone = html[html.index("Kernels that only counters list") :]
        assert "renamed&lt;1&gt;" in alone
        assert "gemm" not in alone

    def test_without_counted_kernels_there_are_no_such_columns(self, tmp_path: Path) -> None:
        tables = made.gpu_tables()
        tables["counters"] = [row for row in tables["counters"] if row["kernel"] is None]
        html = html_of(run_of(tmp_path, made.gpu_entry(), tables), "kernels")
        assert "Occupancy, counted" not in html
        assert "only counters list" not in html

    def test_a_run_without_a_gpu_says_why_it_has_none(self, tmp_path: Path) -> None:
        html = html_of(load_run(made.write_cpu(tmp_path)), "kernels")
        assert "n/a (no CUDA device: kernels run on GPUs only)" in html


class TestContract:
    def test_an_empty_run_has_none_of_the_sections(self, tmp_path: Path) -> None:
        run = load_run(RunWriter(tmp_path, "r", {}).close("complete"))
        assert {part.id for part in sections(run)}.isdisjoint(BUILDERS)

    @pytest.mark.slow
    def test_a_record_of_before_there_was_a_counter_pass(self, tmp_path: Path) -> None:
        path = old_record(tmp_path)
        html = {part.id: part.html for part in sections(load_run(path))}
        assert "Read before and after the iterations of the timing pass" in html["counters"]
        assert "CPU utilization" in html["counters"]
        assert "93.0 %" in html["counters"]
        assert "1.94 TFLOP/s, its ideal n/a" in texts(figures(html["utilization"])[0])
        assert "Sources without values" not in html["counters"]

    def test_hostile_names_are_only_ever_text(self, tmp_path: Path) -> None:
        hostile = "<script>alert(1)</script>"
        entry = made.gpu_entry(name=hostile)
        entry["passes"]["counters"]["sources"]["rapl"] |= {"reason": hostile, "remedy": hostile}
        tables = made.gpu_tables()
        tables["counters"] += [made.row(hostile, f"{hostile}_frac", 0.5 + number, time_s=0.1 * number, device=hostile)
                               for number in range(2)]  # fmt: skip
        tables["kernels"].append({**tables["kernels"][0], "kernel": hostile})
        run = run_of(tmp_path, entry, tables)
        for name in BUILDERS:
            html = html_of(run, name)
            assert "<script" not in html
            assert "&lt;script&gt;alert(1)" in html


def old_record(tmp_path: Path) -> Path:
    """A record whose table has no column for kernels, and whose manifest knows no counter pass."""
    writer = RunWriter(tmp_path, "r", manifest("profile"))
    writer.add_case(typed_entry(case_entry("r", 32, "train")), case_tables("train", 32))
    writer.close("complete")
    path = writer.publish()
    pd.read_parquet(path / "counters.parquet").drop(columns="kernel").to_parquet(path / "counters.parquet", index=False)
    unseal(path)
    assert "counters" not in json.loads((path / "run.json").read_text())
    return path


@pytest.mark.parametrize(("counter", "name", "value", "words"), [
    ("flop_per_s", "FLOP/s", 8e12, "8.00 TFLOP/s"), ("pcie_sent_bytes_per_s", "PCIe sent", 2e9, "2.00 GB/s"),
    ("sm_utilization_frac", "SM utilization", 0.5, "50.0 %"), ("dram_bytes", "DRAM", 5e9, "4.66 GiB"),
    ("power_w", "power", 0.25, "250 mW"), ("energy_j", "energy", 1500.0, "1.50 kJ"),
    ("sm_clock_hz", "SM clock", 1.98e9, "1.98 GHz"), ("temperature_c", "temperature", 61.0, "61.0 °C"),
    ("gap_s", "gap", 0.004, "4.00 ms"), ("num_gaps", "gaps", 120.0, "120"),
    ("num_cores_main_thread", "cores busy in main thread", 0.5, "0.500"),
    ("power_w", "power", float("nan"), "n/a"), ("executed_flop", "executed", 1e9, "1.00 GFLOP"),
])  # fmt: skip
def test_counters_in_words(counter: str, name: str, value: float, words: str) -> None:
    assert counter_name(counter) == name
    assert counter_value(counter, value) == words
