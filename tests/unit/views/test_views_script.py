"""What every view says of a watched program, which tells neither its input size nor its batch size."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.records import watched_entry, watched_rows, write_record, write_watched

from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.views.html.report import report, sections
from charact.views.summary import summary
from charact.views.tensorboard.records import Records, comparison
from charact.views.tensorboard.scalars import scalars
from charact.views.terminal.renderer import drawn


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(write_watched(tmp_path / "runs"))


def of(run: Run) -> dict[str, str]:
    return {section.id: section.html for section in sections(run)}


def in_terminal(run: Run) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100).print(drawn(summary(run)))
    return stream.getvalue()


def test_its_sections_are_those_that_it_has_something_for(run: Run) -> None:
    assert [section.title for section in sections(run)] == [
        "Summary", "Iterations", "Time by phase", "Source lines", "Models", "How phases were found", "Bottleneck",
        "Machine", "Method",
    ]  # fmt: skip


def test_a_workloads_run_has_no_sections_of_a_program(record: Path) -> None:
    assert {"models", "program", "other"}.isdisjoint(of(load_run(record)))


def test_one_model_needs_no_section(tmp_path: Path) -> None:
    rows = [{"iteration": 0, "phase": "forward", "part": None, "host_s": 0.1, "device_s": None}]
    assert "models" not in of(load_run(write_watched(tmp_path, rows=rows)))


def test_the_report_tells_how_phases_were_found_and_how_it_ended(run: Run) -> None:
    html = of(run)["program"]
    for text in ("sys.exit(3)", "gan.py", "95.0 %", "2.0 %", "n/a (nothing was comp"):
        assert text in html
    assert "--lr" not in html  # arguments may hold secrets


def test_a_program_that_has_not_ended_says_so(run: Run) -> None:
    del run.manifest["ending"]
    assert "(still running, or killed)</small>" in of(run)["program"]
    run.manifest["cases"] = []
    waiting = of(Run(run.path, run.manifest, partial=True, _tables={"iterations": run.iterations.iloc[:0]}))
    assert "No iteration has finished yet." in waiting["summary"]
    assert "n/a (no iteration has finished yet)" in waiting["program"]


def test_models_have_a_figure_and_a_table(run: Run) -> None:
    html = of(run)["models"]
    assert html.count("<figure") == 1
    for name in ("netD", "netG", "none of them"):
        assert html.count(name) >= 2


def test_the_places_of_other_are_escaped_and_told_in_order(run: Run) -> None:
    html = of(run)["source-lines"]
    assert html.index("gan.py:12") < html.index("gan.py:&lt;40&gt;")
    for text in ("torch.serialization.save", "nothing in a Python library", "75 % (60–86 %)", "14.2 ms"):
        assert text in html


def test_the_lines_that_load_the_data_have_a_table_of_their_own(run: Run) -> None:
    run.manifest["cases"][0]["passes"]["frames"] |= {"num_data_samples": 8, "data_frames": [
        {"place": "data.py:7", "function": "Images.__getitem__", "library": "PIL.open", "num_samples": 6}]}
    html = of(run)["source-lines"]
    assert html.index("Lines of “data”") < html.index("data.py:7") < html.index("Lines of “other”")
    assert html.index("Lines of “other”") < html.index("gan.py:12")
    assert "7.50 ms" in html  # 6 of 8 samples, in 10 ms of data in the mean iteration
    text = in_terminal(run)
    assert "lines of data, in 8 samples" in text
    assert "75 % (41–93 %)  data.py:7 in Images.__getitem__, PIL.open" in text


def test_a_line_has_one_row_and_no_share_below_zero(run: Run) -> None:
    frame = {"place": "data.py:7", "function": "f", "library": None, "num_samples": 1}
    run.manifest["cases"][0]["passes"]["frames"] |= {"num_samples": 8, "frames": [
        frame | {"place": "other.py:1", "num_samples": 3}, frame | {"library": "numpy.sort", "num_samples": 2}, frame,
        frame | {"library": "numpy.fft.rfft"}, frame | {"place": "late.py:9"}]}
    text = in_terminal(run)
    assert "50 % (22–78 %)  data.py:7 in f, numpy.sort, numpy.fft.rfft" in text
    assert text.index("data.py:7") < text.index("other.py:1")
    assert text.count("data.py:7") == 1
    assert "12 % (2–47 %)  late.py:9" in text


def test_time_outside_of_iterations_and_its_lines_are_shown(run: Run) -> None:
    passes = run.manifest["cases"][0]["passes"]
    passes["timing"] |= {"num_pass_iterations": 7, "program": {
        "duration_s": 30.0, "before_s": 8.0, "between_s": 3.0, "after_s": 1.0, "own_s": {"start": 0.5, "passes": 1.5}}}
    passes["frames"] |= {"num_outside_samples": 8, "interval_s": 0.1, "num_data_samples": 3, "data_frames": [],
                         "outside_frames": [{"place": "gan.py:3", "function": "Images.__init__", "num_samples": 8}]}
    told = ("12.0 s of 30.0 s (40.0 %): before the first 8.00 s, between 3.00 s, after the last 1.00 s; without "
            "the 2.00 s that charact itself took")
    text = in_terminal(run).replace("\n    ", " ")
    assert f"outside iterations {told}" in " ".join(text.split())
    assert "lines outside of iterations since PyTorch was imported, in 8 samples; --sample takes 10 times" in text
    assert "lines of data  n/a (3 samples, too few to name lines; charact run --sample" in text
    assert "and 7 that other passes measured" in text
    html = of(run)
    assert told in html["program"]
    assert "Lines outside of iterations" in html["source-lines"]


def test_bars_of_a_program_that_others_disturbed_are_pale(run: Run) -> None:
    assert "ch-doubtful" not in of(run)["summary"]
    run.manifest["cases"][0]["passes"]["timing"]["core_use"] = {
        "length_s": 1.0, "num_usable_cores": 2, "processor_s": 0.5, "others_s": 1.5, "waiting_s": 1.0}
    assert of(Run(run.path, run.manifest, partial=False, _tables={"iterations": run.iterations}))[
        "summary"].count("ch-doubtful") == 1


def test_a_sampler_that_found_nothing_says_so(run: Run) -> None:
    run.manifest["cases"][0]["passes"]["frames"] |= {"frames": [], "num_samples": 0}
    assert "n/a (no sample fell into a phase with more than 10 % of the time)" in of(run)["unavailable"]


@pytest.mark.slow
def test_what_is_not_told_has_its_reason(run: Run) -> None:
    html = "".join(of(run).values())
    assert "n/a (the batch size is not known)" in html
    assert not re.findall(r"\bnan\b", html)
    assert "n/a</td>" not in html
    assert "n/a (not found)" not in of(run)["summary"]
    assert "skip</dt><dd>n/a <small class=\"ch-reason\">(not given)</small>" in of(run)["machine"].replace("\n", "")
    assert "arguments</dt>" not in "".join(of(run).values())  # they may hold secrets, and no view shows them
    for unasked in ("FLOP", "Peak memory", "Profiler overhead", "Target"):
        assert unasked not in of(run)["summary"] + of(run)["method"]


@pytest.mark.slow
def test_what_could_not_be_seen_is_said(run: Run) -> None:
    assert "Not observed" not in of(run)["program"]
    run.manifest["cases"][0]["passes"]["timing"]["blind_spots"] = ["no <loader> was used"]
    assert "no &lt;loader&gt; was used" in of(run)["program"]
    assert "no <loader> was used" in in_terminal(run)


def test_the_terminal_shows_each_models_bar_and_no_unasked_pass(run: Run) -> None:
    text = in_terminal(run)
    for words in ("n/a (the batch size is not known)", "Time in netD", "Time in netG",
                  "95.0 % of the time is in a phase (2.0 % inferred", "not timed: the first 1 as warm-up",
                  "75 % (60–86 %)  gan.py:12 in save, torch.serialization.save ",
                  "20 % (10–35 %)  gan.py:<40> in <module> "):
        assert words in text
    for unasked in ("FLOP/s", "peak memory", "by operator type", "nan"):
        assert unasked not in text


def of_two_cases(tmp_path: Path) -> Run:
    """A program that trains and predicts, and whose further passes were taken over the training."""
    ok = {"status": "ok", "reason": None}
    writer = RunWriter(tmp_path, "gan", {"options": {"script": "gan.py"}})
    entry = watched_entry()
    entry["passes"] |= {"operators": ok, "memory": ok, "counters": ok,
                        "kernels": {"status": "skipped", "reason": "kernels run on GPUs only"}}  # fmt: skip
    timed = {"timing": entry["passes"]["timing"]}
    operator = {"phase": "forward", "operator": "aten::conv", "operator_type": "convolution", "layer": "f",
                "input_shapes": "[]", "num_calls": 1, "self_host_s": 0.1, "device_s": None, "flop": None,
                "bytes": None}  # fmt: skip
    counted = {"phase": None, "time_s": None, "rank": 0, "device": "host", "source": "host", "counter": "rss_bytes",
               "value": 1e9}  # fmt: skip
    writer.add_case(typed_entry(entry), {"iterations": watched_rows(), "operators": [operator], "counters": [counted]})
    writer.add_case(typed_entry(watched_entry(case="gan-infer", mode="infer", passes=timed)),
                    {"iterations": watched_rows()})
    writer.close("complete")
    return load_run(writer.publish())


def test_a_case_without_the_further_passes_says_which_has_them(tmp_path: Path) -> None:
    html = of(of_two_cases(tmp_path))
    assert html["operators"].count("n/a (taken over gan-train only)") == 1
    assert "n/a (taken over gan-train only)" in html["summary"]
    assert "n/a (kernels run on GPUs only)" in html["unavailable"]
    assert "separate iterations after the timing pass" in html["counters"]
    assert "timing pass, at no cost" not in html["counters"]


@pytest.mark.slow
def test_flop_that_nobody_counted_have_no_columns(tmp_path: Path, record: Path) -> None:
    html, counted = of(of_two_cases(tmp_path)), of(load_run(record))
    for name in ("operators", "layers"):
        assert "FLOP" not in html[name]
        assert "FLOP/s" in counted[name]


@pytest.mark.slow_variants
@pytest.mark.parametrize(("attributed_frac", "is_told"), [(0.85, True), (0.95, False)])
def test_much_other_without_a_sampler_tells_how_to_learn_more(
    run: Run, attributed_frac: float, is_told: bool
) -> None:
    passes = run.manifest["cases"][0]["passes"]
    passes["timing"]["attributed_frac"] = attributed_frac

    def texts() -> list[str]:
        return [re.sub("<[^>]+>", "", of(run)["program"]), in_terminal(run)]

    assert "charact run --sample" not in "".join(texts())  # it has had one
    del passes["frames"]
    for plain in texts():
        assert ("To see what “other” was, use charact run --sample" in plain) == is_told


@pytest.mark.slow
def test_it_compares_with_another_run_of_the_program_and_stands_beside_workloads(run: Run, tmp_path: Path) -> None:
    slower = [row | {"host_s": 2 * row["host_s"]} for row in watched_rows()]
    other = load_run(write_watched(tmp_path / "runs", rows=slower))
    html = "".join(section["html"] for section in comparison([run, other]))
    for text in ("gan-train", "2.000", "n/a (fewer than 6 iterations)", "n/a (not measured)"):
        assert text in html
    everything = report([run, other, load_run(write_record(tmp_path / "runs"))])
    assert everything.count("n/a (the batch size is not known)") >= 4
    assert "nan" not in html


def test_scalars_have_a_point_an_iteration_and_phase(run: Run) -> None:
    points = list(scalars(run))
    forward = [point for point in points if point.tag == "gan-train/phase/forward_s"]
    assert [(point.step, point.value) for point in forward] == [
        *((number, pytest.approx(0.030)) for number in range(4)), (4, pytest.approx(0.020))]
    assert {point.tag.partition("/")[0] for point in points} == {"gan-train"}


def test_a_run_that_goes_on_is_listed_by_the_name_that_it_will_have(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "gan", {
        "command_line": [], "started": "2026-11-21T10:00:00+0000", "machine": {}, "software": {},
        "options": {"script": "gan.py", "skip": None, "iterations": None, "passes": []}})  # fmt: skip
    (entry,) = Records(str(tmp_path)).listing()
    assert (entry["id"], entry["status"], entry["num_cases"]) == (writer.run_id, "in progress", 0)
    assert entry["machine"] == "n/a (not recorded, or not yet)"
    assert entry["error"] is None
    (writer.directory / "lock").write_text("999999999")  # no process has such a number
    assert Records(str(tmp_path)).listing()[0]["status"] == "unfinished"


def test_a_run_that_goes_on_is_drawn_anew_when_it_has_grown(tmp_path: Path, run: Run) -> None:
    writer = RunWriter(tmp_path / "logs", "gan", {key: run.manifest[key] for key in (
        "command_line", "started", "machine", "software", "options")})
    seen = []

    def read(path: Path) -> Run:
        seen.append(path)
        return Run(path, run.manifest, partial=True, _tables={"iterations": run.iterations})

    records = Records(str(tmp_path / "logs"), read)
    for _ in range(2):
        assert "models" in [section["id"] for section in records.sections(writer.run_id)]
    (writer.directory / "slices.bin").write_bytes(b"more")
    records.sections(writer.run_id)
    assert seen == [writer.directory] * 2
