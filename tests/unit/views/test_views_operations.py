"""Basic operations in the report and in the terminal: their numbers, what they fall short of, and what is missing."""

import re
from pathlib import Path

import pytest
from support import operation_records
from support.operation_records import Operations
from support.pages import HOSTILE, Page
from support.records import write_record
from support.terminal import shown

from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.views.html.report import report, sections


def views(run: Run, width: int = 120) -> dict[str, str]:
    """Return the words of each section, and those of the terminal's summary as `terminal`."""
    html = {part.id: re.sub(r"<[^>]+>", " ", part.html) for part in sections(run)}
    return {name: " ".join(text.split()) for name, text in [*html.items(), ("terminal", shown(run.path, width=width))]}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Operations of several kinds that belong to no suite: one above a ceiling, one inexact, one that failed."""
    record = Operations(tmp_path_factory.mktemp("runs"), "mixed")
    record.add("gemm:512x64x512", {"forward": 0.004}, flop=1e9)
    work = {"forward": {"published_flop": 5e8, "convention": "without the input"}}
    record.add("rnn:lstm:64x8x5", {"forward": 0.02, "backward_input": 0.05, "backward_weight": 0.03}, work=work)
    record.add("softmax:64x64", {"forward": 0.002}, flop=None, bytes=5e7, max_error=3e-4)
    record.add("copy:1000", {"forward": 0.001}, flop=None, bytes=1.5e8, max_error=0.0, tolerance=0.0)
    record.add("gemm:1x1x1", {"forward": 1.0}, suite="s", convention="K is the inner size", hot="yes")
    return views(record.fail("gemm:99x99x99", "oom", "out of memory: asked for 40.0 GB").run())


@pytest.mark.parametrize(("view", "texts"), [
    ("operations", [
        "gemm:512x64x512 forward 4.00 ms 3.92 ms 4.08 ms 1.00 GFLOP", "250 GFLOP/s 250 MB/s 25.0 % compute",
        "2.0e-07 1.0e-05 7 target met", "1.00 GFLOP 500 MFLOP", "without the input", "n/a (same count)",
        "K is the inner size", "150.0 %", "oom: out of memory: asked for 40.0 GB",
        "1 above 100 % of a ceiling: from a cache, or with fewer bytes than modelled.",
        "1 differ from float64 by more than their precision allows."]),
    ("summary", ["6 cases, 1 of them failed."]),
    ("terminal", [
        "512x64x512 4.00 ms 2.0 % 250 GFLOP/s 250 MB/s 25.0 % 2.0e-07", "lstm:64x8x5 by input 50.0 ms",
        "lstm:64x8x5 by weight 30.0 ms", "gemm:99x99x99 fp32 oom: out of memory: asked for 40.0 GB",
        "1 above 100 % of a ceiling", "softmax:64x64 forward: error 3.0e-04, more than the 1.0e-05 that fp32 allows"]),
])  # fmt: skip
def test_problems_have_times_rates_shares_errors_and_notes(mixed: dict[str, str], view: str, texts: list[str]) -> None:
    assert [text for text in texts if text not in mixed[view]] == []


def test_a_rate_is_named_by_its_direction_and_a_failure_is_shown_once(mixed: dict[str, str]) -> None:
    assert re.search(r"100 ms all directions .*? forward rate 50.0 GFLOP/s", mixed["summary"])
    assert re.search(r"4.00 ms a call .*? rate 250 GFLOP/s", mixed["summary"])
    assert mixed["terminal"].count("99x99x99") == 1


def test_suites_have_totals(tmp_path: Path) -> None:
    run = operation_records.vo(tmp_path / "vo")
    told = views(run)
    assert list(told) == ["summary", "operations", "machine", "method", "terminal"]
    for text in ("vo · DMM · gemm · fp32 · cpu", "2.44 s total execution time", "244,379,762,688"):
        assert text in told["summary"]
    assert "Published FLOP" not in told["summary"]
    assert "vo DMM gemm fp32 cpu 2.44 s 5 0 244,379,762,688 100 GFLOP/s" in told["terminal"]
    told = views(operation_records.suite(tmp_path / "suite", 4), 200)
    assert "1 failed and are left out" in told["summary"]
    for view in ("summary", "terminal"):
        assert "Published FLOP of deepbench, convolution: output sizes are not rounded down." in told[view]
    assert re.search(r"deepbench training gemm fp32 cpu \S+ .s 3 1", told["terminal"])


def test_hot_problems_and_limits_are_marked(tmp_path: Path) -> None:
    record = Operations(tmp_path / "hot").add("gemm:1x1x1", {"forward": 1.0}, hot="yes")
    text = views(record.add("softmax:4x4", {"forward": 1.0}).run())["terminal"]
    assert "gemm, fp32, cpu, hot ─" in text
    assert "softmax, fp32, cpu ─" in text
    writer = RunWriter(tmp_path, "short", {})
    entry = operation_records.entry("gemm:1x1x1")
    entry["passes"]["ops"]["directions"] = {"forward": {"ended_by": "max_seconds"}}
    writer.add_case(typed_entry(entry), {"problems": [operation_records.problem_row("gemm:1x1x1")],
                            "repetitions": operation_records.repetition_rows(0.1)})
    told = views(load_run(writer.close("complete")))
    assert "1 less precise than requested" in told["operations"]
    assert "time limit" in told["operations"]
    assert "1 less precise than requested" in told["terminal"]


@pytest.mark.parametrize(("ratios", "dense_s", "expected"), [
    ({0.01: 0.5, 0.04: 2.0}, 0.01, "2.0 % (between 1.0 % and 4.0 %)"),
    ({0.05: 0.5}, 0.01, "n/a (no crossover found: at 5.0 %, the only density measured, sparse is faster)"),
    ({0.05: 0.5, 0.5: 2.0}, None, "n/a (no dense product of this size was measured)"),
])
def test_sparse_against_dense(tmp_path: Path, ratios: dict[float, float], dense_s: float | None, expected: str) -> None:
    run = operation_records.sparse(tmp_path, ratios, dense_s=dense_s)
    told = views(run)
    assert f"512x64x512 csr forward fp32 cpu: sparse is faster below a density of {expected}" in told["terminal"]
    if expected.startswith("n/a"):
        assert expected in told["operations"]
    else:
        assert "512x64x512 forward 2.0 % 1.0 % 4.0 % 1.0 % 4.0 % 2" in told["operations"]
        assert "1.0 % 5.00 ms 10.0 ms × 0.50 × 0.48 × 0.52" in told["operations"]
    (html,) = (part.html for part in sections(run) if part.id == "operations")
    assert ("forward, fp32, cpu, 512x64x512</title>" in html) is not expected.startswith("n/a")


@pytest.mark.slow
def test_160_problems_stay_readable_and_below_2_megabytes(tmp_path: Path) -> None:
    run = operation_records.suite(tmp_path, 160)
    assert len(report([run]).encode()) < 2_000_000
    html = {part.id: part.html for part in sections(run)}
    assert html["summary"].count('<article class="ch-card') == 2
    assert html["operations"].count("<tr data-case") == 81 + 3 * 80
    assert "The figure shows the 12 slowest of 80; the table has all." in views(run)["operations"]
    lines = shown(run.path).splitlines()
    assert max(map(len, lines)) <= 80
    assert "the 15 slowest of 80 problems; the report and charact export have all" in "\n".join(lines)


@pytest.mark.slow
def test_many_problems_of_no_suite_have_cards_of_the_longest_only(tmp_path: Path) -> None:
    record = Operations(tmp_path)
    for number in range(1, 21):
        record.add(f"gemm:{number}x1x1", {"forward": 0.001 * number})
    (html,) = (part.html for part in sections(record.run()) if part.id == "summary")
    assert html.count('<article class="ch-card') == 12
    assert "gemm-20x1x1-fp32-cpu" in html.split("</article>")[0]
    assert "Cards show the 12 slowest of 20 problems." in html


def test_precisions_are_apart_and_missing_ceilings_work_or_successes_have_reasons(tmp_path: Path) -> None:
    record = Operations(tmp_path / "precisions")
    for precision in ("fp32", "bf16"):
        record.add("gemm:1x2x3", {"forward": 0.004},
                   entry_of={"case": f"gemm-1x2x3-{precision}-cpu", "precision": precision})
    told = views(record.run())["operations"]
    for text in ("gemm:1x2x3, bf16", "Against the ceilings: bf16, cpu", "gemm:1x2x3 bf16 forward"):
        assert text in told
    told = views(operation_records.suite(tmp_path / "no ceilings", 4, ceilings=[]))
    assert "below the roofline" not in told["operations"]
    assert all("charact doctor --ceilings" in told[view] for view in ("operations", "terminal"))
    told = views(Operations(tmp_path / "no work").add("copy:1", {"forward": 0.001}, flop=None, bytes=0.0).run())
    assert all("neither FLOP nor bytes are counted" in told[view] for view in ("summary", "operations"))
    row = operation_records.problem_row("gemm:1x1x1", suite="s", max_error=None, tolerance=None)
    told = views(Operations(tmp_path / "failed").fail("gemm:1x1x1", "error", "it broke", [row], suite="s").run())
    assert "all of 1 problem" in told["summary"]
    assert all("n/a (all of them failed)" in told[view] for view in ("summary", "terminal"))
    assert "error: it broke" in told["operations"]
    assert not any("nan" in re.findall(r"\w+", text) for text in told.values())


def test_hostile_names_are_only_ever_text(tmp_path: Path) -> None:
    record = Operations(tmp_path)
    record.add(HOSTILE, {"forward": 0.001, "backward_input": 0.002}, entry_of={"case": HOSTILE, "workload": HOSTILE},
               suite=HOSTILE, set=HOSTILE, convention=HOSTILE, published_flop=3.0)
    run = record.fail(f"gemm:{HOSTILE}", "error", HOSTILE).run()
    text = report([run, run])
    assert "<script>alert" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert page.words.count(HOSTILE) > 10
    assert HOSTILE.split("'")[0] in shown(run.path, width=200)


def test_several_runs_stand_next_to_each_other_with_their_directories(tmp_path: Path) -> None:
    runs = [operation_records.vo(tmp_path / name) for name in "ab"]
    text = report(runs)
    overview = text[text.index('id="overview"') : text.index("</article>")]
    assert "Time of each problem" in overview
    assert [overview.count(f">{name}: {run.run_id}</td>") for name, run in zip("ab", runs, strict=True)] == [5, 5]


@pytest.mark.slow
def test_other_records_have_no_operations(tmp_path: Path) -> None:
    told = views(load_run(write_record(tmp_path)))
    assert "operations" not in told
    assert "Time of an operation" not in told["method"]
