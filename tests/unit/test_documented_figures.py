"""Figures in documents are those of benchmarks/README.md, and defaults in documents are those of the code."""

import re

import pytest
from support.documents import ROOT

from charact.analysis.common.significance import _MAX_BLOCKS
from charact.analysis.compare.turns import SAME_FRAC
from charact.analysis.efficiency.bottleneck import MEMORY_FRAC, VERDICTS
from charact.analysis.findings._watched_case import LEAST_FRAC
from charact.analysis.profile.case_summary import MIN_SPREAD_ITERATIONS
from charact.analysis.profile.core_use import DISTURBED_FRAC, UNRELIABLE_FRAC
from charact.analysis.profile.machine_speed import BOUND_FRAC
from charact.commands.compare import _MAX_MINUTES
from charact.commands.run import DEFAULT_BUDGET_FRAC
from charact.measure.passes.operators import _MAX_ITERATIONS, NUM_ITERATIONS
from charact.measure.passes.timing import STABLE_FRAC, STABLE_ITERATIONS, StopRule
from charact.measure.script.pass_scheduler import LEAST_BUDGET_S
from charact.measure.script.session import MAX_SLICES
from charact.measure.script.spans.iterations import MOST_STEPS
from charact.measure.script.spans.stack_sampler import INTERVAL_S, SPARSE_INTERVAL_S
from charact.traces.reader import MAX_UNPACKED_BYTES
from charact.views.html.report import MAX_CASES

NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


def text(name: str) -> str:
    """Return a document with one space between words."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def percent(fraction: float) -> str:
    return f"{100 * fraction:g} %"


DEFAULTS = [
    ("docs/concepts.md", f"Warm-up ends when {NUMBERS[STABLE_ITERATIONS]} consecutive iterations agree within "
                         f"{percent(STABLE_FRAC)}."),
    ("docs/concepts.md", f"interval is within {percent(StopRule().precision_target_frac)} (`--precision-target`)"),
    ("docs/concepts.md", f"p5 and p95 have at least {MIN_SPREAD_ITERATIONS},"),
    ("docs/concepts.md", f"if its remedy may save {percent(LEAST_FRAC)} or more of the time from the first iteration"),
    ("docs/show.md", f"whose remedy may save {percent(LEAST_FRAC)} or more of the time from the first iteration"),
    ("docs/concepts.md", f"took {percent(DISTURBED_FRAC)} or more of the processor time that the case wanted. From "
                         f"{percent(UNRELIABLE_FRAC)} on there is no verdict."),
    ("docs/concepts.md", f"communication-bound, host-bound | that part takes {percent(BOUND_FRAC)} or more"),
    ("docs/concepts.md", f"has no verdict and uses {percent(MEMORY_FRAC)} of the memory |"),
    ("docs/concepts.md", f"every k-th step (k up to {MOST_STEPS})"),
    ("docs/concepts.md", f"every {1000 * SPARSE_INTERVAL_S:g} ms ({1000 * INTERVAL_S:g} ms with `--sample`)"),
    ("docs/guides/slow-training.md", f"every {1000 * SPARSE_INTERVAL_S:g} ms in `data`"),
    ("docs/guides/slow-training.md", f"with `--sample`, every {1000 * INTERVAL_S:g} ms."),
    ("docs/guides/slow-training.md", f"may take {percent(DEFAULT_BUDGET_FRAC)} of the script's time, or "
                                     f"{LEAST_BUDGET_S:g} s (`--budget`)"),
    ("docs/guides/slow-training.md", f"for {_MAX_MINUTES:g} minutes at most:"),
    ("docs/guides/compare.md", f"by default after {_MAX_MINUTES:g} minutes."),
    ("docs/regression-gate.md", f"or to differ by {percent(SAME_FRAC)} at most"),
    ("docs/design.md", f"agree within {percent(STABLE_FRAC)}, or at its limits"),
    ("docs/design.md", f"medians of at most {_MAX_BLOCKS} blocks"),
    ("docs/design.md", f"`torch.profiler` over {NUM_ITERATIONS} to {_MAX_ITERATIONS} iterations"),
    ("docs/design.md", f"It is full after {MAX_SLICES:,} slices"),
    ("README.md", f"the stack sampler (every {1000 * SPARSE_INTERVAL_S:g} ms)"),
    ("SECURITY.md", f"may unpack to at most {MAX_UNPACKED_BYTES >> 30} GiB"),
    ("benchmarks/README.md", f"now it shows {MAX_CASES} cases in full"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "sentence"), DEFAULTS)
def test_documents_have_the_defaults_of_the_code(document: str, sentence: str) -> None:
    assert sentence in text(document)


@pytest.mark.parametrize("document", ["docs/show.md", "docs/concepts.md"])
def test_documents_have_every_verdict(document: str) -> None:
    for verdict in {*VERDICTS.values(), "straggler-bound", "memory-capacity-bound"}:
        assert verdict in text(document)


def rows(first: str) -> list[list[str]]:
    """Return the cells of a table of benchmarks/README.md, which is found by the beginning of its header."""
    lines = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").splitlines()
    [start] = [number for number, line in enumerate(lines) if line.startswith(f"| {first}")]
    found = []
    for line in lines[start + 2:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip().replace("**", "") for cell in line.strip("|").split(" | ")])
    return found


def number(cell: str) -> float:
    return float(cell.split()[0].replace(",", ""))


def test_the_readme_has_the_memory_errors_of_the_benchmark() -> None:
    table = rows("instructions, threads | points")
    points, worst = sum(number(row[1]) for row in table), max(number(row[3]) for row in table)
    generations = len({row[0].partition(",")[0] for row in table})
    assert (f"error at most {worst:.2f} % in {points:,.0f} cases on a CPU, with the instructions of "
            f"{NUMBERS[generations]} generations") in text("README.md")


def test_the_readme_has_the_stragglers_of_the_benchmark() -> None:
    few, *clear = rows("sleep, as a share of the iteration")
    assert [row[2] for row in clear] == ["100 %", "100 %"]
    num_clear, num_few = sum(int(row[1]) for row in clear), int(few[1])
    right = round(num_few * number(few[2]) / 100)
    benchmark = text("benchmarks/README.md")
    without = re.search(r"Of (\d+) runs without a sleep, all are balanced", benchmark)
    tuned = re.search(r"adjusted with the first (\d+) of the (\d+) records", benchmark)
    assert without is not None
    assert tuned is not None
    assert int(tuned[2]) == num_clear + num_few + int(without[1])
    assert (f"right in {num_clear} of {num_clear} runs with a delay of 20 % of the iteration or more, and in {right} "
            f"of {num_few} with less; no false alarm in {without[1]}. "
            f"The rules were tuned on {tuned[1]} of these {tuned[2]} runs") in text("README.md")


def test_the_readme_has_the_trace_times_of_the_benchmark() -> None:
    record, _, plugin, hta = rows("| 104 MB trace")
    readme = text("README.md")
    assert f"Traces: 104 MB imported in {record[1]} and {record[2]} of memory" in readme
    assert f"torch-tb-profiler {plugin[1]} and {plugin[2]}, HTA {hta[1]} and {hta[2]}" in readme


def test_the_readme_has_the_latency_error_of_the_benchmark() -> None:
    error = next(row for row in rows("bricks timed | constructed / measured") if row[0] == "all")[2]
    [held_out] = re.findall(r"(\d+) of the others, chosen by a hash of their names, are held out",
                            text("benchmarks/README.md"))
    assert f"{error} mean error over {held_out} held-out models" in text("README.md")


def test_the_readme_has_the_false_alarms_of_the_gate() -> None:
    chosen = next(row for row in rows("| iteration | backward | update") if "regression gate" in row[0])
    assert {*chosen[1:]} == {"0.7 %"}
    assert "0 to 0.7 % false alarms" in text("README.md")


def test_documents_have_the_overhead_of_the_benchmark() -> None:
    found = re.search(r"At commit \w+ \([\d-]+\), on 2 cores of an Intel Xeon .*?`charact run` has ([\d.]+) \(.*?\) "
                      r"for the ResNet-18 of .*? and ([\d.]+) \(.*?\) for the MLP of ([\d.]+) ms, which is (\d+) µs",
                      text("benchmarks/README.md"))
    assert found is not None
    resnet, mlp, iteration_ms, overhead_us = map(float, found.groups())
    assert overhead_us == pytest.approx(1000 * iteration_ms * (mlp - 1), abs=1)
    assert f"factor {resnet:.3f} for a ResNet-18, {mlp:.3f} for an MLP of {iteration_ms:.1f} ms" in text("README.md")
    [least] = re.findall(r"That is about (\d+) to \d+ µs for an iteration", text("benchmarks/README.md"))
    assert f"overhead is {least} to {overhead_us:.0f} µs per iteration" in text("docs/guides/slow-training.md")
