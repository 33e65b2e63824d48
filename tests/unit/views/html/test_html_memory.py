"""The report of a run that looks at memory alone: its numbers, words, figures, and what it says of what is missing."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import memory_records as made
from support import records
from support.pages import HOSTILE, Page, row_of, words_in, words_of

from charact.analysis.memory.composition import memory_by_phase
from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.views.html.report import report, sections
from charact.views.sections.profile import _memory_tables as memory_tables

TRAIN = "resnet18-256-b8-train-fp32-cpu"
RAN_OUT, TOO_LARGE = "resnet18, 384 px, batch 8, train", "resnet18, 352 px, batch 8, train"
SHORT, INFER = "resnet18, 256 px, batch 8, train", "resnet18-256-b8-infer-fp32-cpu"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(made.write_memory(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def html(run: Run) -> dict[str, str]:
    return {part.id: part.html for part in sections(run)}


@pytest.fixture(scope="module")
def texts(html: dict[str, str]) -> dict[str, str]:
    return words_in(html)


def run_of(tmp_path: Path, *cases: tuple[dict[str, Any], list[dict[str, Any]]], **options: Any) -> Run:
    """A memory run of cases given as their entry and their rows of the table `memory`."""
    writer = RunWriter(tmp_path, "r", {"options": {"command": "memory"} | options})
    for entry, rows in cases:
        writer.add_case(typed_entry(entry), {"memory": rows})
    return load_run(writer.close("complete"))


def case_of(size: int, mode: str = "train", *, measured: bool = True) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return (made.memory_entry("image", mode, size, measured=measured),
            made.memory_rows("image", mode, size, measured=measured))  # fmt: skip


def figures_of(html: str) -> list[str]:
    """Texts of each figure."""
    return [Page(figure).words for figure in re.findall(r"<figure.*?</figure>", html, re.DOTALL)]


def titles_of(html: str) -> list[str]:
    return re.findall(r"<h3>(.*?)</h3>", html)


def test_it_has_the_sections_of_a_memory_run(texts: dict[str, str]) -> None:
    assert list(texts) == ["summary", "memory", "machine", "method"]
    for text in ("48 cases, 2 of them failed. Cards show the largest case of each series that fits",
                 "601 MiB at the peak, predicted", "uncertainty ± 12.0 MiB", "527 MiB at the peak, measured",
                 "predicted 521 MiB, −1.31 %", "in backward, layer1.0.conv1, aten::convolution_backward",
                 "a pixel of a sample", "× 3.67"):
        assert text in texts["summary"]
    assert "per iteration" not in texts["summary"]
    for text in ("exact: their shapes are those of the iteration", "an estimate, not measured here",
                 "by running operators alone"):
        assert text in texts["method"]
    assert "timing pass" not in texts["method"]


@pytest.mark.slow
def test_the_summary_has_a_card_a_series_and_a_row_a_case(html: dict[str, str]) -> None:
    cards = re.findall(r'<article class="ch-card[^"]*" data-case="([^"]*)"', html["summary"])
    assert cards == ["resnet18-320-b8-train-fp32-cpu", "resnet18-384-b8-infer-fp32-cpu", INFER,
                     "rnn_lm-120-b20-train-fp32-cpu", "rnn_lm-120-b20-infer-fp32-cpu"]  # fmt: skip
    caption = "Peak memory of each case"
    assert row_of(html["summary"], caption, SHORT)[1:] == [
        "ok", "433 MiB", "430 MiB", "−0.59 %", "yes", "422 MiB", "439 MiB"]
    assert row_of(html["summary"], caption, RAN_OUT)[1:4] == ["oom", "n/a (out of memory: asked for 120 MB)", "810 MiB"]
    assert row_of(html["summary"], caption, TOO_LARGE)[2] == "n/a (predicted to need 749 MB of the 680 MB of tiny)"


def test_a_peak_outside_of_its_estimate_is_a_failure_to_report(html: dict[str, str], texts: dict[str, str]) -> None:
    cards = re.findall(r'<article class="ch-card ch-failed" data-case="([^"]*)"', html["summary"])
    assert cards == [INFER, "rnn_lm-120-b20-infer-fp32-cpu"]
    assert ("outside of the estimated interval by 1.40 MiB: please report measured 124 MiB, estimated 118 MiB to "
            "123 MiB (and 1 more of this series)") in texts["summary"]
    held = row_of(html["summary"], "Peak memory of each case", SHORT.replace("train", "infer"))[5]
    assert held == "no, by 1.40 MiB: please report"
    assert '<strong class="ch-fault">no, by' in html["summary"]
    assert '<strong class="ch-fault">no</strong>' in html["memory"]
    assert row_of(html["memory"], "Predicted and measured peak", SHORT)[4:6] == ["yes", "n/a (within)"]


def test_peaks_within_their_estimates_are_no_failure(tmp_path: Path) -> None:
    html = {part.id: part.html for part in sections(run_of(tmp_path, case_of(64)))}
    assert "ch-failed" not in html["summary"]
    assert "measured within its interval" in html["summary"]
    assert "ch-fault" not in html["summary"] + html["memory"]
    assert "Outside by" not in html["memory"]


def test_the_section_tells_what_it_should_in_order(html: dict[str, str]) -> None:
    assert titles_of(html["memory"]) == [
        "Against image area: resnet18 (imagenet), batch 8, fp32, cpu",
        "Against sequence length: rnn_lm (imagenet), batch 20, fp32, cpu",
        "Training over inference", "One iteration: resnet18, 256 px, batch 8, train",
        "One iteration: resnet18, 256 px, batch 8, infer", "One iteration: rnn_lm, 120 tokens, batch 20, train",
        "One iteration: rnn_lm, 120 tokens, batch 20, infer", "What fits",
        "Out of memory",
    ]  # fmt: skip


def test_figures_say_what_is_predicted_and_what_is_measured(html: dict[str, str]) -> None:
    drawn = figures_of(html["memory"])
    assert len(drawn) == 2 + 2 + 2 + 4 * 2
    for text in drawn[:6]:
        assert "predicted" in text
        assert "measured" in text
    for text, mode, axis in zip(drawn[:4], ["training", "inference"] * 2,
                                ["image area (pixels)"] * 2 + ["sequence length (tokens)"] * 2, strict=True):
        assert f"{mode}, peak (MiB)" in text
        assert axis in text
        assert "its uncertainty" in text
    assert "peak 433 MiB" in drawn[6]
    assert "forward" in drawn[6]
    assert "time, measured under the profiler (ms)" in drawn[6]
    assert "allocations and frees in order, predicted" in drawn[7]


@pytest.mark.slow
@pytest.mark.drawn
def test_each_measured_size_has_its_dots(tmp_path: Path) -> None:
    def num_markers(name: str, *measured: int) -> int:
        run = run_of(tmp_path / name, *(case_of(size, measured=size in measured) for size in (32, 64, 96)))
        html = {part.id: part.html for part in sections(run)}["memory"]
        return re.findall(r"<figure.*?</figure>", html, re.DOTALL)[0].count("<use ")

    # A dot for each of six categories and one for the peak; one in the legend; in drawings for two widths.
    assert num_markers("two", 64, 96) - num_markers("none") == 2 * (2 * (6 + 1) + 1)


def test_the_words_of_peaks_fits_and_failures(texts: dict[str, str]) -> None:
    for words in ("Peak measured: 433 MiB in backward, layer1.0.conv1, aten::convolution_backward; activations 250 "
                  "MiB, temporary 51.0 MiB, weights 42.0 MiB.",
                  "phases in order: data, forward, loss, backward, update.",
                  f"{RAN_OUT} asked for 114 MiB with 97.3 MiB free of 648 MiB, in forward; held 551 MiB: activations "
                  "467 MiB, weights 42.0 MiB, optimizer state 42.0 MiB; batch 6 or input size 320 would fit, by "
                  "estimate",
                  f"{TOO_LARGE} predicted to need 749 MB of the 680 MB of tiny",
                  "The dashed line is the 648 MiB of tiny."):  # fmt: skip
        assert words in texts["memory"]
    assert texts["memory"].count("The dashed line") == 1  # sequences stay below it


def test_the_tables(html: dict[str, str]) -> None:
    memory = html["memory"]
    growth = row_of(memory, "Growth of each series", "resnet18 (imagenet), train, batch 8, fp32, cpu", "measured")
    assert growth[2:] == ["4", "pixel", "4.78 KiB", "612 B", "127 MiB"]
    assert "Growth a line" in memory
    errors = row_of(memory, "Predicted and measured peak of each case", SHORT)
    assert errors[1:8] == ["433 MiB", "430 MiB", "−0.59 %", "yes", "n/a (within)", "422 MiB", "439 MiB"]
    assert "; Workspaces are measured; Measured calls 24; " in memory
    assert row_of(memory, "Weights against", SHORT, "measured")[2:] == ["42.0 MiB", "301 MiB", "× 7.17", "89.9 MiB"]
    assert row_of(memory, "Allocated, reserved", SHORT)[1:] == ["433 MiB", "923 MiB"]
    assert row_of(memory, "Memory that each case needs", TOO_LARGE)[-1] == "does not fit"
    fit = row_of(memory, "Largest batch or input that fits", "resnet18 (imagenet), train, fp32")
    assert fit[1:] == ["batch size", "9", "input size 32", "ran", "10", "668 MiB", "ran out of memory"]
    ended = row_of(memory, "Largest batch or input that fits", "resnet18 (imagenet), infer, fp32")
    assert "[1] the search ended: its 256 samples" in memory
    assert ended[-4:] == ["n/a (not run)", "n/a [1]", "n/a [1]", "n/a (not run)"]
    phase = row_of(
        memory, "Memory by category in each phase of resnet18, 256 px, batch 8, train", "measured", "forward")
    assert phase[2:] == ["340 MiB", "0 B", "250 MiB", "0 B"]


def test_cases_that_lack_the_same_are_told_together(texts: dict[str, str]) -> None:
    assert "resnet18, 32 px, batch 8, train and 29 more memory skipped predicted only" in texts["method"]


def test_operators_that_are_not_known_of_are_counted(tmp_path: Path) -> None:
    entry, rows = case_of(64)
    entry["passes"]["prediction"]["uncertain"] = ["aten::a", "aten::b", "aten::c"]
    entry["passes"]["prediction"]["workspaces"] |= {"method": "modelled", "reason": "a alone would need 99 GiB"}
    html = {part.id: part.html for part in sections(run_of(tmp_path, (entry, rows)))}["memory"]
    assert row_of(html, "Predicted and measured peak of each case")[-5:-1] == [
        "modelled", "24", "aten::a and 2 more", "a alone would need 99 GiB"]


def test_cuda_says_what_is_reserved(tmp_path: Path) -> None:
    entry, rows = case_of(64)
    entry["passes"]["memory"] |= {"reserved_peak_bytes": 1.5 * entry["passes"]["memory"]["peak_bytes"]}
    entry["passes"]["prediction"] |= {"reserved_peak_bytes": 1.7e8, "context_bytes": 5e8, "needed_bytes": 6.7e8}
    run = run_of(tmp_path, (entry | {"device": "cuda"}, rows))
    html = {part.id: part.html for part in sections(run)}["memory"]
    assert row_of(html, "Allocated, reserved")[1:3] == ["219 MiB", "× 1.50"]
    assert row_of(html, "Memory that each case needs")[:3] == ["639 MiB", "162 MiB", "477 MiB"]


def test_a_run_that_only_measured_has_no_columns_of_predictions(tmp_path: Path) -> None:
    cases = []
    for size in (32, 64):
        entry, rows = case_of(size)
        del entry["passes"]["prediction"]
        cases.append((entry, [row for row in rows if row["method"] == "measured"]))
    run = run_of(tmp_path, *cases)
    html = {part.id: part.html for part in sections(run)}
    assert row_of(html["summary"], "Peak memory of each case", "32 px")[1:] == ["ok", "132 MiB"]
    assert "Estimate against measurement" not in html["memory"]
    assert "predicted" not in "".join(figures_of(html["memory"]))
    assert "two input sizes do not show a line" in html["memory"]
    assert row_of(html["memory"], "Steps of series", "resnet18 (imagenet), train, batch 8, fp32, cpu")[2:] == [
        "32", "64", "+14.3 MiB", "activations", "+11.7 MiB", "backward", "layer1.0.conv1", "aten::convolution_backward"]


def test_a_run_that_only_predicted_says_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, *(case_of(size, measured=False) for size in (32, 64)))
    html = {part.id: part.html for part in sections(run)}
    assert "Allocated, reserved" not in html["memory"]
    assert "measured" not in figures_of(html["memory"])[0]
    assert "n/a (predicted only)" in html["summary"]


def test_one_size_has_a_bar_and_says_why_there_is_no_curve(tmp_path: Path) -> None:
    run = run_of(tmp_path, case_of(64))
    text = words_of(run)
    assert "n/a (one input size only: give --input-sizes two)" in text["memory"]
    assert "of a sample" not in text["summary"]
    assert "resnet18-64-b8-train-fp32-cpu (predicted)" in text["memory"]  # the bar's label


def test_cases_that_failed_say_why_on_their_card(tmp_path: Path) -> None:
    broken = [records.case_entry("r", size, "train", status="error", reason="model broke") for size in (32, 64)]
    untold = records.case_entry("r", 32, "infer", status="oom", reason="out of memory: asked for 64.0 GB")
    for entry in (*broken, untold):
        entry["passes"] = {name: {"status": "skipped", "reason": entry["reason"]} for name in ("memory", "prediction")}
    text = words_of(run_of(tmp_path, *((entry, []) for entry in (*broken, untold))))
    assert "error model broke (and 1 more of this series)" in text["summary"]
    assert "oom out of memory: asked for 64.0 GB" in text["summary"]
    assert "n/a (model broke; out of memory: asked for 64.0 GB)" in text["unavailable"]


def test_a_prediction_that_was_not_possible_says_why(tmp_path: Path) -> None:
    entry, rows = case_of(64)
    entry["passes"]["prediction"] = {"status": "failed", "reason": "aten::nonzero: its output depends on data"}
    run = run_of(tmp_path, (entry, [row for row in rows if row["method"] == "measured"]))
    assert "predicted n/a (aten::nonzero: its output depends on data)" in words_of(run)["summary"]


def test_long_tables_are_cut_with_a_note(run: Run) -> None:
    table = memory_tables.by_phase(pd.concat([
        memory_by_phase(run).assign(case=lambda rows, number=number: rows["case"] + f"-{number}")
        for number in range(2)
    ]), "Phases")  # fmt: skip
    assert len(table.rows) == 400
    assert table.note.startswith("The first 400 of 448 rows")


@pytest.mark.slow
def test_hostile_names_are_only_ever_text(tmp_path: Path) -> None:
    cases = []
    for size in (32, 64, 96):
        entry, rows = case_of(size)
        entry |= {"case": f"{HOSTILE}-{size}", "workload": HOSTILE, "variant": HOSTILE, "status": "ok"}
        entry["passes"]["prediction"] |= {"device": HOSTILE, "uncertain": [HOSTILE], "device_memory_bytes": 1e8}
        entry["passes"]["prediction"]["workspaces"]["reason"] = HOSTILE
        for row in rows:
            row |= {"layer": HOSTILE, "operator": HOSTILE}
        cases.append((entry, rows))
    entry, rows = case_of(128)
    cases.append((made.ran_out(entry) | {"case": HOSTILE}, rows))
    run = run_of(tmp_path, *cases)
    text = report([run, run])
    assert "<script>alert" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert page.words.count(HOSTILE) > 20


@pytest.mark.slow
def test_runs_of_several_kinds_begin_with_a_table_of_each(record: Path, run: Run) -> None:
    text = report([load_run(record), run])
    overview = text[text.index('id="overview"') : text.index("</article>")]
    assert re.findall(r"<caption>(.*?)</caption>", overview) == ["Every profiled case of every run",
                                                                "Peak memory of each case"]  # fmt: skip
    assert overview.count(f": {run.run_id}</td>") == 48  # with its directory


@pytest.mark.slow
def test_a_profile_folds_its_tables_of_memory(record: Path) -> None:
    """Two input sizes are no line."""
    html = {part.id: part.html for part in sections(load_run(record))}["memory"]
    assert titles_of(html) == ["At the peak of an iteration"]
    assert re.findall(r"<caption>(.*?)</caption>", html) == [
        "Memory by category at the peak", "Peak of training over that of inference", "Growth of each series",
        "Steps of series that do not grow in a line", "Memory by category at the peak of each phase"]
    assert "predict" not in html.replace("both measured or both predicted", "").replace("measured or predicted", "")
