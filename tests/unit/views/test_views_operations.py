"""Basic operations in the report and in the terminal: their numbers, what they fall short of, and what is missing."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from support import operation_records as made
from support.operation_records import Operations
from support.pages import HOSTILE, Page
from support.records import write_record

from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.views.html.report import fragment, report, sections
from charact.views.terminal.renderer import summary


def html_of(run: Run) -> dict[str, str]:
    return {part.id: part.html for part in sections(run)}


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def screen(run: Run, width: int = 120) -> str:
    Console(file=(stream := io.StringIO()), width=width).print(summary(run))
    return stream.getvalue()


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(start))


def mixed(out: Path) -> Run:
    """Operations of several kinds that belong to no suite: one above a ceiling, one inexact, one that failed."""
    record = Operations(out, "mixed")
    record.add("gemm:512x64x512", {"forward": 0.004}, flop=1e9)
    work = {"forward": {"published_flop": 5e8, "convention": "without the input"}}
    record.add("rnn:lstm:64x8x5", {"forward": 0.02, "backward_input": 0.05, "backward_weight": 0.03}, work=work)
    record.add("softmax:64x64", {"forward": 0.002}, flop=None, bytes=5e7, max_error=3e-4)
    record.add("copy:1000", {"forward": 0.001}, flop=None, bytes=1.5e8, max_error=0.0, tolerance=0.0)
    return record.fail("gemm:99x99x99", "oom", "out of memory: asked for 40.0 GB").run()


def test_a_suite_is_told_as_a_whole(tmp_path: Path) -> None:
    run = made.vo(tmp_path)
    html = html_of(run)
    assert list(html) == ["summary", "operations", "machine", "method"]
    told = words(html["summary"])
    assert "vo · DMM · gemm · fp32 · cpu" in told
    assert "2.44 s total execution time" in told
    assert "244,379,762,688" in told
    assert "Published FLOP" not in told
    line = line_of(screen(run), "vo DMM gemm fp32 cpu")
    assert line.split()[5:] == ["2.44", "s", "5", "0", "244,379,762,688", "100", "GFLOP/s"]


def test_each_problem_has_its_time_rates_share_and_error(tmp_path: Path) -> None:
    run = mixed(tmp_path)
    told = words(html_of(run)["operations"])
    for text in ("gemm:512x64x512 forward 4.00 ms 3.92 ms 4.08 ms 1.00 GFLOP 250 GFLOP/s 250 MB/s 25.0 % compute",
                 "2.0e-07 1.0e-05 7 target met", "out of memory: asked for 40.0 GB"):
        assert text in told
    cells = line_of(screen(run), "512x64x512").split()
    assert cells[1:] == ["4.00", "ms", "2.0", "%", "250", "GFLOP/s", "250", "MB/s", "25.0", "%", "2.0e-07"]


def test_directions_stand_below_one_another_and_the_count_that_is_published_beside_ours(tmp_path: Path) -> None:
    run = mixed(tmp_path)
    told = words(html_of(run)["operations"])
    assert "1.00 GFLOP 500 MFLOP" in told
    assert "without the input" in told
    assert "n/a (same count)" in told
    lines = screen(run).splitlines()
    first = next(number for number, line in enumerate(lines) if "lstm:64x8x5" in line)
    assert [line.split()[1:3] for line in lines[first + 1 : first + 3]] == [["by", "input"], ["by", "weight"]]


def test_a_convention_that_counts_alike_is_named(tmp_path: Path) -> None:
    run = Operations(tmp_path).add("gemm:1x1x1", {"forward": 1.0}, suite="s", convention="K is the inner size").run()
    html = html_of(run)["operations"]
    assert "K is the inner size" in words(html)
    assert "Published FLOP" not in words(html)


def test_hot_times_are_headed_as_such(tmp_path: Path) -> None:
    run = Operations(tmp_path).add("gemm:1x1x1", {"forward": 1.0}, hot="yes").add("softmax:4x4", {"forward": 1.0}).run()
    assert line_of(screen(run), "gemm").startswith("gemm, fp32, cpu, hot ")
    assert "hot" not in line_of(screen(run), "softmax")


def test_a_rate_beside_the_time_of_all_directions_says_which_it_is_of(tmp_path: Path) -> None:
    told = words(html_of(mixed(tmp_path))["summary"])
    assert re.search(r"100 ms all directions .*? forward rate 50.0 GFLOP/s", told)
    assert re.search(r"4.00 ms a call .*? rate 250 GFLOP/s", told)


def test_what_passes_a_ceiling_and_what_is_inexact_is_said(tmp_path: Path) -> None:
    run = mixed(tmp_path)
    told, text = words(html_of(run)["operations"]), " ".join(screen(run).split())
    assert "150.0 %" in told
    assert "1 above 100 % of a ceiling: from a cache, or with fewer bytes than modelled." in told
    assert "1 differ from float64 by more than their precision allows." in told
    assert "1 above 100 % of a ceiling" in text
    assert "softmax:64x64 forward: error 3.0e-04, more than the 1.0e-05 that fp32 allows" in text


def test_what_a_limit_ended_is_said_to_be_less_precise(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "short", {})
    entry = made.entry("gemm:1x1x1")
    entry["passes"]["ops"]["directions"] = {"forward": {"ended_by": "max_seconds"}}
    writer.add_case(entry, {"problems": [made.problem_row("gemm:1x1x1")], "repetitions": made.repetition_rows(0.1)})
    run = load_run(writer.close("complete"))
    told = words(html_of(run)["operations"])
    assert "1 less precise than requested" in told
    assert "time limit" in told
    assert "1 less precise than requested" in screen(run)


def test_failed_problems_tell_why(tmp_path: Path) -> None:
    run = mixed(tmp_path)
    text = " ".join(screen(run).split())
    assert "gemm:99x99x99 fp32 oom: out of memory: asked for 40.0 GB" in text
    assert text.count("99x99x99") == 1
    html = html_of(run)
    assert "5 cases, 1 of them failed." in words(html["summary"])
    assert "oom: out of memory: asked for 40.0 GB" in words(html["operations"])


def test_a_suite_tells_its_own_count_and_what_is_left_out(tmp_path: Path) -> None:
    run = made.suite(tmp_path, 4)
    told = words(html_of(run)["summary"])
    assert "1 failed and are left out" in told
    assert "Published FLOP of deepbench, convolution: output sizes are not rounded down." in told
    text = screen(run)
    assert "Published FLOP of deepbench, convolution: output sizes are not rounded down." in text
    numbers = text[text.index("deepbench training gemm"):].splitlines()[1].split()
    assert numbers[2:4] == ["3", "1"]


def test_sparse_against_dense(tmp_path: Path) -> None:
    run = made.sparse(tmp_path, {0.01: 0.5, 0.04: 2.0})
    html = html_of(run)["operations"]
    assert "Sparse against dense: forward, fp32, cpu, 512x64x512</title>" in html
    assert "512x64x512 forward 2.0 % 1.0 % 4.0 % 1.0 % 4.0 % 2" in words(html)
    assert "1.0 % 5.00 ms 10.0 ms × 0.50 × 0.48 × 0.52" in words(html)
    line = line_of(screen(run), "512x64x512 csr forward fp32 cpu")
    assert line.rstrip().endswith("2.0 % (between 1.0 % and 4.0 %)")


def test_sparse_products_of_one_density_or_without_a_dense_one_have_a_reason(tmp_path: Path) -> None:
    for number, (ratios, dense_s, reason) in enumerate([
        ({0.05: 0.5}, 0.01, "no crossover found: at 5.0 %, the only density measured, sparse is faster"),
        ({0.05: 0.5, 0.5: 2.0}, None, "no dense product of this size was measured"),
    ]):  # fmt: skip
        run = made.sparse(tmp_path / str(number), ratios, dense_s=dense_s)
        html = html_of(run)["operations"]
        assert f"n/a ({reason})" in words(html)
        assert "Sparse against dense: forward, fp32, cpu, 512x64x512</title>" not in html
        assert reason in " ".join(screen(run).split())


def test_the_longest_names_of_the_suites_fit_80_columns(tmp_path: Path) -> None:
    record = Operations(tmp_path)
    names = ["convolution:16x128x40x175:256x5x5:p1:s2", "sparse_gemm:10752x1500x3584:s0.95:dense"]
    for name in names:
        times_s = {"forward": 0.1234}
        if name.startswith("convolution"):
            times_s |= {"backward_input": 0.1234, "backward_weight": 0.1234}
        record.add(name, times_s, flop=1.23e12, bytes=1.23e8)
    lines = screen(record.run(), 80).splitlines()
    assert max(map(len, lines)) <= 80
    for name in names:
        assert any(line.strip().startswith(name.partition(":")[2]) for line in lines)
    assert sum(line.rstrip().endswith("2.0e-07") for line in lines) == 4


@pytest.mark.slow
def test_160_problems_stay_readable_and_below_2_megabytes(tmp_path: Path) -> None:
    run = made.suite(tmp_path, 160)
    text = report([run])
    assert len(text.encode()) < 2_000_000
    html = html_of(run)
    assert html["summary"].count('<article class="ch-card') == 2
    assert html["operations"].count("<tr data-case") == 81 + 3 * 80
    assert "The figure shows the 12 slowest of 80; the table has all." in words(html["operations"])
    lines = screen(run, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "the 15 slowest of 80 problems; the report and charact export have all" in "\n".join(lines)
    assert len(lines) < 110


@pytest.mark.slow
def test_many_problems_of_no_suite_have_cards_of_the_longest_only(tmp_path: Path) -> None:
    record = Operations(tmp_path)
    for number in range(1, 21):
        record.add(f"gemm:{number}x1x1", {"forward": 0.001 * number})
    glance = html_of(record.run())["summary"]
    assert glance.count('<article class="ch-card') == 12
    assert "gemm-20x1x1-fp32-cpu" in glance.split("</article>")[0]
    assert "Cards show the 12 slowest of 20 problems." in glance


def test_one_problem(tmp_path: Path) -> None:
    run = Operations(tmp_path).add("gemm:1x2x3", {"forward": 0.004}).run()
    assert "95 % interval 3.920–4.080 ms" in words(html_of(run)["summary"])
    assert "4.00 ms" in fragment(run)


def test_precisions_and_layouts_stand_apart(tmp_path: Path) -> None:
    record = Operations(tmp_path)
    for precision in ("fp32", "bf16"):
        record.add("gemm:1x2x3", {"forward": 0.004},
                   entry_of={"case": f"gemm-1x2x3-{precision}-cpu", "precision": precision})
    html = html_of(record.run())["operations"]
    assert "gemm:1x2x3, bf16" in html
    assert "Against the ceilings: bf16, cpu" in html
    assert "gemm:1x2x3 bf16 forward" in words(html)


def test_without_ceilings_there_are_rates_and_a_reason(tmp_path: Path) -> None:
    run = made.suite(tmp_path, 4, ceilings=[])
    html = html_of(run)["operations"]
    assert "below the roofline</title>" not in html
    assert "by size</title>" in html
    assert "charact doctor --ceilings" in words(html)
    assert "charact doctor --ceilings" in " ".join(screen(run).split())


def test_an_operation_without_work_that_can_be_counted(tmp_path: Path) -> None:
    run = Operations(tmp_path).add("copy:1", {"forward": 0.001}, flop=None, bytes=0.0).run()
    html = html_of(run)
    for section in ("summary", "operations"):
        assert "neither FLOP nor bytes are counted" in words(html[section])


def test_all_problems_failed(tmp_path: Path) -> None:
    row = made.problem_row("gemm:1x1x1", suite="s", max_error=None, tolerance=None)
    run = Operations(tmp_path).fail("gemm:1x1x1", "error", "it broke", [row], suite="s").run()
    html = html_of(run)
    assert "all of 1 problem" in words(html["summary"])
    assert "n/a (all of them failed)" in words(html["summary"])
    assert "error: it broke" in words(html["operations"])
    assert "nan" not in re.findall(r"\w+", words(report([run])) + screen(run))
    assert "n/a (all of them failed)" in screen(run)
    assert screen(run).count("1x1x1") == 1


def test_hostile_names_are_only_ever_text(tmp_path: Path) -> None:
    record = Operations(tmp_path)
    told = {"case": HOSTILE, "workload": HOSTILE}
    record.add(HOSTILE, {"forward": 0.001, "backward_input": 0.002}, entry_of=told, suite=HOSTILE, set=HOSTILE,
               convention=HOSTILE, published_flop=3.0)  # fmt: skip
    record.fail(f"gemm:{HOSTILE}", "error", HOSTILE)
    run = record.run()
    text = report([run, run])
    assert "<script>alert" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert page.words.count(HOSTILE) > 10
    assert HOSTILE.split("'")[0] in screen(run, 200)


def test_several_runs_stand_next_to_each_other_with_their_directories(tmp_path: Path) -> None:
    runs = [made.vo(tmp_path / name) for name in "ab"]
    text = report(runs)
    overview = text[text.index('id="overview"') : text.index("</article>")]
    assert "Time of each problem" in overview
    assert [overview.count(f">{name}: {run.run_id}</td>") for name, run in zip("ab", runs, strict=True)] == [5, 5]
    for name, run in zip("ab", runs, strict=True):
        assert text.count(f"<h1>{name}: {run.manifest['name']}</h1>") == 1


@pytest.mark.slow
def test_other_records_have_no_operations(tmp_path: Path) -> None:
    run = load_run(write_record(tmp_path))
    assert "operations" not in html_of(run)
    assert "Time of an operation" not in html_of(run)["method"]
    assert "operations" not in html_of(load_run(RunWriter(tmp_path, "e", {}).close("complete")))
